"""Moves of retries: what a group is to get again goes on with its consumers when they change to the other protocol.

Each protocol keeps retries under names of its own. Consumers by remoting read `%RETRY%group`, and those by gRPC the
retry topic of group and topic (`server.delivery.retry_topics`). A message that waits for one kind of consumers would
wait for ever once all consumers are of the other kind. So it is copied into the other retry topic, and done in the
first. The copy comes first: if the process dies in between, the group gets the message twice.

Nothing is moved while a group has consumers of both kinds.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Final, NamedTuple

import structlog

from quarry_mq.protocol import names
from quarry_mq.protocol.clock import Clock
from quarry_mq.server.append.copies import Copies, is_final
from quarry_mq.server.delivery.dead_letters import make_internal_topic, retry_of
from quarry_mq.server.delivery.delivery import Delivery
from quarry_mq.server.delivery.model import ErrorSink, MessageSource
from quarry_mq.server.delivery.retry_topics import (
    is_for,
    retry_topic_name,
    retry_topics,
    topic_beside,
    topic_of_retry,
)
from quarry_mq.server.tasks import TimeSlice, settle
from quarry_mq.store.errors import MessageGivenUp
from quarry_mq.store.message import Message, QueueId, QueueOffset
from quarry_mq.store.metadata import GroupTable, TopicTable
from quarry_mq.store.record import StoredMessage

log = structlog.get_logger(__name__)

MOVED_AT_ONCE: Final = 32

Consumed = Callable[[], Iterable[tuple[str, Sequence[str]]]]
"""Returns groups with connected consumers, and the topics that they subscribe to. A group may come more than once."""


class Consumers(NamedTuple):
    """The connected consumers of both protocols."""

    by_grpc: Consumed
    by_remoting: Consumed


Copy = Callable[[StoredMessage], Message | None]
"""Returns the copy of a retry for the other kind of consumers; None if no topic of it exists any more."""


class RetryMoves:
    """Moves retries between the retry topics of both protocols. Lives on the event loop's thread."""

    def __init__(
        self,
        messages: MessageSource,
        delivery: Delivery,
        copies: Copies,
        *,
        topics: TopicTable,
        groups: GroupTable,
        consumers: Consumers,
        clock: Clock,
        error_reporter: ErrorSink,
    ) -> None:
        self._messages = messages
        self._delivery = delivery
        self._copies = copies
        self._topics = topics
        self._groups = groups
        self._consumers = consumers
        self._clock = clock
        self._error_reporter = error_reporter

    async def run(self, interval_s: float) -> None:
        """Look for retries to move every few seconds, for ever."""
        while True:
            await asyncio.sleep(interval_s)
            await self.sweep()

    async def sweep(self) -> None:
        """Move the retries of all groups with consumers of one kind that lie where the other kind reads."""
        time_slice = TimeSlice(self._clock)
        by_grpc, by_remoting = _topics_of(self._consumers.by_grpc()), _topics_of(self._consumers.by_remoting())
        for group, topics in by_grpc.items():
            await time_slice.pause()
            if group not in by_remoting:
                await self._move(group, names.retry_topic_name(group), self._copy_for_grpc(group, topics), time_slice)
        for group, topics in by_remoting.items():
            for topic in () if group in by_grpc else topics:
                await time_slice.pause()
                for each in retry_topics(group, topic):
                    await self._move(group, each.name, self._copy_for_remoting(group, topic), time_slice)

    def _copy_for_grpc(self, group: str, topics: Mapping[str, None]) -> Copy:
        def copy(record: StoredMessage) -> Message | None:
            topic = topic_of_retry(record.topic, record.properties) or next(iter(topics), None)
            if topic is None or self._topics.get(topic) is None:
                return None
            name = retry_topic_name(group, topic)
            return retry_of(record, name, group=group, topic=topic, store_host=self._copies.store_host())

        return copy

    def _copy_for_remoting(self, group: str, topic: str) -> Copy:
        def copy(record: StoredMessage) -> Message | None:
            name = names.retry_topic_name(group)
            return retry_of(record, name, group=group, topic=topic, store_host=self._copies.store_host())

        return copy

    async def _move(self, group: str, name: str, copy: Copy, time_slice: TimeSlice) -> None:
        """Move what is not done in a retry topic of the group."""
        source = self._topics.stored(name)
        for number in range(0 if source is None else source.queue_count):
            queue = QueueId(name, number)
            try:
                while await self._move_some(group, queue, copy):
                    await time_slice.pause()
            except Exception as error:  # noqa: BLE001 - other groups go on, and this one is tried again
                self._error_reporter.report(error, group=group, topic=name)

    async def _move_some(self, group: str, queue: QueueId, copy: Copy) -> bool:
        """Move a few messages; return whether there may be more."""
        offsets = list(islice(self._not_done(group, queue), MOVED_AT_ONCE))
        if not offsets:
            return False
        copied: list[Message] = []
        for offset in offsets:
            record = self._record(queue, offset)
            if record is not None and is_for(group, queue.topic, record.properties):
                copied += [each for each in (copy(record),) if each is not None]
        for name in {each.topic for each in copied}:
            make_internal_topic(self._topics, name)
        if copied:
            await self._store(copied)
        if self._groups.get(group) is None or self._topics.stored(queue.topic) is None:
            return False  # deleted meanwhile, with its progress
        if (owner := topic_beside(group, queue.topic)) is not None:
            self._delivery.attach_retries(group, owner)  # else it would be read under its own name from now on
        self._delivery.end_below(group, queue, QueueOffset(offsets[-1] + 1))
        return True

    def _not_done(self, group: str, queue: QueueId) -> Iterator[QueueOffset]:
        """Yield the offsets of what the group has not done: what is in flight, then what was never delivered."""
        self._delivery.writer.write_now()  # from here on the table of messages in flight is read
        bounds, next_offset = self._messages.bounds(queue), self._delivery.next_offset(group, queue)
        next_offset = bounds.minimum if next_offset is None else next_offset
        at = self._delivery.first_in_flight(group, queue, bounds.minimum)
        while at is not None and at < next_offset:
            yield at
            at = self._delivery.first_in_flight(group, queue, QueueOffset(at + 1))
        yield from map(QueueOffset, range(max(next_offset, bounds.minimum), bounds.maximum))

    def _record(self, queue: QueueId, offset: QueueOffset) -> StoredMessage | None:
        """Return a message; None if it is gone or given up. Raises StoreDamaged."""
        entries = self._messages.entries(queue, offset, 1)
        if not entries or entries[0].queue_offset != offset:
            return None
        try:
            return self._messages.read(entries[0])
        except MessageGivenUp as error:
            self._error_reporter.report(error, topic=queue.topic)
            return None

    async def _store(self, copies: Sequence[Message]) -> None:
        """Store the copies together, or one by one if one of them can never be stored: that one is left out."""
        try:
            await self._stored(copies)
        except Exception as error:
            if not is_final(error):
                raise
            if len(copies) > 1:
                for each in copies:
                    await self._store((each,))
            else:
                log.error("a retry cannot be moved: its group gets it no more", topic=copies[0].topic, error=str(error))

    async def _stored(self, copies: Sequence[Message]) -> None:
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._copies.move(copies, lambda _appended, error: settle(done, None, error))
        await done


def _topics_of(consumed: Iterable[tuple[str, Sequence[str]]]) -> dict[str, dict[str, None]]:
    """Return the topics of each group, without retry topics."""
    found: dict[str, dict[str, None]] = {}
    for group, topics in consumed:
        own = (each for each in topics if not each.startswith(names.RETRY_PREFIX))
        found.setdefault(group, {}).update(dict.fromkeys(own))
    return found
