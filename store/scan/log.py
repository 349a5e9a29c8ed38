"""The scan of a log: it reads the batches of one segment after the other, with read-ahead in a thread.

The thread loads bytes of a segment into memory before the scan needs them.

Recovery scans in bulk: it gets batches, and their dispatch requests as columns.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future, ThreadPoolExecutor, wait
from contextlib import suppress
from threading import get_ident
from typing import Final

import numpy as np

from quarry_mq.store.commitlog import SegmentList
from quarry_mq.store.consumequeue.dispatch import OffsetAssignment
from quarry_mq.store.errors import OffsetOutOfRange
from quarry_mq.store.fs import PAGE_BYTES
from quarry_mq.store.message import PhysicalOffset
from quarry_mq.store.record import Blank
from quarry_mq.store.scan.columns import Bytes, RecordBatch
from quarry_mq.store.scan.dispatch import ScannedRequests
from quarry_mq.store.scan.fields import FoundRecords
from quarry_mq.store.scan.segment import scan_segment

PORTION_BYTES: Final = 4 << 20
AHEAD_BYTES: Final = 32 << 20
"""Bytes that the thread gets ahead of the scan at most. It begins with zero: most starts have little to read."""


class ReadAhead:
    """The read-ahead loads the bytes of one segment from `begin` on, portion by portion.

    `load(begin, end)` is called in the executor for each portion, in order; `await_bytes` raises what it raised.
    """

    def __init__(self, executor: Executor, load: Callable[[int, int], None], begin: int, end: int) -> None:
        self._executor = executor
        self._load = load
        self._asked_up_to = begin
        self._loaded_up_to = begin
        self._end = end
        self._ahead = 0
        self._loading: deque[tuple[int, Future[None]]] = deque()
        self._loads_in: int | None = None

    def await_bytes(self, position: int) -> None:
        """Wait until the bytes below the position are loaded."""
        if position <= self._loaded_up_to:
            return
        while self._asked_up_to < min(position + self._ahead, self._end):
            end = min(self._asked_up_to + PORTION_BYTES, self._end)
            self._loading.append((end, self._executor.submit(self._load_portion, self._asked_up_to, end)))
            self._asked_up_to = end
        self._ahead = min(2 * self._ahead + PORTION_BYTES, AHEAD_BYTES)
        while self._loaded_up_to < position:
            end, loading = self._loading.popleft()
            loading.result()
            self._loaded_up_to = end

    def settle(self) -> None:
        """Wait until no load is running; to be called when the executor takes no new work any more.

        The garbage collector may end an abandoned scan in any thread: one that is just being started, which holds the
        lock that joining a thread takes, or the executor's own. So this waits for loads and never for the thread, and
        in the executor's thread it does not wait at all.
        """
        if get_ident() != self._loads_in:
            wait([loading for _, loading in self._loading if not loading.cancelled()])

    def _load_portion(self, begin: int, end: int) -> None:
        self._loads_in = get_ident()
        self._load(begin, end)


def map_pages(octets: Bytes, begin: int, end: int) -> None:
    """Bring the pages of a part of a mapping into memory. Lets other threads run meanwhile."""
    if begin < end:
        octets[begin:end:PAGE_BYTES].max()


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
    on may be mapped when the scan gets to it. Raises OSError for bytes that cannot be read, OffsetOutOfRange outside
    [minimum, end_of_files].
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
        # read by position first: what the device does not give is an error there. A segment that has expired meanwhile
        # has no path any more, and was read before
        with suppress(FileNotFoundError):
            disk.fetch(path, begin, end)
        map_pages(octets, begin, end)

    return view, ReadAhead(executor, load, start - segments.base_of(start), len(view))


def scan_in_bulk(
    segments: SegmentList,
    start: PhysicalOffset,
    *,
    dispatch_from: PhysicalOffset,
    assignment: OffsetAssignment,
    from_device: bool,
) -> Iterator[FoundRecords]:
    """Scan as `LogScan` says. The results equal those of `scan_records` except for where runs end."""
    for batch in scan_log(segments, start, from_device=from_device):
        yield found_in(batch, dispatch_from, assignment)


def found_in(batch: RecordBatch, dispatch_from: PhysicalOffset, assignment: OffsetAssignment) -> FoundRecords:
    """Return one batch as a run."""
    columns = batch.columns
    first = int(np.searchsorted(columns.physical_offset, dispatch_from))
    return FoundRecords(
        batch.end,
        len(batch),
        len(batch) - first,
        ScannedRequests(batch, slice(first, None), assignment),
        int(columns.store_timestamp_ms[-1]) if len(batch) else None,
        None if isinstance(batch.ended_by, Blank) else batch.ended_by,
    )
