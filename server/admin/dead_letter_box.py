"""Operations on a group's dead letters: list them, and send them to the group once more.

A dead letter that is sent again is copied into the group's retry topic (`server.delivery.retry_topics`), so that only
this group gets it, with the topic it came from and with attempts counted from the start. The dead letter stays where
it is. The progress of resending is kept as the offset of an internal group of the broker in the dead letter topic;
dead letters below it that were refused are in flight for that group, until their copies are stored.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Collection, Iterable, Iterator, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass, field
from enum import Enum, auto
from itertools import islice
from typing import Final, NamedTuple

import structlog

from quarry_mq.kv import KvError
from quarry_mq.protocol.messages.property_names import (
    DEAD_LETTER_TOPIC,
    KEYS,
    RETRY_TOPIC,
    TAGS,
    UNIQUE_KEY,
)
from quarry_mq.protocol.names import DEAD_LETTER_PREFIX, SYSTEM_GROUP_PREFIX, dead_letter_topic_name
from quarry_mq.server.append.group_commit import Stored
from quarry_mq.server.delivery import GIVE_UP_COMMAND, InFlightTable, MessageSource, StateWriter, retry_topic_name
from quarry_mq.server.delivery.dead_letters import make_internal_topic, retry_of
from quarry_mq.server.delivery.state.inflight import InFlight
from quarry_mq.server.errors import TooMuchForOneCall
from quarry_mq.server.tasks import settle
from quarry_mq.server.wire.status import without_places
from quarry_mq.store.consumequeue import ConsumeQueueEntry
from quarry_mq.store.errors import BrokerError, Invalid, MessageGivenUp, StoreDamaged, TopicNotFound, without_frames
from quarry_mq.store.message import Host, Message, QueueId, QueueOffset
from quarry_mq.store.metadata import ConsumerOffsetTable, TopicTable
from quarry_mq.store.record import StoredMessage, offset_message_id
from quarry_mq.store.state.in_flight_key import subscription_prefix

log = structlog.get_logger(__name__)

RESENDER: Final = SYSTEM_GROUP_PREFIX + "RESENT_DEAD_LETTERS"
LISTED_MAX: Final = 1_000
RESENT_MAX: Final = 1_000
"""Dead letters that one call sends; a job sends any number."""
SENT_AT_ONCE: Final = 32
ENTRIES_AT_ONCE: Final = 256
FIRST: Final = QueueOffset(0)
REFUSED_COUNTED_MAX: Final = 10_000
"""Refused dead letters that are counted for one group."""

REFUSED_SWEPT_MAX: Final = 1_000
GROUPS_MAX: Final = 65_536
"""Groups whose dead letters one sweep looks at."""

_REFUSED: Final = InFlight(visible_at_ms=0, delivery_id=0, lease_until_ms=0, attempt=1, client_id="")

_Read = StoredMessage | StoreDamaged | None
"""A record as it was read: None stands for one that an operator gave up."""
_Some = Sequence[tuple[QueueOffset, _Read]]


class DeadLetter(NamedTuple):
    """A dead letter. `topic` is where it came from; None if the record does not say."""

    offset: QueueOffset
    message_id: str
    topic: str | None
    tag: str
    keys: tuple[str, ...]
    attempts: int
    stored_at_ms: int
    was_resent: bool


class DeadLetterList(NamedTuple):
    """A list of dead letters, the bounds of their queue, and the first offset that was never sent again."""

    letters: list[DeadLetter]
    minimum: QueueOffset
    maximum: QueueOffset
    next_offset: QueueOffset
    damaged: list[DamagedLetter]


class DamagedLetter(NamedTuple):
    """A dead letter whose record is damaged, so that nothing of it is known."""

    offset: QueueOffset
    damage: StoreDamaged


class Refused(NamedTuple):
    """A dead letter that is not sent, and why; `damage` if its record is damaged."""

    offset: QueueOffset
    reason: str
    damage: StoreDamaged | None = None


@dataclass
class Resent:
    """The result of a resend: the number that was sent, and the dead letters that were refused."""

    count: int = 0
    refused: list[Refused] = field(default_factory=list)

    def add(self, portion: Portion) -> None:
        self.count += portion.sent
        self.refused += portion.refused


class Unsent(NamedTuple):
    """The dead letters of a group that were never sent again. `first_stored_ms` is when the first of them was stored;
    None if its record cannot be read. The number is a lower bound if very many of them were refused.
    """

    group: str
    letters: int
    first_stored_ms: int | None


class Portion(NamedTuple):
    """The result for some consecutive dead letters: the number sent, those refused, and the offset after the last.

    `is_again`: they were refused before.
    """

    looked_at: int
    sent: int
    refused: list[Refused]
    following: QueueOffset
    is_again: bool = False


class _Run(Enum):
    """The dead letters of a run: those named, those that were refused before, or those after the stored offset."""

    NAMED = auto()
    AGAIN = auto()
    NEW = auto()


class DeadLetterBox:
    """The dead letters of all groups. Everything runs on the event loop's thread."""

    def __init__(
        self,
        topics: TopicTable,
        *,
        source: MessageSource,
        offsets: ConsumerOffsetTable,
        inflight: InFlightTable,
        writer: StateWriter,
        send: Callable[[Sequence[Message], Stored], None],
        store_host: Callable[[], Host],
    ) -> None:
        """`send` tells when the messages are on the disk."""
        self._topics = topics
        self._source = source
        self._offsets = offsets
        self._inflight = inflight
        self._writer = writer
        self._send = send
        self._store_host = store_host
        self._sending: set[str] = set()

    def list(self, group: str, start: QueueOffset | None, count: int) -> DeadLetterList:
        """Return at most `count` from `start` on, damaged ones included; without `start`, those never sent again.

        Raises TopicNotFound when the group has none, Invalid.
        """
        if not 0 < count <= LISTED_MAX:
            raise Invalid(f"count {count}: must be 1 to {LISTED_MAX}")
        queue = self._queue(group)
        bounds, following = self._source.bounds(queue), self._next_offset(queue)
        records = self._unsent(queue) if start is None else self._records(queue, start)
        letters, damaged = [], []
        for offset, record in islice(records, count):
            if isinstance(record, StoreDamaged):
                damaged.append(DamagedLetter(offset, record))
            elif record is not None:
                was_resent = offset < following and not self._is_refused(queue, offset)
                letters.append(_letter(offset, record, was_resent=was_resent))
        return DeadLetterList(letters, bounds.minimum, bounds.maximum, next(self._refused(queue), following), damaged)

    def waiting(self, group: str) -> int | None:
        """Count the dead letters never sent again; None if too many were refused to count. Raises kv.KvError."""
        queue = QueueId(dead_letter_topic_name(group), 0)
        if self._topics.get(queue.topic) is None:
            return 0
        refused = sum(1 for _ in islice(self._refused(queue), REFUSED_COUNTED_MAX + 1))
        bounds = self._source.bounds(queue)
        new = bounds.maximum - min(max(bounds.minimum, self._next_offset(queue)), bounds.maximum)
        return None if refused > REFUSED_COUNTED_MAX else refused + new

    def unsent(self) -> Iterator[Unsent | None]:
        """Look at the dead letters of one group after another; None stands for a group that has none to be sent.

        At most `GROUPS_MAX` groups are looked at. Raises kv.KvError, OSError.
        """
        for topic in islice(self._topics.list(DEAD_LETTER_PREFIX), GROUPS_MAX):
            yield self._unsent_of(QueueId(topic.name, 0))

    def _unsent_of(self, queue: QueueId) -> Unsent | None:
        bounds = self._source.bounds(queue)
        new_from = QueueOffset(min(max(bounds.minimum, self._next_offset(queue)), bounds.maximum))
        refused = list(islice(self._refused(queue), REFUSED_SWEPT_MAX))
        count = len(refused) + bounds.maximum - new_from
        if not count:
            return None
        stored_ms = None
        with suppress(OSError, KvError, BrokerError):  # who lists or sends the dead letters gets the error
            for entry in self._source.entries(queue, refused[0] if refused else new_from, 1):
                stored_ms = self._source.read(entry).store_timestamp_ms
        return Unsent(queue.topic.removeprefix(DEAD_LETTER_PREFIX), count, stored_ms)

    async def resend(self, group: str, offsets: Sequence[QueueOffset] = (), *, dry_run: bool = False) -> Resent:
        """Send these dead letters to the group, or without `offsets` all that were never sent again.

        Raises TooMuchForOneCall, and as `portions`.
        """
        self.require_few(group, offsets)
        result = Resent()
        async with aclosing(self.portions(group, offsets, dry_run=dry_run)) as portions:
            async for portion in portions:
                if not dry_run:
                    self._write()
                result.add(portion)
        if not dry_run:
            self._writer.write_durably()
            log.info("dead letters sent again", group=group, count=result.count, refused=len(result.refused))
        return result

    def require_few(self, group: str, offsets: Collection[int]) -> None:
        """Check that a single call may send them. Raises TooMuchForOneCall, TopicNotFound."""
        count = len(offsets) or self.count(group, RESENT_MAX)
        if count > RESENT_MAX:
            raise TooMuchForOneCall(
                f"group {group} has {count} dead letters to be sent again, and one call sends at most {RESENT_MAX}: "
                "start a job instead"
            )

    def count(self, group: str, refused_max: int, refused_from: QueueOffset = FIRST) -> int:
        """Count the dead letters that were never sent again, with at most `refused_max` + 1 of those that were refused.

        Raises TopicNotFound.
        """
        queue = self._queue(group)
        refused = sum(1 for _ in islice(self._refused(queue, refused_from), refused_max + 1))
        return refused + max(0, self.end_of(group) - self.next_offset(group))

    async def portions(
        self,
        group: str,
        offsets: Sequence[QueueOffset] = (),
        *,
        refused_from: QueueOffset | None = FIRST,
        start: QueueOffset | None = None,
        end: QueueOffset | None = None,
        dry_run: bool = False,
    ) -> AsyncGenerator[Portion, None]:
        """Send these dead letters to the group, some at a time, or without `offsets` all that were never sent again.

        First come those that were refused, from `refused_from` on (None: leave them out), then those from `start` to
        `end`. The progress is staged for the next write when a portion is yielded. A caller that leaves early closes
        the generator.

        A dead letter whose record is damaged is refused; one that was given up counts as done.

        Raises TopicNotFound when the group has no dead letters, Invalid for an offset without a dead letter or while a
        resend for the group is under way, and what refuses the sending for now.
        """
        queue = self._queue(group)
        if group in self._sending:
            raise Invalid(f"the dead letters of group {group} are already being sent again")
        self._sending.add(group)
        try:
            if offsets:
                runs = [(_Run.NAMED, self._chosen(queue, offsets))]
            else:
                start = self._next_offset(queue) if start is None else start
                again = [] if refused_from is None else self._refused(queue, refused_from)
                runs = [(_Run.AGAIN, self._chosen(queue, again)), (_Run.NEW, self._records(queue, start, end))]
            for run, records in runs:
                while some := list(islice(records, SENT_AT_ONCE)):
                    portion = await self._resend(group, some, dry_run=dry_run)
                    if not dry_run:
                        self._stage(queue, run, some, portion)
                    yield portion._replace(is_again=run is _Run.AGAIN)
        finally:
            self._sending.discard(group)

    def _stage(self, queue: QueueId, run: _Run, some: _Some, portion: Portion) -> None:
        """Stage the result of a portion: which dead letters were refused, and the next offset."""
        batch, prefix = self._writer.batch(), subscription_prefix(RESENDER, queue.topic)
        refused = {each.offset for each in portion.refused}
        for offset, _ in some:
            if offset not in refused:
                if run is not _Run.NEW and self._is_refused(queue, offset):
                    self._inflight.delete(batch, prefix, queue.number, offset, _REFUSED)
            elif run is _Run.NEW:
                self._inflight.put(batch, prefix, queue.number, offset, _REFUSED)
        if run is _Run.NEW:
            self._offsets.stage(batch, RESENDER, queue, portion.following)

    def _write(self) -> None:
        """Write what was staged. Raises StorePoisoned, kv.EngineFull: then no later portion may be marked."""
        outcome: list[Exception | None] = []
        self._writer.when_written(outcome.append)
        self._writer.write_now()
        error = outcome.pop()
        try:
            if error is not None:
                raise error
        finally:
            del error  # it refers to this frame

    def next_offset(self, group: str) -> QueueOffset:
        """Return the first dead letter that was never sent again. Raises TopicNotFound."""
        return self._next_offset(self._queue(group))

    def end_of(self, group: str) -> QueueOffset:
        """Return the max offset of the group's dead letters. Raises TopicNotFound."""
        return self._source.bounds(self._queue(group)).maximum

    async def _resend(self, group: str, some: _Some, *, dry_run: bool) -> Portion:
        messages: list[tuple[QueueOffset, Message]] = []
        refused: list[Refused] = []
        for offset, record in some:
            if record is None:
                continue
            if isinstance(record, StoreDamaged):
                refused.append(_damaged(offset, record))
                continue
            topic = _origin(record)
            if topic is None:
                refused.append(Refused(offset, "the record does not say which topic the message came from"))
            elif self._topics.get(topic) is None:
                refused.append(Refused(offset, f"topic {topic}, from which the message came, does not exist"))
            else:
                messages.append((offset, self._copy(group, topic, record)))
        sent = len(messages)
        if messages and not dry_run:
            for name in {message.topic for _, message in messages}:
                make_internal_topic(self._topics, name)
            not_stored = await self._store(messages)
            sent -= len(not_stored)
            refused += not_stored
        return Portion(len(some), sent, refused, QueueOffset(some[-1][0] + 1))

    def _copy(self, group: str, topic: str, record: StoredMessage) -> Message:
        """Return the dead letter as a message for its group, with attempts counted from the start."""
        name = retry_topic_name(group, topic)
        copy = retry_of(record, name, group=group, topic=topic, store_host=self._store_host())
        return copy._replace(reconsume_times=0)

    async def _store(self, messages: Sequence[tuple[QueueOffset, Message]]) -> Sequence[Refused]:
        """Store the messages together, or one by one if one of them is invalid. Raises temporary errors."""
        try:
            await self._stored([message for _, message in messages])
        except Invalid:
            refused = []
            for offset, message in messages:
                try:
                    await self._stored([message])
                except Invalid as error:
                    refused.append(Refused(offset, str(error)))
            return refused
        return []

    async def _stored(self, messages: Sequence[Message]) -> None:
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._send(messages, lambda _appended, error: settle(done, None, error))
        await done

    # -- reading

    def _queue(self, group: str) -> QueueId:
        name = dead_letter_topic_name(group)
        if self._topics.get(name) is None:
            raise TopicNotFound(f"group {group} has no dead letters: there is no topic {name}")
        return QueueId(name, 0)

    def _next_offset(self, queue: QueueId) -> QueueOffset:
        stored = self._offsets.get(RESENDER, queue)
        return self._source.bounds(queue).minimum if stored is None else stored

    def _records(
        self, queue: QueueId, start: QueueOffset, end: QueueOffset | None = None
    ) -> Iterator[tuple[QueueOffset, _Read]]:
        """Read from an offset up to the present max offset; later dead letters wait for the next call."""
        end = self._source.bounds(queue).maximum if end is None else end
        while start < end:
            entries = self._source.entries(queue, start, min(ENTRIES_AT_ONCE, end - start))
            if not entries:
                return
            for entry in entries:
                yield entry.queue_offset, self._read(entry)
            start = QueueOffset(entries[-1].queue_offset + 1)

    def _unsent(self, queue: QueueId) -> Iterator[tuple[QueueOffset, _Read]]:
        """Read the dead letters that were never sent again, the refused ones first: these all have lower offsets."""
        yield from self._chosen(queue, self._refused(queue))
        yield from self._records(queue, self._next_offset(queue))

    def _refused(self, queue: QueueId, start: QueueOffset = FIRST) -> Iterator[QueueOffset]:
        """Yield the dead letters that were refused when they were sent, and have not expired; read a page at a time."""
        prefix = subscription_prefix(RESENDER, queue.topic)
        start = max(start, self._source.bounds(queue).minimum)
        while True:
            page = self._inflight.of_queue(prefix, queue.number, start, ENTRIES_AT_ONCE)
            yield from (offset for offset, _ in page)
            if len(page) < ENTRIES_AT_ONCE:
                return
            start = QueueOffset(page[-1][0] + 1)

    def _is_refused(self, queue: QueueId, offset: QueueOffset) -> bool:
        return self._inflight.get(subscription_prefix(RESENDER, queue.topic), queue.number, offset) is not None

    def _chosen(self, queue: QueueId, offsets: Iterable[QueueOffset]) -> Iterator[tuple[QueueOffset, _Read]]:
        for offset in offsets:
            entries = self._source.entries(queue, offset, 1)
            if not entries or entries[0].queue_offset != offset:
                raise Invalid(f"offset {offset}: topic {queue.topic} has no message there")
            yield offset, self._read(entries[0])

    def _read(self, entry: ConsumeQueueEntry) -> _Read:
        try:
            return self._source.read(entry)
        except StoreDamaged as damage:
            return without_frames(damage)
        except MessageGivenUp:
            return None


def _damaged(offset: QueueOffset, damage: StoreDamaged) -> Refused:
    reason = f"its record is damaged: {without_places(damage.place)}; to give it up, stop the broker: {GIVE_UP_COMMAND}"
    return Refused(offset, reason, damage)


def _origin(record: StoredMessage) -> str | None:
    return record.properties.get(DEAD_LETTER_TOPIC) or record.properties.get(RETRY_TOPIC)


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
