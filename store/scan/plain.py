"""The plain scan decodes one record after the other: it is slow, and the reference for faster ones."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from quarry_mq.store.commitlog import CommitLogReader, SegmentList
from quarry_mq.store.consumequeue.dispatch import OffsetAssignment, dispatch_request, is_queued
from quarry_mq.store.message import DispatchRequest
from quarry_mq.store.offsets import PhysicalOffset
from quarry_mq.store.record import Blank, Decoded, StoredMessage
from quarry_mq.store.scan.found import FoundRecords

RUN_RECORDS: Final = 1024  # entries per write batch: enough to amortise it, few enough to stay in cache


def scan_records(
    segments: SegmentList,
    start: PhysicalOffset,
    *,
    dispatch_from: PhysicalOffset,
    assignment: OffsetAssignment,
    from_device: bool,
) -> Iterator[FoundRecords]:
    """Scan as `LogScan` says."""
    reader = CommitLogReader(segments)
    log = _reread(segments, reader, start) if from_device else reader.scan(start)
    requests: list[DispatchRequest] = []
    end, records, dispatched, last_stored_ms = start, 0, 0, None
    stopped_by = None
    for found in log:
        match found:
            case StoredMessage():
                end = PhysicalOffset(found.physical_offset + found.size)
                records += 1
                last_stored_ms = found.store_timestamp_ms
                if found.physical_offset >= dispatch_from:
                    dispatched += 1
                    if is_queued(found.system_flag):
                        requests.append(dispatch_request(found, assignment))
            case Blank():
                end = PhysicalOffset(found.physical_offset + found.size)
            case _:
                stopped_by = found
        if records == RUN_RECORDS:
            yield FoundRecords(end, records, dispatched, requests, last_stored_ms)
            requests = []
            records, dispatched, last_stored_ms = 0, 0, None
    yield FoundRecords(end, records, dispatched, requests, last_stored_ms, stopped_by)


def _reread(segments: SegmentList, reader: CommitLogReader, start: PhysicalOffset) -> Iterator[Decoded]:
    """Yield the records from `start` as they are on the device."""
    if start < segments.end_of_files:
        _reload(segments, start)
    for found in reader.scan(start):
        yield found
        if isinstance(found, Blank) and (following := found.physical_offset + found.size) < segments.end_of_files:
            _reload(segments, PhysicalOffset(following))


def _reload(segments: SegmentList, start: PhysicalOffset) -> None:
    path = segments.path_of(start)
    segments.disk.drop_cached(path)
    segments.disk.fetch(path, start - segments.base_of(start), segments.segment_size)
