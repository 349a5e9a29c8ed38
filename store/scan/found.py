"""The module defines the runs that a scan of the log finds: the seam between reading the log and updating derived
data.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from quarry_mq.store.commitlog import SegmentList
from quarry_mq.store.consumequeue.dispatch import OffsetAssignment
from quarry_mq.store.message import DispatchRequest
from quarry_mq.store.offsets import PhysicalOffset
from quarry_mq.store.record import Corrupt, EndOfData, Torn


@dataclass(frozen=True, slots=True)
class FoundRecords:
    """A run is whole records that follow each other in the log, every check passed; blanks between them are skipped.

    One run begins where the one before ended. A run without records ends a segment, or is the last one.
    """

    end: PhysicalOffset
    """The offset of the next record: after the last record or blank of the run."""
    records: int
    dispatched: int
    """The number of records at or above the offset from which dispatch was asked for."""
    requests: Sequence[DispatchRequest]
    """The requests of those records that queues hold, in log order."""
    last_stored_ms: int | None
    """Store timestamp of the last record; None when the run has none."""
    stopped_by: EndOfData | Torn | Corrupt | None = None
    """The outcome that ended the log at `end`. The last run has it, unless a blank closes the last
    segment of the log.
    """


class LogScan(Protocol):
    """A log scan is one way of reading the log, as a generator function: it raises nothing before its first run is
    read.
    """

    def __call__(
        self,
        segments: SegmentList,
        start: PhysicalOffset,
        *,
        dispatch_from: PhysicalOffset,
        assignment: OffsetAssignment,
        from_device: bool,
    ) -> Iterator[FoundRecords]:
        """Yield the runs from `start`, the beginning of a record, in log order, up to what ends the log.

        Records below `dispatch_from` are checked and counted, those at or above it also make requests (`>=`: it is the
        exclusive end of what was dispatched). `numbering` may read the queues: the requests of a run are made when the
        run is asked for, which is after those of the run before were stored.

        With `from_device` bytes come from the device (`Disk.drop_cached`, `Disk.fetch`): a broker that died of a failed
        flush left pages in the cache that are not on the device and count as clean. If they were trusted, they would be
        reported as durable, and the next power cut would take them. Raises OSError for bytes that cannot be read.
        """
