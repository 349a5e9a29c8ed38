"""The module is the scan for recovery: bulk batches, and their dispatch requests as columns."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from quarry_mq.store.commitlog import SegmentList
from quarry_mq.store.consumequeue.dispatch import OffsetAssignment
from quarry_mq.store.offsets import PhysicalOffset
from quarry_mq.store.record import Blank
from quarry_mq.store.scan.columns import RecordBatch
from quarry_mq.store.scan.dispatch import ScannedRequests
from quarry_mq.store.scan.found import FoundRecords
from quarry_mq.store.scan.log import scan_log


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
