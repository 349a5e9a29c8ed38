"""The module is the façade that servers call: append messages, make them durable, dispatch them, read them.

A message passes three watermarks, in this order (docs/ARCHITECTURE.md):

    appended    the record is in the mapped segment: it survives the death of the process
    flushed     fdatasync has returned: the record survives power loss
    dispatched  its consume queue entries exist: consumers can see it

Under `sync` durability dispatch follows the flush, so a consumer never sees a message that a crash can take back
(rmq#8239). Under `async` dispatch follows the append.

Threads: one thread appends, dispatches and reads metadata. `flush` and `flush_entries` may run on another thread at the
same time; `flush_queues` may too, but `dispatch` must not run during it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from quarry_mq.kv import KvError
from quarry_mq.protocol.messages.property_names import LIGHT_QUEUE_OFFSETS, LIGHT_QUEUES
from quarry_mq.protocol.messages.system_flag import TRANSACTION_MASK
from quarry_mq.protocol.names import LIGHT_QUEUE_PREFIX
from quarry_mq.store.commitlog import BegunFlush, CommitLogFlusher, CommitLogReader, CommitLogWriter
from quarry_mq.store.commitlog.reader import RECORD_BYTES
from quarry_mq.store.commitlog.segments import StoreTimes
from quarry_mq.store.commitlog.writer import encode_batch, native_batch_encoder
from quarry_mq.store.consumequeue import ConsumeQueueEntry, LastEntry, LightQueueStep, LiteParentsStep, QueueEnd
from quarry_mq.store.consumequeue.dispatch import LIGHT_QUEUE_NUMBER, is_queued, may_name_light_queues
from quarry_mq.store.consumequeue.queue_offsets import QueueOffsets
from quarry_mq.store.consumequeue.search import TimeBoundary, offset_at_time
from quarry_mq.store.errors import DiskRefused, MessageGivenUp, MessageTooLarge, OffsetOutOfRange, StoreDamaged
from quarry_mq.store.index import NO_INDEXES, KeyIndexes
from quarry_mq.store.message import (
    Appended,
    DispatchRequest,
    EncodedBatch,
    EncodedMessage,
    Message,
    MessageCopy,
    PhysicalOffset,
    QueueBounds,
    QueueExtent,
    QueueId,
    QueueOffset,
)
from quarry_mq.store.native import EncodeBatch, Native
from quarry_mq.store.pending import PendingMessages
from quarry_mq.store.record import (
    REPLACED_TOPIC,
    Corrupt,
    StoredMessage,
    Torn,
    encode_properties,
    encode_record,
    tags_code,
)
from quarry_mq.store.settings import COPY_GROWTH_MAX, StoreSettings
from quarry_mq.store.state.deletions import Deletions

_make: Final = tuple.__new__
"""`_make(Appended, (…))` is `Appended(…)` at half the price: a NamedTuple's constructor is Python code that does just
this. Nothing checks the fields, so use it only for objects that are made per message.
"""


class MessageStore:
    """A message store is one open store. `store.opening.open_store.open_store` recovers the store and then makes this
    object.
    """

    def __init__(
        self,
        settings: StoreSettings,
        *,
        times: StoreTimes,
        flusher: CommitLogFlusher[CommitLogWriter],
        reader: CommitLogReader,
        offsets: QueueOffsets,
        pending: PendingMessages,
        deletions: Deletions | None = None,
        indexes: KeyIndexes = NO_INDEXES,
    ) -> None:
        """Take over a log that is durable as a whole, and whose last store time `times` knows."""
        self._settings = settings
        self._writer = writer = flusher.writer
        self._flusher = flusher
        self._reader = reader
        self._pending = pending
        self._indexes = indexes
        self._deletions = deletions
        self._offsets = offsets
        self._queues = offsets.queues
        self._encode_batch: EncodeBatch = encode_batch
        in_segment = writer.record_size_max
        # an accepted message can be copied: the copy must fit into a segment, too
        self._record_size_max = min(settings.record_size_max, max(in_segment - COPY_GROWTH_MAX, in_segment // 2))
        self._dispatched_up_to = writer.end
        self._queues_durable_up_to = writer.end
        self._times = times
        self._begun_stored_ms = self._times.last_ms  # for when the begun flush has ended

    @property
    def pending(self) -> PendingMessages:
        """Return the index of pending messages (delayed and half messages)."""
        return self._pending

    @property
    def indexes(self) -> KeyIndexes:
        """Return the indexes that find messages by their keys."""
        return self._indexes

    @property
    def reader(self) -> CommitLogReader:
        """Return a reader of the log up to its appended end."""
        return self._reader

    # -- writing

    @property
    def appended_up_to(self) -> PhysicalOffset:
        return self._writer.end

    @property
    def flushed_up_to(self) -> PhysicalOffset:
        return self._flusher.flushed_up_to

    @property
    def flushed_stored_ms(self) -> int:
        """Return a store time such that all records with an earlier one are durable; 0 when none is known."""
        return self._times.flushed_ms

    @property
    def dispatched_up_to(self) -> PhysicalOffset:
        return self._dispatched_up_to

    @property
    def last_stored_ms(self) -> int:
        """Return the store time of the last record, 0 if unknown. This time has passed, even if a clock was set back
        since.
        """
        return self._times.last_ms

    @property
    def queues_durable_up_to(self) -> PhysicalOffset:
        """Return the offset below which all records have durable consume queue entries and durable next
        queue offsets.
        """
        return self._queues_durable_up_to

    def append(self, messages: Sequence[Message]) -> list[Appended]:
        """Put the messages into the log, in order, all or none.

        Raises MessageTooLarge or Invalid naming the field, DiskRefused when the next segment cannot be made, and
        StorePoisoned after a failed write or flush. After an error the log's end and all offsets are as before.
        """
        writer = self._writer
        self._offsets.load_for(messages)
        now_ms = self._times.next_ms()
        next_offset = self._offsets.next_of
        with_crc, size_max = self._settings.record_crc, self._record_size_max
        assigned: dict[tuple[str, int], QueueOffset] = {}
        results: list[Appended] = []
        requests: list[DispatchRequest] = []
        try:
            for message in messages:
                topic, number = message.topic, message.queue_number
                properties, system_flag = message.properties, message.system_flag
                light_queues: tuple[tuple[str, QueueOffset], ...] = ()
                if LIGHT_QUEUES in properties:
                    properties, light_queues = self._assign_light_queues(message, assigned)
                queue = topic, number
                offset = assigned.get(queue)
                if offset is None:
                    offset = next_offset(queue)
                queued = not system_flag & TRANSACTION_MASK or is_queued(system_flag)
                stored_offset = offset if queued else QueueOffset(0)
                raw_properties = encode_properties(properties)
                at = writer.next
                record = encode_record(message, stored_offset, at, now_ms, raw_properties, crc_property=with_crc)
                size = len(record)
                if size > size_max and not isinstance(message, MessageCopy):
                    raise MessageTooLarge(f"record of {size} bytes for topic {topic}; at most {size_max}")
                if size > writer.room:
                    at = self._place(size)  # a record holds its own offset, so it is encoded again
                    record = encode_record(message, stored_offset, at, now_ms, raw_properties, crc_property=with_crc)
                writer.add(record)
                if queued:
                    assigned[queue] = QueueOffset(offset + 1)
                    code = tags_code(topic, properties, now_ms)
                    requests.append(
                        _make(
                            DispatchRequest,
                            (topic, number, offset, at, size, code, now_ms, system_flag, properties, light_queues),
                        )
                    )
                results.append(_make(Appended, (offset, at, size, now_ms)))
            writer.commit()
        except BaseException:
            self._discard_batch()
            raise
        self._times.last_ms = now_ms
        self._offsets.appended(assigned, requests)
        return results

    def append_encoded(self, messages: list[EncodedMessage]) -> list[Appended]:
        """Append messages that are encoded already, as `append` does; this costs a third of the time."""
        writer, now_ms = self._writer, self._times.next_ms()
        try:
            records, requests, appended, assigned = self._encoded(messages, writer.next, now_ms)
            self._check_sizes(len(records), requests)
            if len(records) <= writer.room:
                writer.add(records)
            else:
                requests, appended = self._add_apart(messages, requests, now_ms)
            writer.commit()
        except BaseException:
            self._discard_batch()
            raise
        self._offsets.appended(assigned, requests)
        self._times.last_ms = now_ms
        return appended

    def _encoded(self, messages: list[EncodedMessage], at: PhysicalOffset, now_ms: int) -> EncodedBatch:
        known, with_crc = self._offsets.next, self._settings.record_crc
        made = self._encode_batch(messages, known, at, now_ms, with_crc)
        if isinstance(made, list):
            self._offsets.load(made)
            made = self._encode_batch(messages, known, at, now_ms, with_crc)
            assert isinstance(made, tuple), "the next offsets are loaded"
        return made

    def _add_apart(
        self, messages: list[EncodedMessage], requests: list[DispatchRequest], now_ms: int
    ) -> tuple[list[DispatchRequest], list[Appended]]:
        """Add records that do not fit into the segment together. A record holds its own offset, so each is encoded
        again.
        """
        placed: list[DispatchRequest] = []
        appended: list[Appended] = []
        for message, request in zip(messages, requests, strict=True):
            at = self._place(request.size)
            next_offsets = {(request.topic, request.queue_number): request.queue_offset}
            made = self._encode_batch([message], next_offsets, at, now_ms, self._settings.record_crc)
            assert isinstance(made, tuple), "the offset of a light queue is assigned by the store"
            record, requests_of_one, appended_of_one, _ = made
            self._writer.add(record)
            placed += requests_of_one
            appended += appended_of_one
        return placed, appended

    def _check_sizes(self, of_all: int, requests: list[DispatchRequest]) -> None:
        """Raise MessageTooLarge if a record is too large. The sum of all sizes is compared first: it is hardly ever too
        large.
        """
        size_max = self._record_size_max
        if of_all > size_max and (largest := max([request.size for request in requests])) > size_max:
            raise MessageTooLarge(f"record of {largest} bytes; at most {size_max}")

    def _place(self, size: int) -> PhysicalOffset:
        """Return the offset of the next record as `CommitLogWriter.place` does; an error of the disk becomes
        DiskRefused.
        """
        try:
            return self._writer.place(size)
        except OSError as error:
            raise DiskRefused(f"the commit log cannot grow: {error}") from error

    def _discard_batch(self) -> None:
        """Discard the batch that failed: log and next offsets are as before."""
        self._writer.discard()
        self._offsets.evict()  # in case no dispatch follows, which would do it

    def _assign_light_queues(
        self, message: Message, assigned: dict[tuple[str, int], QueueOffset]
    ) -> tuple[dict[str, str], tuple[tuple[str, QueueOffset], ...]]:
        """Give the record its offset in each light queue that it names; a name that is given twice gets one entry."""
        properties = dict(message.properties)
        if not may_name_light_queues(message.topic):
            return properties, ()
        properties.pop("WAIT", None)
        offsets: dict[str, QueueOffset] = {}
        names = properties[LIGHT_QUEUES].split(",")
        for name in names:
            if name in offsets or not name.startswith(LIGHT_QUEUE_PREFIX):
                continue
            queue = QueueId(name, LIGHT_QUEUE_NUMBER)
            offset = assigned.get(queue)
            if offset is None:
                offset = self._offsets.next_of(queue)
            offsets[name] = offset
            assigned[queue] = QueueOffset(offset + 1)
        properties[LIGHT_QUEUE_OFFSETS] = ",".join(str(offsets[name]) if name in offsets else "" for name in names)
        return properties, tuple(offsets.items())

    def flush(self) -> PhysicalOffset:
        """Make everything appended so far durable; return the offset up to which the log is durable.

        Raises StorePoisoned, and every later call does so, too.
        """
        stored_ms = self._times.last_ms  # before the flush: all records that have this time by now will be durable
        flushed = self._flusher.flush()
        self._times.flushed(stored_ms)
        return flushed

    def begin_flush(self) -> BegunFlush | None:
        """Begin a flush as `CommitLogFlusher.begin` does; `end_flush` has to follow."""
        begun = self._flusher.begin()
        if begun is not None:
            self._begun_stored_ms = self._times.last_ms
        return begun

    def end_flush(self, begun: BegunFlush, error: OSError | None) -> None:
        """End a flush that was begun. Raises StorePoisoned if the fdatasync failed, and every later
        flush does so, too.
        """
        self._flusher.end(begun, error)
        self._times.flushed(self._begun_stored_ms)

    def dispatch(self, up_to: PhysicalOffset) -> list[DispatchRequest]:
        """Make the records below `up_to` visible, all their entries in one atomic batch.

        Returns the requests that were dispatched, so that the caller can wake exactly the consumers that wait for them.
        """
        requests = self._offsets.undispatched_below(up_to)
        # not the end of the last request: records that no queue holds may follow
        end = min(up_to, self._writer.end)
        if end <= self._dispatched_up_to:
            return []
        queued = self._offsets.undeleted(requests)
        self._queues.put(queued, end)
        self._pending.put(requests, end)
        for index in self._indexes.followers:
            index.hand_over(requests, end)
        self._offsets.dispatched(requests)
        self._dispatched_up_to = end
        return queued

    def flush_entries(self) -> None:
        """Flush the entries: the long part of `flush_queues`, which may run at the same time as `dispatch`."""
        self._queues.flush_entries()

    def flush_queues(self) -> None:
        """Make the dispatched entries and then the watermark durable. `dispatch` must not run meanwhile."""
        if self._deletions is not None:
            self._deletions.settle()
        self._queues.flush()
        self._pending.flush()
        self._queues_durable_up_to = self._dispatched_up_to

    # -- reading

    def bounds(self, queue: QueueId) -> QueueBounds:
        return self._offsets.bounds(queue)

    def extents_of_all(self, queues: Sequence[QueueId]) -> list[QueueExtent]:
        """Return the extents of these distinct queues; this is cheaper than asking for each queue alone."""
        return self._offsets.extents_of_all(queues)

    def maximum(self, queue: QueueId) -> QueueOffset:
        """Return the max offset of a queue. Unlike `bounds` this needs no search for the first entry that the log still
        has.
        """
        return self._offsets.maximum(queue)

    def entries(self, queue: QueueId, start: QueueOffset, limit: int) -> list[ConsumeQueueEntry]:
        return self._queues.entries(queue, start, limit)

    def last_entry_below(self, queue: QueueId, at: PhysicalOffset) -> ConsumeQueueEntry | None:
        """Return the entry with the largest physical offset below `at`; None when the queue has no such entry in the
        log.
        """
        return self._queues.last_entry_below(queue, at)

    def ends(self, topic: str, after: int, limit: int) -> list[QueueEnd]:
        """Return the last positions of the next queues of a topic, by queue number; see `ConsumeQueueStore.ends`."""
        return self._queues.ends(topic, after, limit)

    def use(self, native: Native) -> None:
        """Encode and decode records with the native part from now on."""
        self._encode_batch = native_batch_encoder(native)
        self._reader.use(native)

    def read(self, entry: ConsumeQueueEntry) -> StoredMessage:
        """Return the record of an entry, with every CRC checked: this costs 1 µs, and no consumer can detect a wrong
        bit.

        Raises StoreDamaged when the log does not hold a whole record there, MessageGivenUp when an operator gave the
        record up.
        """
        try:
            return self._record(entry.physical_offset, entry)
        except OffsetOutOfRange as error:
            raise StoreDamaged(
                self._settings.root / "commitlog",
                f"consume queue entry {entry.queue_offset} points at offset {entry.physical_offset}: {error}",
            ) from error

    def read_all(self, entries: list[ConsumeQueueEntry]) -> list[StoredMessage] | None:
        """Return the records of these entries as `read` does, at half of its cost; None if `read` would raise."""
        try:
            return self._reader.read_all(entries)
        except OffsetOutOfRange:
            return None

    def raw_records(self, entries: list[ConsumeQueueEntry]) -> bytes | None:
        """Return the records of these entries as they lie in the log, with every CRC checked, at a tenth of the cost of
        reading each; None if they have to be read one by one.
        """
        try:
            return self._reader.join(entries)
        except OffsetOutOfRange:
            return None

    def record_at(self, at: PhysicalOffset) -> StoredMessage:
        """Return the record at an offset, with every CRC checked.

        Raises OffsetOutOfRange when the log does not hold the offset (any more), StoreDamaged, MessageGivenUp.
        """
        return self._record(at)

    def existing_record_at(self, at: PhysicalOffset) -> StoredMessage:
        """Return the record at an offset that was not found through a queue.

        Unlike `record_at`, this raises OffsetOutOfRange also for a record that was deleted with its topic. May be
        called from any thread.
        """
        record = self._record(at)
        if self._deletions is not None and at < self._deletions.topic_deleted_at(record.topic):
            raise OffsetOutOfRange(f"the record at offset {at} was deleted together with its topic {record.topic}")
        return record

    def _record(self, at: PhysicalOffset, entry: ConsumeQueueEntry | None = None) -> StoredMessage:
        """Return the record that `entry` points at, or that of a pending message if `entry` is None."""
        size = RECORD_BYTES if entry is None else entry.size
        record = self._reader.decode(at, check_crc=True, size=size)
        if isinstance(record, StoredMessage) and record.topic != REPLACED_TOPIC:
            return record
        if self._reader.is_replaced(at):
            raise MessageGivenUp(
                f"{self._reader.path_of(at)}: the record at offset {at} was damaged and has been given up"
            )
        what = "a pending message" if entry is None else f"consume queue entry {entry.queue_offset}"
        reason = record.reason if isinstance(record, Torn | Corrupt) else "there is none"
        raise StoreDamaged(
            self._reader.path_of(at),
            f"the record at offset {at}, {what}, is damaged: {reason}",
            record_at=at,
        )

    def offset_at_time(self, queue: QueueId, time_ms: int, boundary: TimeBoundary) -> QueueOffset:
        """Return the queue offset for a wall time; see `store.consumequeue.search`. Raises StoreDamaged."""
        return offset_at_time(self._queues, lambda entry: self.read(entry).store_timestamp_ms, queue, time_ms, boundary)

    def may_have_queue(self, topic: str) -> bool:
        """Return whether a queue of this topic can exist in the store that now holds the queues."""
        return self._queues.may_have(topic)

    def queues_of(self, topic: str) -> list[QueueId]:
        """Return the queues of a topic that ever got a message, for a caller that is about to ask for their bounds."""
        return self._queues.queues_of(topic)

    def iterate_queues(self, topic: str | None = None) -> list[QueueId]:
        """Return the queues that ever got a message, of one topic or of all."""
        return list(self._queues.queues(topic))

    # -- deletion and end of life

    def topics_after(self, after: str, limit: int) -> list[str]:
        """Return the next topics after `behind`, in key order, that may have queues; start with "". May be called from
        any thread.
        """
        return self._queues.topics_after(after, limit)

    def delete_topic(self, topic: str) -> int:
        """Remove the topic's queues at once and return how many; its records leave with their segments.

        Raises kv.KvError; then nothing is removed, and what was appended still becomes visible.
        """
        queues, end = list(self._queues.queues(topic)), self._writer.end
        if self._deletions is None or not (queues or self.is_undispatched(topic)):
            self._offsets.delete_topic(topic, queues, end)
            return len(queues)
        before = self._deletions.topic_deleted_at(topic)
        self._deletions.topic_deleted(topic, end)
        try:
            self._offsets.delete_topic(topic, queues, end)
        except KvError:
            self._deletions.topic_deleted(topic, before)
            raise
        return len(queues)

    def drop_deletions(self, log_begin: PhysicalOffset) -> None:
        """Drop the notes on deletions below `log_begin`. May be called from any thread."""
        if self._deletions is not None:
            self._deletions.drop_below(log_begin)

    def is_undispatched(self, topic: str) -> bool:
        """Return whether the log holds messages of the topic that are not visible yet."""
        return self._offsets.is_undispatched(topic)

    def light_queues_ended(self, below: PhysicalOffset, key: bytes, prefix: str = LIGHT_QUEUE_PREFIX) -> LightQueueStep:
        """Scan the next chunk of light queues for those whose last entry lies below the offset; start with b"".

        May be called from any thread.
        """
        return self._queues.light_queues_ended(below, key, prefix)

    def lite_parents(self, key: bytes) -> LiteParentsStep:
        """Return the next chunk of the topics that have lite topics; start with b"". May be called from any thread."""
        return self._queues.lite_parents(key)

    def last_times_ms(self, found: Sequence[LastEntry]) -> list[int | None]:
        """Return when the last message of each light queue was stored, None where its entry is gone.

        May be called from any thread.
        """
        return self._queues.last_times_ms(found)

    def still_ended(self, found: Sequence[LastEntry]) -> list[LastEntry]:
        """Return the light queues among these to which no message was appended since they were found."""
        return self._offsets.still_ended(found)

    def remove_ended(self, found: Sequence[LastEntry]) -> None:
        """Remove those light queues that are `still_ended`. Raises kv.KvError."""
        if self._deletions is not None and found:
            self._deletions.light_queues_removed([each.queue.topic for each in found], self._writer.end)
        self._offsets.remove_ended(found)
