"""Messages and bytes in and out by topic and by group, counted on the event loop's thread.

`server.counters.top_counts` bounds how many topics and groups are counted one by one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Final, NamedTuple

from quarry_mq.server.counters.top_counts import OTHER, Row, TopCounts
from quarry_mq.store.message import Appended
from quarry_mq.store.metadata.names import LIGHT_QUEUE_PREFIX


class InKey(NamedTuple):
    """Messages that producers sent: to a topic, of a type (RocketMQ's word in lower case)."""

    topic: str
    message_type: str


class PairKey(NamedTuple):
    """A group and a topic of it; `is_retry` for what comes out of the group's retry topics."""

    group: str
    topic: str
    is_retry: bool = False


class TopicKey(NamedTuple):
    topic: str


def _hides(name: str) -> bool:
    """Light queues have no series whatever they do, and a topic that is called as the others must not collide."""
    return name == OTHER or name.startswith(LIGHT_QUEUE_PREFIX)


def _hides_topic(key: InKey | TopicKey) -> bool:
    return _hides(key.topic)


def _hides_pair(key: PairKey) -> bool:
    return key.group == OTHER or _hides(key.topic)


def _other_in(key: InKey) -> InKey:
    return InKey(OTHER, key.message_type)


def _other_pair(key: PairKey) -> PairKey:
    return PairKey(OTHER, OTHER, key.is_retry)


def _other_topic(_key: TopicKey) -> TopicKey:
    return TopicKey(OTHER)


class Traffic:
    """See `server.observability.metrics.rocketmq` for what becomes of it."""

    def __init__(self, *, topics_max: int, groups_max: int) -> None:
        self.sent_by_topic: Final = TopCounts[InKey](topics_max, _other_in, _hides_topic)
        self.received_by_group: Final = TopCounts[PairKey](groups_max, _other_pair, _hides_pair)
        self.buried_by_group: Final = TopCounts[PairKey](groups_max, _other_pair, _hides_pair)
        self.committed_by_topic: Final = TopCounts[TopicKey](topics_max, _other_topic, _hides_topic)
        self.rolled_back_by_topic: Final = TopCounts[TopicKey](topics_max, _other_topic, _hides_topic)
        self.messages_sent = 0
        self.messages_received = 0
        self.messages_buried = 0
        self.bytes_sent = 0
        self.bytes_received = 0
        """Of all names together; unlike the rows these never become less. Bytes are those of records."""

    def sent(self, topic: str, message_type: str, appended: Sequence[Appended]) -> None:
        """A send was stored; all of its messages count as of the first one's type."""
        messages, size = len(appended), sum([each.size for each in appended])
        self.messages_sent += messages
        self.bytes_sent += size
        row = self.sent_by_topic.row(InKey(topic, message_type), messages)
        row.count(messages, size)
        row.sizes.add(size / messages, messages)

    def sent_together(self, message_type: str, sizes_by_topic: Mapping[str, list[int]]) -> None:
        """The messages of several sends were stored; sizes are those of the records."""
        sizes_of: dict[Row, list[int]] = {}
        for topic, sizes in sizes_by_topic.items():
            row = self.sent_by_topic.row(InKey(topic, message_type), len(sizes))
            sizes_of.setdefault(row, []).extend(sizes)  # many topics may have one row
        for row, sizes in sizes_of.items():
            messages, size = len(sizes), sum(sizes)
            self.messages_sent += messages
            self.bytes_sent += size
            row.count(messages, size)
            for each, times in Counter(sizes).items():
                row.sizes.add(each, times)

    def received(self, group: str, topic: str, messages: int, size: int, *, is_retry: bool) -> None:
        """A receive was answered with messages, whose records have `size` bytes together."""
        self.messages_received += messages
        self.bytes_received += size
        self.received_by_group.row(PairKey(group, topic, is_retry), messages).count(messages, size)

    def buried(self, group: str, topic: str) -> None:
        """A message went to the dead letters of its group."""
        self.messages_buried += 1
        self.buried_by_group.row(PairKey(group, topic), 1).count(1, 0)

    def ended(self, topic: str, *, is_commit: bool) -> None:
        """A producer has said how a transaction ends, and that is stored."""
        counts = self.committed_by_topic if is_commit else self.rolled_back_by_topic
        counts.row(TopicKey(topic), 1).count(1, 0)

    def review(self, topic_exists: Callable[[str], bool], group_exists: Callable[[str], bool]) -> None:
        """Let the busy take the place of the idle, and drop what is deleted. To be called a few times a minute."""
        for by_topic in (self.sent_by_topic, self.committed_by_topic, self.rolled_back_by_topic):
            by_topic.forget(lambda key: not topic_exists(key.topic))
            by_topic.review()
        for by_group in (self.received_by_group, self.buried_by_group):
            by_group.forget(lambda key: not topic_exists(key.topic) or not group_exists(key.group))
            by_group.review()
