"""The module scans a log: it reads the batches of one segment after the other, with read-ahead in a thread."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Executor, ThreadPoolExecutor

import numpy as np

from quarry_mq.store.commitlog import SegmentList
from quarry_mq.store.errors import OffsetOutOfRange
from quarry_mq.store.offsets import PhysicalOffset
from quarry_mq.store.record import Blank
from quarry_mq.store.scan.ahead import ReadAhead, map_pages
from quarry_mq.store.scan.columns import RecordBatch
from quarry_mq.store.scan.segment import scan_segment


def scan_log(
    segments: SegmentList,
    start: PhysicalOffset,
    end: PhysicalOffset | None = None,
    *,
    check_crc: bool = True,
    require_crc_property: bool = False,
    from_device: bool = False,
) -> Iterator[RecordBatch]:
    """Yield everything from `start`, the beginning of a record, in log order, with the verdicts of `scan_segment`.

    A batch that a blank ended ends its segment; any other ending ends the log, and no batch follows. With `end`,
    records that begin at or after it are not read; for a log that is being written, `end` must be at most what was
    committed. Memory is bounded, whatever the log's size. The caller may stop at any time (`close()` of the iterator).

    With `from_device` bytes come from the device and not from the cache (`Disk.drop_cached`): no segment from `start`
    on may be mapped when the scan gets to it, and bytes that cannot be read raise OSError. Raises OffsetOutOfRange
    outside [minimum, end_of_files].
    """
    if not segments.minimum <= start <= segments.end_of_files:
        raise OffsetOutOfRange(
            f"offset {start} is outside the commit log [{segments.minimum}, {segments.end_of_files}]"
        )
    end = segments.end_of_files if end is None else min(end, segments.end_of_files)
    return _scan(segments, start, end, (check_crc, require_crc_property), from_device=from_device)


def _scan(
    segments: SegmentList, start: PhysicalOffset, end: PhysicalOffset, checks: tuple[bool, bool], *, from_device: bool
) -> Iterator[RecordBatch]:
    check_crc, require_crc_property = checks
    executor = ThreadPoolExecutor(1, thread_name_prefix="scan-ahead")
    ahead = None
    try:
        while start < end:
            base = segments.base_of(start)
            view, ahead = _open(segments, executor, start, from_device=from_device)
            for batch in scan_segment(
                view,
                base,
                start - base,
                end=end - base,
                check_crc=check_crc,
                require_crc_property=require_crc_property,
                await_bytes=ahead.await_bytes,
            ):
                yield batch
                if batch.ended_by is not None and not isinstance(batch.ended_by, Blank):
                    return
            start = PhysicalOffset(base + segments.segment_size)
    finally:
        executor.shutdown(wait=False, cancel_futures=True)
        if ahead is not None:
            ahead.settle()


def _open(
    segments: SegmentList, executor: Executor, start: PhysicalOffset, *, from_device: bool
) -> tuple[memoryview, ReadAhead]:
    """Return the memory of the segment that holds `start`, and the read-ahead that loads its bytes."""
    disk, path = segments.disk, segments.path_of(start)
    if from_device:
        disk.drop_cached(path)
    view = segments.segment_at(start).view()
    octets = np.frombuffer(view, np.uint8)

    def load(begin: int, end: int) -> None:
        if from_device:
            disk.fetch(path, begin, end)
        map_pages(octets, begin, end)

    return view, ReadAhead(executor, load, start - segments.base_of(start), len(view))
