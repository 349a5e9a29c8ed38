"""The module reads the commit log for verification: after damage it continues at the next whole record."""

from __future__ import annotations

from collections.abc import Iterator

from quarry_mq.store.consumequeue import ConsumeQueueEntry, EntryColumns
from quarry_mq.store.consumequeue.dispatch import StoredAssignment, dispatch_request, is_queued
from quarry_mq.store.errors import OffsetOutOfRange
from quarry_mq.store.message import PhysicalOffset, QueueId, QueueOffset
from quarry_mq.store.offline import OfflineStore
from quarry_mq.store.record import Blank, Corrupt, EndOfData, StoredMessage, Torn
from quarry_mq.store.scan import Ending, RecordBatch, ScannedRequests, next_readable, scan_log

_ASSIGNMENT = StoredAssignment()


def walk(
    store: OfflineStore, start: PhysicalOffset, end: PhysicalOffset | None = None
) -> Iterator[StoredMessage | Blank | Torn | Corrupt]:
    """Yield what the log holds from a record's start at `start` up to `end`; damage is yielded and reading continues
    after it.

    The next record is found by what it states of itself (`store.scan.next_readable`).
    """
    segments = store.segments
    at = start
    while at < segments.end_of_files:
        for found in store.records(at):
            if end is not None and found.physical_offset >= end:
                return
            if isinstance(found, EndOfData):
                return
            yield found
            if isinstance(found, Torn | Corrupt):
                break
        else:
            return
        at = after_damage(store, found.physical_offset)


def after_damage(store: OfflineStore, at: PhysicalOffset) -> PhysicalOffset:
    """Return where to continue after the damage at an offset: at the next segment if no nearer place is known."""
    segments = store.segments
    return next_readable(segments, at) or PhysicalOffset(segments.base_of(at) + segments.segment_size)


def scan(store: OfflineStore) -> Iterator[RecordBatch | Torn | Corrupt]:
    """Scan from the log's beginning, thousands of records at a time. The verdicts equal those of `walk`; blanks are
    skipped.
    """
    segments = store.segments
    at, end = segments.minimum, segments.end_of_files
    if store.log_limit is not None:
        end = min(end, store.log_limit)
    while at < end:
        ended_by: Ending | None = None
        for batch in scan_log(segments, at, end):
            yield batch
            at, ended_by = batch.end, batch.ended_by
        if at >= end:
            return
        if isinstance(ended_by, EndOfData) and (after := store.first_byte_from(at)) is not None:
            ended_by = Torn(at, f"nothing was written here, but bytes follow at offset {after}")
        if not isinstance(ended_by, Torn | Corrupt):
            return
        yield ended_by
        at = after_damage(store, ended_by.physical_offset)


def requests_in(batch: RecordBatch) -> ScannedRequests:
    """Return the requests of those records of the batch that belong into queues."""
    return ScannedRequests(batch, slice(None), _ASSIGNMENT)


def entries_in(batch: RecordBatch) -> EntryColumns:
    """Return the entries that the records of the batch must have, as `entries_of` gives them for one."""
    return requests_in(batch).entries


def entries_of(record: StoredMessage) -> Iterator[tuple[QueueId, ConsumeQueueEntry]]:
    """Yield the entries that the record must have: one in its queue, one in each light queue it names."""
    if not is_queued(record.system_flag):
        return
    request = dispatch_request(record, _ASSIGNMENT)
    assert request is not None, "this assignment gives every record an entry"
    rest = (record.physical_offset, record.size, request.tags_code, record.store_timestamp_ms)
    yield QueueId(record.topic, record.queue_number), ConsumeQueueEntry(record.queue_offset, *rest)
    for name, offset in request.light_queues:
        yield QueueId(name, 0), ConsumeQueueEntry(QueueOffset(offset), *rest)


def whole_record_at(store: OfflineStore, at: PhysicalOffset) -> StoredMessage | str:
    """Return the record, or in words what else lies there."""
    try:
        found = store.decode(at)
    except OffsetOutOfRange as outside:
        return str(outside)
    match found:
        case StoredMessage():
            return found
        case Torn(reason=reason) | Corrupt(reason=reason):
            return reason
        case Blank():
            return "the blank at the end of a segment"
        case EndOfData():
            return "nothing was written there"
