"""Find one message: by its offset id, by its queue and offset, or by the id that its sender gave it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, NamedTuple, Protocol

from quarry_mq.protocol.messages.property_names import UNIQUE_KEY
from quarry_mq.server.errors import NoIndex, NoSuchMessage
from quarry_mq.server.maintenance.key_index import FOUND_MAX, KeyIndex
from quarry_mq.store.commitlog import CommitLogReader
from quarry_mq.store.consumequeue import ConsumeQueueEntry
from quarry_mq.store.errors import Invalid, OffsetOutOfRange
from quarry_mq.store.index import TIME_MAX_MS, Unread
from quarry_mq.store.offsets import PhysicalOffset, QueueBounds, QueueId, QueueOffset
from quarry_mq.store.record import Corrupt, StoredMessage, Torn, offset_message_id, parse_offset_message_id
from quarry_mq.store.record.replacement import REPLACED_TOPIC

MaySee = Callable[[StoredMessage], bool]
"""Return whether the reader may see a message. A message it may not see is treated as missing."""

NO_SUCH_ID: Final = "id: there is no message with this id here"


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


class LookedUp(NamedTuple):
    """The message, and how many messages have the same id if it is the sender's id: this one is the newest.

    The `unread` index files may refer to newer ones.
    """

    message: StoredMessage
    same_id: int = 1
    unread: Sequence[Unread] = ()


class MessageLookup:
    """Finds single messages. Lives on the event loop's thread.

    Every method raises StoreDamaged, and MessageGivenUp for a message that was damaged and given up.
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
                raise Invalid("topic: it must be given with an id that is no offset id") from None
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
            raise NoSuchMessage(f"offset: queue {queue.number} of topic {queue.topic} holds {holds}, not {offset}")
        entry = self._entry(queue, offset)
        message = None if entry is None else self._store.read(entry)
        if message is None or not may_see(message):
            raise NoSuchMessage(f"offset: queue {queue.number} of topic {queue.topic} holds nothing at {offset}")
        return message

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
            raise NoSuchMessage(f"{NO_SUCH_ID}: what lay at offset {at} was damaged, and given up")
        reason = found.reason if isinstance(found, Torn | Corrupt) else "there is none"
        raise NoSuchMessage(f"{NO_SUCH_ID}, or its record is damaged: at offset {at} no whole one begins: {reason}")

    def _entry(self, queue: QueueId, offset: QueueOffset) -> ConsumeQueueEntry | None:
        entries = self._store.entries(queue, offset, 1)
        return entries[0] if entries and entries[0].queue_offset == offset else None
