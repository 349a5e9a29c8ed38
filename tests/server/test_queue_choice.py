"""The choice of the queue for a send."""

from __future__ import annotations

from collections import Counter

import pytest

from quarry_mq.server.append.group_commit import QueueChooser
from quarry_mq.store.metadata import Topic, TopicType


def topic(number: int, queues: int = 8) -> Topic:
    return Topic(f"topic-{number}", TopicType.NORMAL, queues, queues)


def test_sends_go_round_the_queues_of_each_topic() -> None:
    chooser = QueueChooser()
    chosen = [(chooser.next_queue(topic(1, 3)), chooser.next_queue(topic(2, 2))) for _ in range(6)]
    assert chosen == [(0, 0), (1, 1), (2, 0), (0, 1), (1, 0), (2, 1)]


def test_with_more_topics_than_are_remembered_no_queue_is_favoured(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each topic is forgotten before it is sent to again: beginning anew at queue 0 would leave the others empty."""
    monkeypatch.setattr("quarry_mq.server.append.group_commit.TOPICS_REMEMBERED", 100)
    chooser = QueueChooser()
    rounds = [[chooser.next_queue(topic(number)) for number in range(800)] for _ in range(160)]
    for number in (0, 1, 799):
        of_topic = Counter(chosen[number] for chosen in rounds[1:])
        assert set(of_topic) == set(range(8))
        assert max(of_topic.values()) < 2 * min(of_topic.values())
