"""What an operator may do with a group's dead letters: look at them, and send them to the group once more.

A dead letter that is sent again is copied into the group's retry topic (`server.delivery.retry_topics`), so that only
this group gets it, with the topic it came from and with attempts counted anew. It stays where it is. How far they were
sent again is kept as the offset of a group of the broker's own in the topic for dead letters.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from itertools import islice
from typing import Final, NamedTuple

import structlog

from server.copying import copy_of
from server.dead_letters import ORIGIN_MESSAGE_ID, ORIGIN_TOPIC, copied_properties, make_internal_topic
from server.delivery import MessageSource, StateWriter, retry_topic_name
from server.delivery.retry_topics import RETRY_TOPIC
from server.errors import TooMuchForOneCall
from server.group_commit import Stored, settle
from store.dispatch import TRANSACTION_MASK
from store.errors import Invalid, TopicNotFound
from store.message import Host, Message
from store.metadata import ConsumerOffsetTable, TopicTable
from store.metadata.names import DEAD_LETTER_PREFIX, SYSTEM_GROUP_PREFIX
from store.offsets import QueueId, QueueOffset
from store.record import StoredMessage, offset_message_id
from store.record.properties import KEYS, TAGS, UNIQUE_KEY

log = structlog.get_logger(__name__)

RESENDER: Final = SYSTEM_GROUP_PREFIX + "RESENT_DEAD_LETTERS"
LISTED_MAX: Final = 1_000
RESENT_MAX: Final = 1_000
"""Dead letters that one call sends; a job sends any number."""
SENT_AT_ONCE: Final = 32
ENTRIES_AT_ONCE: Final = 256


class DeadLetter(NamedTuple):
    """One of them. `topic` is where it came from; None where the record does not tell."""

    offset: QueueOffset
    message_id: str
    topic: str | None
    tag: str
    keys: tuple[str, ...]
    attempts: int
    stored_at_ms: int
    was_resent: bool


class DeadLetterList(NamedTuple):
    """Some dead letters, the bounds of their queue, and the first that was never sent again."""

    letters: list[DeadLetter]
    minimum: QueueOffset
    maximum: QueueOffset
    next_offset: QueueOffset


class Refused(NamedTuple):
    offset: QueueOffset
    reason: str


@dataclass
class Resent:
    """What a call has sent, and what it left where it is."""

    count: int = 0
    refused: list[Refused] = field(default_factory=list)

    def add(self, portion: Portion) -> None:
        self.count += portion.sent
        self.refused += portion.refused


class Portion(NamedTuple):
    """Some dead letters that were looked at: how many were sent, which were not, and what comes behind the last one."""

    looked_at: int
    sent: int
    refused: list[Refused]
    following: QueueOffset


class DeadLetterBox:
    """The dead letters of all groups. Everything runs on the event loop's thread."""

    def __init__(
        self,
        topics: TopicTable,
        *,
        source: MessageSource,
        offsets: ConsumerOffsetTable,
        writer: StateWriter,
        send: Callable[[Sequence[Message], Stored], None],
        store_host: Callable[[], Host],
    ) -> None:
        self._topics = topics
        self._source = source
        self._offsets = offsets
        self._writer = writer
        self._send = send
        self._store_host = store_host
        self._sending: set[str] = set()

    def list(self, group: str, start: QueueOffset | None, count: int) -> DeadLetterList:
        """At most `count` from an offset on. Raises TopicNotFound when the group has none, Invalid, StoreDamaged."""
        if not 0 < count <= LISTED_MAX:
            raise Invalid(f"count {count}: must be 1 to {LISTED_MAX}")
        queue = self._queue(group)
        bounds, following = self._source.bounds(queue), self._next_offset(queue)
        begin = following if start is None else start
        letters = [
            _letter(offset, record, was_resent=offset < following)
            for offset, record in islice(self._records(queue, begin), count)
        ]
        return DeadLetterList(letters, bounds.minimum, bounds.maximum, following)

    def waiting(self, group: str) -> int:
        """How many were never sent again. Raises kv.KvError."""
        queue = QueueId(DEAD_LETTER_PREFIX + group, 0)
        if self._topics.get(queue.topic) is None:
            return 0
        bounds = self._source.bounds(queue)
        return bounds.maximum - min(max(bounds.minimum, self._next_offset(queue)), bounds.maximum)

    async def resend(self, group: str, offsets: Sequence[QueueOffset] = (), *, dry_run: bool = False) -> Resent:
        """Send these, or all that never were, to the group.

        Raises TooMuchForOneCall, and as `portions`.
        """
        self.require_few(group, offsets)
        result = Resent()
        async with aclosing(self.portions(group, offsets, dry_run=dry_run)) as portions:
            async for portion in portions:
                result.add(portion)
        if not dry_run:
            self._writer.write_durably()
            log.info("dead letters sent again", group=group, count=result.count, refused=len(result.refused))
        return result

    def require_few(self, group: str, offsets: Sequence[QueueOffset]) -> None:
        """Whether a single call may send them. Raises TooMuchForOneCall, TopicNotFound."""
        count = len(offsets) or self.end_of(group) - self.next_offset(group)
        if count > RESENT_MAX:
            raise TooMuchForOneCall(
                f"group {group} has {count} dead letters to be sent again, and a call sends {RESENT_MAX}: begin a job"
            )

    async def portions(
        self,
        group: str,
        offsets: Sequence[QueueOffset] = (),
        *,
        start: QueueOffset | None = None,
        end: QueueOffset | None = None,
        dry_run: bool = False,
    ) -> AsyncGenerator[Portion, None]:
        """Send these to the group, some at a time, or those from `start` to `end`; if not given all that never were.

        How far it is, is staged for the next write when a portion is yielded. To be closed by who leaves it early.

        Raises TopicNotFound when it has no dead letters, Invalid for an offset that is none or while the same is under
        way, StoreDamaged for a record that cannot be read, and what refuses the sending.
        """
        queue = self._queue(group)
        if group in self._sending:
            raise Invalid(f"the dead letters of group {group} are being sent again already")
        self._sending.add(group)
        try:
            start = self._next_offset(queue) if start is None else start
            records = self._chosen(queue, offsets) if offsets else self._records(queue, start, end)
            while some := list(islice(records, SENT_AT_ONCE)):
                portion = await self._resend(group, some, dry_run=dry_run)
                if not offsets and not dry_run:
                    self._offsets.stage(self._writer.batch(), RESENDER, queue, portion.following)
                yield portion
        finally:
            self._sending.discard(group)

    def next_offset(self, group: str) -> QueueOffset:
        """The first dead letter that was never sent again. Raises TopicNotFound."""
        return self._next_offset(self._queue(group))

    def end_of(self, group: str) -> QueueOffset:
        """Behind the last dead letter that there is now. Raises TopicNotFound."""
        return self._source.bounds(self._queue(group)).maximum

    async def _resend(self, group: str, some: Sequence[tuple[QueueOffset, StoredMessage]], *, dry_run: bool) -> Portion:
        messages: list[Message] = []
        refused: list[Refused] = []
        for offset, record in some:
            topic = _origin(record)
            if topic is None:
                refused.append(Refused(offset, "the record does not tell which topic it came from"))
            elif self._topics.get(topic) is None:
                refused.append(Refused(offset, f"topic {topic}, which it came from, does not exist"))
            else:
                messages.append(_copy(group, topic, record, self._store_host()))
        if messages and not dry_run:
            for name in {message.topic for message in messages}:
                make_internal_topic(self._topics, name)
            await self._stored(messages)
        return Portion(len(some), len(messages), refused, QueueOffset(some[-1][0] + 1))

    async def _stored(self, messages: Sequence[Message]) -> None:
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._send(messages, lambda _appended, error: settle(done, error))
        await done

    # -- reading

    def _queue(self, group: str) -> QueueId:
        name = DEAD_LETTER_PREFIX + group
        if self._topics.get(name) is None:
            raise TopicNotFound(f"group {group} has no dead letters: there is no topic {name}")
        return QueueId(name, 0)

    def _next_offset(self, queue: QueueId) -> QueueOffset:
        stored = self._offsets.get(RESENDER, queue)
        return self._source.bounds(queue).minimum if stored is None else stored

    def _records(
        self, queue: QueueId, start: QueueOffset, end: QueueOffset | None = None
    ) -> Iterator[tuple[QueueOffset, StoredMessage]]:
        """From an offset on to where the queue ends now: what comes meanwhile waits for the next call."""
        end = self._source.bounds(queue).maximum if end is None else end
        while start < end:
            entries = self._source.entries(queue, start, min(ENTRIES_AT_ONCE, end - start))
            if not entries:
                return
            for entry in entries:
                yield entry.queue_offset, self._source.read(entry)
            start = QueueOffset(entries[-1].queue_offset + 1)

    def _chosen(self, queue: QueueId, offsets: Sequence[QueueOffset]) -> Iterator[tuple[QueueOffset, StoredMessage]]:
        for offset in offsets:
            entries = self._source.entries(queue, offset, 1)
            if not entries or entries[0].queue_offset != offset:
                raise Invalid(f"offset {offset}: topic {queue.topic} has no message there")
            yield offset, self._source.read(entries[0])


def _origin(record: StoredMessage) -> str | None:
    return record.properties.get(ORIGIN_TOPIC) or record.properties.get(RETRY_TOPIC)


def _letter(offset: QueueOffset, record: StoredMessage, *, was_resent: bool) -> DeadLetter:
    properties = record.properties
    return DeadLetter(
        offset,
        properties.get(UNIQUE_KEY) or offset_message_id(record.store_host, record.physical_offset),
        _origin(record),
        properties.get(TAGS, ""),
        tuple(key for key in properties.get(KEYS, "").split(" ") if key),
        record.reconsume_times,
        record.store_timestamp_ms,
        was_resent,
    )


def _copy(group: str, topic: str, record: StoredMessage, store_host: Host) -> Message:
    properties = copied_properties(record)
    for name in (ORIGIN_TOPIC, ORIGIN_MESSAGE_ID):
        properties.pop(name, None)
    copy = copy_of(
        record,
        topic=retry_topic_name(group, topic),
        queue_number=0,
        properties={**properties, RETRY_TOPIC: topic},
        store_host=store_host,
    )
    return copy._replace(system_flag=record.system_flag & ~TRANSACTION_MASK, reconsume_times=0)
