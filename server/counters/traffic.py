"""Count messages and bytes in and out by topic and by group, on the event loop's thread.

`server.counters.top_counts` bounds how many topics and groups are counted one by one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Final, NamedTuple

from quarry_mq.protocol.names import LIGHT_QUEUE_PREFIX
from quarry_mq.server.counters.top_counts import OTHER, Row, TopCounts
from quarry_mq.store.message import Appended


class InKey(NamedTuple):
    """Key of messages that producers sent: the topic and the message type (RocketMQ's word in lower case)."""

    topic: str
    message_type: str


class PairKey(NamedTuple):
    """Key of a group and a topic it receives; `is_retry` for messages from the group's retry topics."""

    group: str
    topic: str
    is_retry: bool = False


class TopicKey(NamedTuple):
    topic: str


def _hides(name: str) -> bool:
    """Return whether a name has no series: light queues never have one, and a topic called `OTHER` must not collide."""
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
    """Count the broker's traffic; `server.observability.metrics.rocketmq` exports it."""

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
        """Totals over all names; unlike the rows they never decrease. Bytes are the sizes of records."""

    def sent(self, topic: str, message_type: str, appended: Sequence[Appended]) -> None:
        """Count a stored send; all of its messages count as of the first one's type."""
        messages, size = len(appended), sum([each.size for each in appended])
        self.messages_sent += messages
        self.bytes_sent += size
        row = self.sent_by_topic.row(InKey(topic, message_type), messages)
        row.count(messages, size)
        row.sizes.add(size / messages, messages)

    def sent_together(self, message_type: str, sizes_by_topic: Mapping[str, list[int]]) -> None:
        """Count the stored messages of several sends; sizes are those of the records."""
        sizes_of: dict[Row, list[int]] = {}
        for topic, sizes in sizes_by_topic.items():
            row = self.sent_by_topic.row(InKey(topic, message_type), len(sizes))
            sizes_of.setdefault(row, []).extend(sizes)  # several topics may share a row
        for row, sizes in sizes_of.items():
            messages, size = len(sizes), sum(sizes)
            self.messages_sent += messages
            self.bytes_sent += size
            row.count(messages, size)
            for each, times in Counter(sizes).items():
                row.sizes.add(each, times)

    def received(self, group: str, topic: str, messages: int, size: int, *, is_retry: bool) -> None:
        """Count the messages that a receive returned; their records have `size` bytes together."""
        self.messages_received += messages
        self.bytes_received += size
        self.received_by_group.row(PairKey(group, topic, is_retry), messages).count(messages, size)

    def buried(self, group: str, topic: str) -> None:
        """Count a message that went to the dead letters of its group."""
        self.messages_buried += 1
        self.buried_by_group.row(PairKey(group, topic), 1).count(1, 0)

    def ended(self, topic: str, *, is_commit: bool) -> None:
        """Count a transaction that a producer has ended, once that is stored."""
        counts = self.committed_by_topic if is_commit else self.rolled_back_by_topic
        counts.row(TopicKey(topic), 1).count(1, 0)

    def review(self, topic_exists: Callable[[str], bool], group_exists: Callable[[str], bool]) -> None:
        """Let busy names replace idle ones, and drop deleted ones. To be called a few times a minute."""
        for by_topic in (self.sent_by_topic, self.committed_by_topic, self.rolled_back_by_topic):
            by_topic.forget(lambda key: not topic_exists(key.topic))
            by_topic.review()
        for by_group in (self.received_by_group, self.buried_by_group):
            by_group.forget(lambda key: not topic_exists(key.topic) or not group_exists(key.group))
            by_group.review()
