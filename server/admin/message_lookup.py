"""Find one message, tell which topics it belongs to, and trace what has become of it for each group.

A message is found by its offset id, by its queue and offset, or by the id that its sender gave it. No trace is written:
the record says in which queues it is, and a group's rows, its offset and its dead letters say the rest.

The broker's internal topics hold copies of other topics' messages: scheduled, retried, or dead letters. A user without
the right to read a topic may not read its copies either, wherever they lie.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from enum import Enum
from itertools import islice
from typing import Final, NamedTuple, Protocol

from quarry_mq.protocol.clock import Clock
from quarry_mq.protocol.messages.property_names import DEAD_LETTER_TOPIC, REAL_TOPIC, RETRY_TOPIC, UNIQUE_KEY
from quarry_mq.protocol.names import (
    CHECKED_TOO_OFTEN_TOPIC,
    DEAD_LETTER_PREFIX,
    HALF_TOPIC,
    RETRY_PREFIX,
    SCHEDULE_TOPIC,
    dead_letter_topic_name,
    is_system_topic,
)
from quarry_mq.server.delivery import Delivery, InFlightTable, StateWriter
from quarry_mq.server.delivery.retry_topics import topic_of_retry
from quarry_mq.server.errors import NoIndex, NoSuchMessage
from quarry_mq.server.maintenance.key_index import FOUND_MAX, KeyIndex
from quarry_mq.server.tasks import TimeSlice
from quarry_mq.store.commitlog import CommitLogReader
from quarry_mq.store.consumequeue import ConsumeQueueEntry
from quarry_mq.store.consumequeue.dispatch import LIGHT_QUEUE_NUMBER, StoredAssignment, light_queues
from quarry_mq.store.consumequeue.search import TimeBoundary
from quarry_mq.store.errors import BrokerError, Invalid, MessageGivenUp, OffsetOutOfRange, StoreDamaged
from quarry_mq.store.index import TIME_MAX_MS, Unread
from quarry_mq.store.message import PhysicalOffset, QueueBounds, QueueId, QueueOffset
from quarry_mq.store.opening.open_store import OpenStore
from quarry_mq.store.pending.rows import TIMER_TOPIC
from quarry_mq.store.record import Corrupt, StoredMessage, Torn, offset_message_id, parse_offset_message_id
from quarry_mq.store.record.replacement import REPLACED_TOPIC
from quarry_mq.store.state.in_flight_key import subscription_prefix

INTERNAL_PREFIX: Final = "%"
"""The first character of the names of retry topics, dead letter topics and light queues."""

WAITING_TOPICS: Final = frozenset({TIMER_TOPIC, SCHEDULE_TOPIC, HALF_TOPIC, CHECKED_TOO_OFTEN_TOPIC})
"""Topics whose messages were all sent to another topic."""


def has_copies(topic: str) -> bool:
    """Return whether a topic or light queue of this name may hold messages of other topics."""
    return topic.startswith(INTERNAL_PREFIX) or is_system_topic(topic)


def topics_of(record: StoredMessage) -> frozenset[str] | None:
    """Return the topic that holds the message and those that it was sent to; None if they cannot be determined."""
    if not has_copies(record.topic):
        return frozenset((record.topic,))
    properties = record.properties
    found: set[str] = set()
    left: list[str] = [record.topic]
    while left:
        name = left.pop()
        if name in found:
            continue
        found.add(name)
        if not has_copies(name):
            continue
        origin = _origin(name, properties)
        if origin is None:
            return None
        if origin:
            left.append(origin)
    return frozenset(found)


def _origin(name: str, properties: Mapping[str, str]) -> str | None:
    """Return the topic that a copy in this topic was sent to; "" if there is none, None if it cannot be determined."""
    if name.startswith(DEAD_LETTER_PREFIX):
        return properties.get(DEAD_LETTER_TOPIC) or properties.get(RETRY_TOPIC)
    if name.startswith(RETRY_PREFIX):
        return topic_of_retry(name, properties)
    if name in WAITING_TOPICS:
        return properties.get(REAL_TOPIC)
    return properties.get(REAL_TOPIC, "")


MaySee = Callable[[StoredMessage], bool]
"""Return whether the reader may see a message. A message it may not see is treated as missing."""

NO_SUCH_ID: Final = "id: there is no message with this id"


def _everything(_message: StoredMessage) -> bool:
    return True


class LookedUpStore(Protocol):
    """The part of the message store that lookups use."""

    @property
    def reader(self) -> CommitLogReader: ...

    @property
    def dispatched_up_to(self) -> PhysicalOffset: ...

    def bounds(self, queue: QueueId) -> QueueBounds: ...

    def entries(self, queue: QueueId, start: QueueOffset, limit: int) -> list[ConsumeQueueEntry]: ...

    def read(self, entry: ConsumeQueueEntry) -> StoredMessage: ...

    def existing_record_at(self, at: PhysicalOffset) -> StoredMessage:
        """Return the record at a log position. Raises OffsetOutOfRange for one that was deleted with its topic."""


class SearchedStore(Protocol):
    """The part of the message store that the search for dead letters uses."""

    def bounds(self, queue: QueueId) -> QueueBounds: ...

    def offset_at_time(self, queue: QueueId, time_ms: int, boundary: TimeBoundary) -> QueueOffset: ...

    def entries(self, queue: QueueId, start: QueueOffset, limit: int) -> list[ConsumeQueueEntry]: ...

    def read(self, entry: ConsumeQueueEntry) -> StoredMessage: ...


class LookedUp(NamedTuple):
    """The message, and how many messages have the same id if it is the sender's id: this one is the newest.

    The `unread` index files may refer to newer ones.
    """

    message: StoredMessage
    same_id: int = 1
    unread: Sequence[Unread] = ()


class MessageLookup:
    """Finds single messages. Lives on the event loop's thread.

    Every method raises StoreDamaged, and MessageGivenUp for a message that was damaged and has been given up.
    """

    def __init__(self, store: LookedUpStore, index: KeyIndex) -> None:
        self._store = store
        self._index = index

    async def by_id(self, topic: str | None, message_id: str, may_see: MaySee = _everything) -> LookedUp:
        """Find a message by its offset id, within the topic if one is given, or by the id that its sender gave it.

        Clients of RocketMQ 4 make ids that look like offset ids: if no record lies at that position, a client's id is
        meant. Raises NoSuchMessage, Invalid if a topic has to be given, NoIndex, OSError, Unavailable.
        """
        try:
            return LookedUp(self._by_offset_id(topic, message_id, may_see))
        except Invalid as error:
            is_offset_id = isinstance(error, NoSuchMessage)
            if topic is None and not is_offset_id:
                raise Invalid("topic: must be given unless the id is an offset id") from None
            if topic is None:
                raise
            not_there = str(error)
        try:
            return await self._by_own_id(topic, message_id, may_see)
        except (NoIndex, NoSuchMessage):
            if is_offset_id:
                raise NoSuchMessage(not_there) from None
            raise

    def by_place(self, queue: QueueId, offset: QueueOffset, may_see: MaySee = _everything) -> StoredMessage:
        """Return the message at an offset of a queue. Raises NoSuchMessage, Invalid."""
        for field, value in (("queue", queue.number), ("offset", offset)):
            if value < 0:
                raise Invalid(f"{field}: {value} is less than 0")
        minimum, maximum = self._store.bounds(queue)
        if not minimum <= offset < maximum:
            holds = f"offsets {minimum} to {maximum - 1}" if minimum < maximum else "no messages"
            raise NoSuchMessage(f"offset: queue {queue.number} of topic {queue.topic} has {holds}, not {offset}")
        entry = self._entry(queue, offset)
        message = None if entry is None else self._store.read(entry)
        if message is None or not may_see(message):
            raise NoSuchMessage(f"offset: queue {queue.number} of topic {queue.topic} has nothing at {offset}")
        return message

    @property
    def visible_up_to(self) -> PhysicalOffset:
        """Return the offset of the log below which all messages are visible."""
        return self._store.dispatched_up_to

    def raw(self, message: StoredMessage) -> bytes:
        """Return the bytes of the message as they are in the log."""
        return bytes(self._store.reader.read(message.physical_offset, message.size))

    async def _by_own_id(self, topic: str, message_id: str, may_see: MaySee) -> LookedUp:
        found = await self._index.find(topic, message_id, begin_ms=0, end_ms=TIME_MAX_MS, limit=FOUND_MAX)
        # the index stores ids and keys under the same name
        same = [each for each in found.messages if each.properties.get(UNIQUE_KEY) == message_id and may_see(each)]
        if not same:
            names = ", ".join(each.name for each in found.unread[:3])
            reason = f"; these index files could not be read: {names}" if names else ""
            raise NoSuchMessage(f"id: topic {topic} has no message with this id{reason}")
        return LookedUp(same[0], len(same), found.unread)

    def _by_offset_id(self, topic: str | None, message_id: str, may_see: MaySee) -> StoredMessage:
        """Find a message by its offset id. Raises NoSuchMessage, Invalid for a text that is no offset id."""
        _, at = parse_offset_message_id(message_id)
        record = self._decoded(at, check_crc=False)
        if offset_message_id(record.store_host, at) != message_id.upper() or topic not in (None, record.topic):
            raise NoSuchMessage(NO_SUCH_ID)
        if not may_see(record):
            raise NoSuchMessage(NO_SUCH_ID)
        entry = self._entry(QueueId(record.topic, record.queue_number), record.queue_offset)
        if entry is None:
            return self._without_queue(at)
        if entry.physical_offset != at:
            raise NoSuchMessage(NO_SUCH_ID)  # a body may hold what looks like a record
        return self._store.read(entry)

    def _without_queue(self, at: PhysicalOffset) -> StoredMessage:
        """Return a record whose queue has no entry for it. Raises NoSuchMessage if it was deleted."""
        self._decoded(at, check_crc=True)
        try:
            return self._store.existing_record_at(at)
        except OffsetOutOfRange as error:
            raise NoSuchMessage(f"{NO_SUCH_ID}: {error}") from error

    def _decoded(self, at: PhysicalOffset, *, check_crc: bool) -> StoredMessage:
        """Return the record at a log position. If none begins there, that is NoSuchMessage, not damage."""
        if at >= self._store.dispatched_up_to:
            raise NoSuchMessage(NO_SUCH_ID)  # a crash can still take it back
        log = self._store.reader
        try:
            found = log.decode(at, check_crc=check_crc)
        except OffsetOutOfRange as error:
            raise NoSuchMessage(f"{NO_SUCH_ID}: {error}") from error
        if isinstance(found, StoredMessage) and found.topic != REPLACED_TOPIC:
            return found
        if log.is_replaced(at):
            raise NoSuchMessage(f"{NO_SUCH_ID}: the record at offset {at} was damaged and has been given up")
        reason = found.reason if isinstance(found, Torn | Corrupt) else "there is none"
        raise NoSuchMessage(f"{NO_SUCH_ID}, or its record is damaged: no valid record begins at offset {at}: {reason}")

    def _entry(self, queue: QueueId, offset: QueueOffset) -> ConsumeQueueEntry | None:
        entries = self._store.entries(queue, offset, 1)
        return entries[0] if entries and entries[0].queue_offset == offset else None


GROUPS_MAX: Final = 1_000
"""Groups that are traced in one queue."""
DEAD_LETTERS_SEARCHED: Final = 1_000
"""Dead letters of a group that are read for one message."""
SEARCHED_BYTES: Final = 16 * 1024 * 1024


class MessageState(Enum):
    """The state of a message of a queue for a group."""

    WAITING = "not delivered yet"
    IN_FLIGHT = "in flight: a client has the message"
    RETRYING = "delivered and not acknowledged: the next receive gets the message"
    DONE = "acknowledged, or skipped by the group's filter or by a new position of the group"
    DEAD_LETTERED = "moved to the dead letters"
    DONE_OR_DEAD_LETTERED = "done or dead-lettered: not all dead letters of the group were searched"


class LastDelivery(NamedTuple):
    """The last delivery of a message in flight: to which client, and until when the message is hidden."""

    client_id: str
    visible_at_ms: int


class GroupTrace(NamedTuple):
    """The state for one group. `attempts` is None if the broker does not keep how often it delivered the message."""

    group: str
    state: MessageState
    attempts: int | None = None
    last_delivery: LastDelivery | None = None
    dead_letter_offset: QueueOffset | None = None


class QueueTrace(NamedTuple):
    """The state of a message in one queue. `is_there`: the queue still has it. At most `GROUPS_MAX` groups, by name."""

    queue: QueueId
    offset: QueueOffset
    is_there: bool
    groups: list[GroupTrace]


class DeadLetterSearch:
    """Finds the dead letter that was made of a message. Lives on the event loop's thread.

    A dead letter has the id and the birth time of its message. It is found in the key index if there is one, and
    otherwise by reading the group's dead letters from the store time of the message on, within bounds.
    """

    def __init__(self, store: SearchedStore, index: KeyIndex, clock: Clock) -> None:
        self._store = store
        self._index = index
        self._clock = clock

    async def judged(self, done: GroupTrace, record: StoredMessage) -> GroupTrace:
        """Return the trace of a message that the group is done with, which may be a dead letter."""
        queue = QueueId(dead_letter_topic_name(done.group), 0)
        bounds = self._store.bounds(queue)
        if bounds.minimum >= bounds.maximum:
            return done
        is_complete = True
        letter = await self._indexed(queue, record)
        if letter is None:
            letter, is_complete = await self._read(queue, record)
        if letter is not None:
            return done._replace(
                state=MessageState.DEAD_LETTERED,
                attempts=letter.reconsume_times,
                dead_letter_offset=letter.queue_offset,
            )
        return done if is_complete else done._replace(state=MessageState.DONE_OR_DEAD_LETTERED)

    async def _indexed(self, queue: QueueId, record: StoredMessage) -> StoredMessage | None:
        try:
            found = await self._index.find(
                queue.topic, _own_id(record), begin_ms=0, end_ms=TIME_MAX_MS, limit=DEAD_LETTERS_SEARCHED
            )
        except (NoIndex, BrokerError, OSError):  # the dead letters themselves say the same
            return None
        return next((each for each in found.messages if _is_copy(each, record)), None)

    async def _read(self, queue: QueueId, record: StoredMessage) -> tuple[StoredMessage | None, bool]:
        """Return the newest dead letter of the message, and whether all that may be it were read."""
        time_slice = TimeSlice(self._clock)
        try:
            start = self._store.offset_at_time(queue, record.store_timestamp_ms, TimeBoundary.LOWER)
            entries = self._store.entries(queue, start, DEAD_LETTERS_SEARCHED + 1)
        except StoreDamaged:
            return None, False
        found, size, is_complete = None, 0, len(entries) <= DEAD_LETTERS_SEARCHED
        for entry in entries[:DEAD_LETTERS_SEARCHED]:
            await time_slice.pause()
            size += entry.size
            if size > SEARCHED_BYTES:
                return found, False
            try:
                letter = self._store.read(entry)
            except (StoreDamaged, MessageGivenUp, OffsetOutOfRange):
                is_complete = False
                continue
            if _is_copy(letter, record):
                found = letter
        return found, is_complete


def _is_copy(letter: StoredMessage, record: StoredMessage) -> bool:
    is_same_birth = letter.born_timestamp_ms == record.born_timestamp_ms
    return is_same_birth and letter.properties.get(UNIQUE_KEY) == _own_id(record)


def _own_id(record: StoredMessage) -> str:
    return record.properties.get(UNIQUE_KEY) or offset_message_id(record.store_host, record.physical_offset)


class MessageTracer:
    """Traces messages. Lives on the event loop's thread."""

    def __init__(
        self, store: OpenStore, delivery: Delivery, writer: StateWriter, clock: Clock, dead_letters: DeadLetterSearch
    ) -> None:
        self._store = store
        self._delivery = delivery
        self._writer = writer
        self._clock = clock
        self._dead_letters = dead_letters
        self._in_flight = InFlightTable(store.state_engine)

    async def trace(self, record: StoredMessage) -> list[QueueTrace]:
        """Trace the message in its queue, then in its light queues."""
        self._writer.write_now()  # from here on the rows are complete
        return [await self._queue(record, queue, offset) for queue, offset in _queues_of(record)]

    async def _queue(self, record: StoredMessage, queue: QueueId, offset: QueueOffset) -> QueueTrace:
        bounds = self._store.messages.bounds(queue)
        groups = islice(sorted(self._store.offsets.groups_of(queue.topic)), GROUPS_MAX)
        traced = [each for group in groups if (each := self._group(group, queue, offset)) is not None]
        traced = [
            await self._dead_letters.judged(each, record) if each.state is MessageState.DONE else each
            for each in traced
        ]
        return QueueTrace(queue, offset, bounds.minimum <= offset < bounds.maximum, traced)

    def _group(self, group: str, queue: QueueId, offset: QueueOffset) -> GroupTrace | None:
        """Return the state for a group; None if it has not read this queue."""
        next_offset = self._delivery.next_offset(group, queue)
        if next_offset is None:
            return None
        row = self._in_flight.get(subscription_prefix(group, queue.topic), queue.number, offset)
        if row is None:
            is_done = offset < next_offset
            return GroupTrace(group, MessageState.DONE) if is_done else GroupTrace(group, MessageState.WAITING, 0)
        is_hidden = row.visible_at_ms > self._clock.wall_ms()
        state = MessageState.IN_FLIGHT if is_hidden else MessageState.RETRYING
        return GroupTrace(group, state, row.attempt, LastDelivery(row.client_id, row.visible_at_ms))


def _queues_of(record: StoredMessage) -> Iterator[tuple[QueueId, QueueOffset]]:
    yield QueueId(record.topic, record.queue_number), record.queue_offset
    for name, offset in light_queues(record.topic, record.properties, record.physical_offset, StoredAssignment()):
        yield QueueId(name, LIGHT_QUEUE_NUMBER), offset
