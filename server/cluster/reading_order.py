"""Checks whether the number of queues of a topic may change without breaking the order of unread messages.

A message group has one queue, chosen by its name and the number of queues, and a group that reads in order gets the
messages of one queue one after the other. After a change of the number of queues the message group may continue in
another queue while messages in its old one are still unread.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Mapping
from typing import Final, NamedTuple, Protocol

from quarry_mq.server.errors import MemberUnreachable, OrderWouldBreak
from quarry_mq.server.metadata import queues_of_topic
from quarry_mq.server.tasks import TimeSlice
from quarry_mq.store.message import QueueBounds, QueueId, QueueOffset
from quarry_mq.store.metadata import Group, Topic, TopicType

NAMED_MAX: Final = 3
"""Number of groups that a refusal names."""

ORDERED_TYPES: Final = (TopicType.FIFO, TopicType.MIXED)
"""Topics of these types take messages of message groups."""


class GroupLeft(NamedTuple):
    """The number of messages that a group has still to get or to acknowledge.

    An empty name: no group has read the topic so far.
    """

    group: str
    messages: int


class OrderedStore(Protocol):
    """The part of the message store that the check needs."""

    def bounds(self, queue: QueueId) -> QueueBounds: ...

    def iterate_queues(self, topic: str) -> list[QueueId]: ...


Left = Callable[[str, Topic, TimeSlice], Awaitable[int]]
"""Returns the number of messages of a topic that a group has still to get or to acknowledge."""

LeftElsewhere = Callable[[str], Awaitable[Mapping[str, list[GroupLeft]]]]
"""Returns what groups have still to get of a topic from other members, by member.

Raises MemberUnreachable with the member's name.
"""


class ReadingOrder:
    """Checks that ordered groups have read a topic before its queues change. Lives on the event loop's thread."""

    def __init__(
        self,
        store: OrderedStore,
        *,
        topic: Callable[[str], Topic | None],
        group: Callable[[str], Group | None],
        readers_of: Callable[[str], Iterator[str]],
        left: Left,
        is_storing: Callable[[str], bool],
        elsewhere: LeftElsewhere | None = None,
    ) -> None:
        """`is_storing` returns whether messages of a topic are on their way. `elsewhere` is set in a cluster."""
        self._store = store
        self._topic = topic
        self._group = group
        self._readers_of = readers_of
        self._left = left
        self._is_storing = is_storing
        self._elsewhere = elsewhere

    async def left(self, name: str, time_slice: TimeSlice) -> list[GroupLeft]:
        """Return the groups that have still to get messages of the topic in order from this broker.

        If no group has read the topic, all its messages are unread: a first group may begin with them.
        """
        topic = self._topic(name)
        if topic is None:
            return []
        readers = list(self._readers_of(name))
        found = [GroupLeft(group, await self._left(group, topic, time_slice)) for group in self._ordered(readers)]
        if not readers and topic.type in ORDERED_TYPES:
            found = [GroupLeft("", sum(bounds.maximum - bounds.minimum for bounds in self._bounds(topic)))]
        return [each for each in found if each.messages]

    async def require_read(self, topic: Topic, time_slice: TimeSlice) -> None:
        """Make sure that nothing is unread in order; the result holds until the caller awaits anything.

        Raises OrderWouldBreak.
        """
        try:
            elsewhere = {} if self._elsewhere is None else await self._elsewhere(topic.name)
        except MemberUnreachable as error:
            raise OrderWouldBreak(
                f"topic {topic.name}: unread messages would lose their order, and not all members could be asked for "
                f"them: {error}"
            ) from None
        for member, left in elsewhere.items():
            if left:
                raise OrderWouldBreak(_refusal(topic, left, f" at member {member}"))
        before = self._state(topic)
        left = await self.left(topic.name, time_slice)
        if left:
            raise OrderWouldBreak(_refusal(topic, left, ""))
        readers, _ = state = self._state(topic)
        takes_part = any(True for _ in self._ordered(readers)) or (not readers and topic.type in ORDERED_TYPES)
        if takes_part and (state != before or self._is_storing(topic.name)):
            raise OrderWouldBreak(f"topic {topic.name} is receiving messages: unread messages would lose their order")

    def _ordered(self, readers: Iterator[str] | list[str]) -> Iterator[str]:
        for name in readers:
            group = self._group(name)
            if group is not None and group.fifo:
                yield name

    def _state(self, topic: Topic) -> tuple[list[str], list[QueueOffset]]:
        """Return the groups that read the topic, and the max offsets of its queues."""
        return list(self._readers_of(topic.name)), [bounds.maximum for bounds in self._bounds(topic)]

    def _bounds(self, topic: Topic) -> Iterator[QueueBounds]:
        return map(self._store.bounds, queues_of_topic(self._store, topic.name, topic.queue_count))


def _refusal(topic: Topic, left: list[GroupLeft], where: str) -> str:
    whose = [
        f"{each.messages} that group {each.group} has not read"
        if each.group
        else f"{each.messages} that no group has read so far"
        for each in left[:NAMED_MAX]
    ]
    if len(left) > NAMED_MAX:
        whose.append(f"those of {len(left) - NAMED_MAX} more groups")
    return f"topic {topic.name}: messages{where} would lose their order: {', '.join(whose)}"
