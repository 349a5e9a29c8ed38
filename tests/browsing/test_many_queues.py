"""A topic with very many queues: few of them are opened, and what is too much is said."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from quarry_mq.server.admin import browsing
from quarry_mq.server.admin.browsing import Selected, Wanted
from quarry_mq.server.errors import TooMuchForOneCall
from quarry_mq.store.consumequeue import ConsumeQueueEntry
from quarry_mq.store.message import QueueId, QueueOffset
from tests.browsing.bench import Bench, bench

QUEUES = 2_000
NEWEST = Wanted(10, 1 << 30, is_ascending=False)
OLDEST = Wanted(10, 1 << 30)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    """Two rounds of a message for each queue, a second later each."""
    with bench(tmp_path_factory.mktemp("many")) as made:
        topic = made.topic()
        for _ in range(2):
            for queue in range(QUEUES):
                made.send(topic, queue, b"%d" % queue)
            made.clock.advance(1)
        made.show()
        yield made


class Reads:
    """How many queues were read."""

    def __init__(self, store: Bench, patch: pytest.MonkeyPatch) -> None:
        self.queues: set[int] = set()
        messages = store.store.messages
        entries = messages.entries

        def counted(queue: QueueId, start: QueueOffset, limit: int) -> list[ConsumeQueueEntry]:
            self.queues.add(queue.number)
            return entries(queue, start, limit)

        patch.setattr(messages, "entries", counted)


def test_the_newest_messages_open_the_queues_that_hold_them(store: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    reads = Reads(store, monkeypatch)
    first = store.page(Selected("topic-0"), NEWEST)
    assert [bytes(each.body) for each in first.messages] == [b"%d" % (QUEUES - 1 - number) for number in range(10)]
    assert len(reads.queues) <= 11
    second = store.page(Selected("topic-0"), NEWEST._replace(beyond=first.next))
    assert bytes(second.messages[0].body) == b"%d" % (QUEUES - 11)
    assert len(reads.queues) <= 22


def test_queues_that_end_before_a_time_are_not_opened(store: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    last_ms = store.page(Selected("topic-0"), NEWEST).looked_up_to_ms
    assert last_ms is not None
    topic = store.topic()
    for queue in range(QUEUES):
        store.send(topic, queue)
    store.clock.advance(1)
    for queue in (7, 8, 9):
        store.send(topic, queue, b"late")
    store.show()
    reads = Reads(store, monkeypatch)
    found = store.page(Selected(topic), OLDEST._replace(begin_ms=store.clock.wall_ms()))
    assert [each.queue_number for each in found.messages] == [7, 8, 9]
    assert len(reads.queues) < 2 * browsing.ASKED


def test_more_queues_than_can_be_searched_are_refused(store: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(browsing, "SEARCHED_MAX", 100)
    monkeypatch.setattr(browsing, "ENTRIES_AT_ONCE", 1)  # one read does not tell
    first_ms = store.page(Selected("topic-0"), OLDEST).messages[0].store_timestamp_ms
    for wanted in (OLDEST._replace(begin_ms=first_ms + 1), NEWEST._replace(end_ms=first_ms)):
        with pytest.raises(TooMuchForOneCall, match="queue: more than 100 queues of topic topic-0 have messages"):
            store.page(Selected("topic-0"), wanted)
    assert len(store.page(Selected("topic-0", 5), NEWEST._replace(end_ms=first_ms)).messages) == 1
    assert len(store.page(Selected("topic-0"), OLDEST).messages) == 10


def test_what_expires_while_a_page_is_made_is_passed_over(store: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its entries were read before, and its record is gone."""
    topic = store.topic()
    for _ in range(3):
        store.send(topic, 0, bytes(30_000))
        store.send(topic, 1, bytes(30_000))
    store.show()
    messages = store.store.messages
    entries = messages.entries

    def expiring(queue: QueueId, start: QueueOffset, limit: int) -> list[ConsumeQueueEntry]:
        found = entries(queue, start, limit)
        if queue.number == 1:
            store.expire(len(store.store.expiry.bases) - 1)
        return found

    monkeypatch.setattr(messages, "entries", expiring)
    found = store.page(Selected(topic), OLDEST)
    minimum = store.store.expiry.minimum
    assert 0 < len(found.messages) < 6
    assert all(each.physical_offset >= minimum for each in found.messages)
