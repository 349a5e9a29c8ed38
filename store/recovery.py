"""What a store does before it opens: find the log's end, bring derived data up to it.

Everything but the commit log is a function of the commit log. So recovery trusts the log record by record,
and derived data only as far as its own watermark says.

How the log is read is not its business: pass 2 takes `store.scan.FoundRecords`, runs of whole records, from any
`store.scan.LogScan` (`scan_records` decodes one record after the other).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from store.commitlog import CommitLogReader, CutReport, SegmentList, cut
from store.consumequeue import RocksConsumeQueues
from store.dispatch import DenseNumbering, LightQueueNumbering, dispatch_request, is_queued
from store.errors import StoreDamaged
from store.message import DispatchRequest
from store.offsets import PhysicalOffset
from store.record import Blank, Decoded, StoredMessage
from store.scan import RUN_RECORDS, LogScan, scan_records

FLUSH_EVERY_BYTES: Final = 256 << 20  # how much log a killed recovery reads again at most


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a long piece of work is, in bytes of commit log."""

    phase: str
    done_bytes: int
    total_bytes: int

    @property
    def percent(self) -> int:
        return 100 if self.total_bytes <= 0 else min(100, 100 * self.done_bytes // self.total_bytes)


ReportProgress = Callable[[Progress], None]


@dataclass(frozen=True, slots=True)
class RecoveryReport:
    """What recovery found and did."""

    start: PhysicalOffset
    end: PhysicalOffset
    records: int
    dispatched: int
    last_stored_ms: int | None
    """Store time of the last record that was read; None when none was."""
    stopped_by: Decoded | None
    """What ended the log; None when it fills its last segment."""
    removed: CutReport | None
    queues_were_ahead: bool


def recover(
    segments: SegmentList,
    queues: RocksConsumeQueues,
    numbering: LightQueueNumbering,
    *,
    scan: LogScan = scan_records,
    flushed_up_to: PhysicalOffset | None,
    clean_shutdown: bool,
    report: ReportProgress,
) -> RecoveryReport:
    """Make log and queues agree. Killed at any point, it goes on where its last flush was.

    `flushed_up_to` is an offset below which the log is known to be durable; after a clean stop that is all
    the queues know of. Damage below it raises StoreDamaged and changes nothing; above it the log is cut after
    the last good record, and the cut bytes are kept.
    """
    # pass 1: where to begin. Below the watermark everything is dispatched; below `flushed_up_to` all is whole.
    dispatched = queues.dispatched_up_to()
    watermark = segments.minimum if dispatched is None else PhysicalOffset(max(dispatched, segments.minimum))
    start = _start(segments, watermark, flushed_up_to, clean_shutdown=clean_shutdown)

    # pass 2: read forward, every record checked; dispatch what lies at or above the watermark
    records = dispatched_count = 0
    end, flushed_end, stopped_by, last_stored_ms = start, start, None, None
    runs = scan(segments, start, dispatch_from=watermark, numbering=numbering, from_device=not clean_shutdown)
    for run in runs:
        if run.end > watermark:
            queues.put(run.requests, run.end)
        records += run.records
        dispatched_count += run.dispatched
        end, stopped_by = run.end, run.stopped_by
        last_stored_ms = run.last_stored_ms or last_stored_ms
        report(Progress("recovering", end - start, segments.end_of_files - start))
        if end - flushed_end >= FLUSH_EVERY_BYTES:
            queues.flush()
            flushed_end = end

    # pass 3: what was promised must be whole. A clean stop flushes the log before it ends.
    promised = max(flushed_up_to or 0, dispatched or 0) if clean_shutdown else flushed_up_to or 0
    if end < promised:
        raise StoreDamaged(
            segments.path_of(end) if len(segments) else segments.directory,
            f"the log breaks at offset {end}, but everything below {promised} was durable: "
            f"{stopped_by or 'its files end there'}",
        )

    # pass 4: cut what follows the last good record, in the log and in the queues
    removed = cut(segments, end)
    queues_were_ahead = dispatched is not None and dispatched > end
    if queues_were_ahead:
        queues.truncate(end)
    queues.flush()
    return RecoveryReport(start, end, records, dispatched_count, last_stored_ms, stopped_by, removed, queues_were_ahead)


def _start(
    segments: SegmentList,
    watermark: PhysicalOffset,
    flushed_up_to: PhysicalOffset | None,
    *,
    clean_shutdown: bool,
) -> PhysicalOffset:
    if watermark > segments.end_of_files:
        # the queues know records that the log has lost: read the last segment as a whole
        watermark = segments.end_of_files
        flushed_up_to, clean_shutdown = None, False
    if clean_shutdown:
        return watermark
    if flushed_up_to is not None and flushed_up_to >= segments.minimum:
        return min(watermark, flushed_up_to)
    return segments.base_of(watermark)


def backfill(
    reader: CommitLogReader,
    queues: RocksConsumeQueues,
    *,
    start: PhysicalOffset,
    end: PhysicalOffset,
    save_position: Callable[[PhysicalOffset], None],
    report: ReportProgress,
) -> None:
    """Add the entries of log range [start, end) that a double-write store has only in its file queues.

    Double write begins on a running broker, so RocksDB holds the entries from then on only. Repeating it is
    harmless; `save_position` is called with offsets below which it is complete and durable. Raises StoreDamaged.
    """
    numbering = DenseNumbering(queues)
    pending: list[DispatchRequest] = []
    at = saved = start
    for found in reader.scan(start, check_crc=False):
        if found.physical_offset >= end:
            break
        if not isinstance(found, StoredMessage | Blank):
            at = found.physical_offset
            raise StoreDamaged(reader.path_of(at), f"the log breaks at offset {at}, but goes on to {end}: {found}")
        at = PhysicalOffset(found.physical_offset + found.size)
        if isinstance(found, StoredMessage) and is_queued(found.system_flag):
            pending.append(dispatch_request(found, numbering))
        if len(pending) >= RUN_RECORDS:
            queues.put_missing(pending)
            pending = []
            report(Progress("completing the queues of a double-write store", at - start, end - start))
            if at - saved >= FLUSH_EVERY_BYTES:
                queues.flush()
                save_position(at)
                saved = at
    queues.put_missing(pending)
    queues.flush()
    save_position(end)
