"""Recovery runs before a store opens: it finds the log's end and brings derived data up to it.

Everything but the commit log is a function of the commit log. So recovery trusts the log record by record, and derived
data only as far as its own watermark says.

Recovery does not depend on how the log is read: pass 2 takes `store.scan.FoundRecords`, runs of whole records, from any
`store.scan.LogScan` (`scan_in_bulk`, or `scan_records`, which decodes one record after the other).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Final, Protocol

from quarry_mq.protocol.clock import Progress, ReportProgress
from quarry_mq.store.commitlog import CutReport, SegmentList, cut
from quarry_mq.store.consumequeue import ConsumeQueueStore, RocksConsumeQueues
from quarry_mq.store.consumequeue.dispatch import DenseAssignment, OffsetAssignment
from quarry_mq.store.errors import StoreDamaged
from quarry_mq.store.message import PhysicalOffset
from quarry_mq.store.pending.messages import PendingMessages
from quarry_mq.store.record import Blank, Corrupt, EndOfData, Torn
from quarry_mq.store.recovery.verdict import Place, Stop, Verdict, judge, place_of
from quarry_mq.store.scan import FoundRecords, LogScan, RecordBatch, found_in, pending_requests, scan_in_bulk, scan_log

FLUSH_EVERY_BYTES: Final = 1 << 30
"""Bytes of log that are read again at most when this process is killed."""


def bring_up_to(pending: PendingMessages, segments: SegmentList, end: PhysicalOffset, report: ReportProgress) -> None:
    """Apply every record below `end`, the end of the recovered log, to the pending messages. Raises StoreDamaged.

    If the pending messages are ahead of the log, they rest on records that a power cut took: then they are rebuilt from
    the beginning.
    """
    if pending.up_to is not None and pending.up_to > end:
        pending.delete_all()
    start = PhysicalOffset(max(pending.up_to or 0, segments.minimum))
    flushed = start
    for batch in whole_batches(segments, start, end):
        pending.put(pending_requests(batch), batch.end)
        report(Progress("looking for held messages", batch.end - start, end - start))
        if batch.end - flushed >= FLUSH_EVERY_BYTES:
            pending.flush()
            flushed = batch.end
    pending.put((), end)
    pending.flush()


SAVE_EVERY_BYTES: Final = 256 << 20  # bytes of log that a killed recovery reads again at most


SavePosition = Callable[[PhysicalOffset], None]
"""A callback that gets an offset below which the work is done for good."""


class DispatchedQueues(Protocol):
    """The part of the consume queues that recovery reads before it changes them."""

    def dispatched_up_to(self) -> PhysicalOffset | None:
        """Return the exclusive end of the log range whose entries are stored; None when nothing was ever dispatched."""


@dataclass(frozen=True, slots=True)
class Findings:
    """The findings say what reading the log found, and what is to be done. Nothing but the queues is changed yet."""

    start: PhysicalOffset
    """The offset where reading began: an earlier start or a clean stop dispatched and checked everything below."""
    end: PhysicalOffset
    """The end of the log: the offset after the last whole record."""
    records: int
    dispatched: int
    last_stored_ms: int | None
    """Store time of the last record that was read; None when none was."""
    stopped_by: EndOfData | Torn | Corrupt | None
    """The outcome that ended the log; None when the log fills its last segment."""
    durable_up_to: PhysicalOffset
    """The offset below which everything was promised to be durable."""
    queues_were_ahead: bool
    """True if the queues have entries of records after the end."""
    verdict: Verdict

    @property
    def reason(self) -> str:
        """Return in words why the log ends."""
        match self.stopped_by:
            case Torn(reason=reason):
                return f"torn: {reason}"
            case Corrupt(reason=reason):
                return f"corrupt: {reason}"
            case EndOfData():
                return "nothing was written there"
            case None:
                return "the files end there"


@dataclass(frozen=True, slots=True)
class RecoveryReport:
    """The report says what recovery found and did."""

    findings: Findings
    removed: CutReport

    @property
    def start(self) -> PhysicalOffset:
        return self.findings.start

    @property
    def end(self) -> PhysicalOffset:
        return self.findings.end


def recover(
    segments: SegmentList,
    queues: ConsumeQueueStore,
    assignment: OffsetAssignment,
    *,
    scan: LogScan = scan_in_bulk,
    flushed_up_to: PhysicalOffset | None,
    stop: Stop,
    report: ReportProgress,
    save_position: SavePosition,
    save_every_bytes: int = SAVE_EVERY_BYTES,
) -> RecoveryReport:
    """Make log and queues agree. If it is killed, the next recovery continues at the last saved position (rmq#9587).

    `flushed_up_to` is an offset below which the log is known to be durable; after a clean stop, so are all records that
    the queues have entries of. `save_position` is called with later offsets as recovery proceeds.
    `store.recovery.verdict` says what is done about damage. Raises StoreDamaged, and then neither log nor queues have
    lost anything.
    """
    findings = examine(
        segments,
        queues,
        assignment,
        scan=scan,
        flushed_up_to=flushed_up_to,
        stop=stop,
        report=report,
        store_run=_Saving(queues, save_position, save_every_bytes, flushed_up_to or segments.minimum).store,
    )

    # pass 3: what was promised must be whole
    if findings.verdict is Verdict.REFUSE:
        raise refusal(segments, findings)

    # pass 4: cut what follows the last good record, in the log and in the queues
    removed = cut(segments, findings.end)
    if findings.queues_were_ahead or (stop is Stop.UNCLEAN and queues.may_hold_more):
        queues.truncate(findings.end)
    queues.flush()
    return RecoveryReport(findings, removed)


def watermark_of(queues: DispatchedQueues, segments: SegmentList) -> PhysicalOffset:
    """Return the offset at and above which records are to be dispatched: not below the beginning of the log."""
    return PhysicalOffset(max(queues.dispatched_up_to() or segments.minimum, segments.minimum))


def delete_again(queues: ConsumeQueueStore, names: Iterable[str]) -> None:
    """Delete the queues of topics, and light queues, that were deleted at or above the watermark of the queues.

    A crash takes back what was not flushed: the deletion, or a part of it. Recovery puts the
    entries of all records from the watermark on, without deleted ones, so all entries of these queues may go.
    """
    for name in names:
        queues.delete_topic(name)  # also without a max offset: the entries may have been flushed alone


def examine(
    segments: SegmentList,
    queues: DispatchedQueues,
    assignment: OffsetAssignment,
    *,
    scan: LogScan = scan_in_bulk,
    flushed_up_to: PhysicalOffset | None,
    stop: Stop,
    report: ReportProgress,
    store_run: Callable[[FoundRecords, PhysicalOffset], None],
) -> Findings:
    """Run passes 1 and 2 of recovery, which change nothing but what `store_run` does.

    `store_run` is called with each run of records and with the offset at and above which its requests are to be
    dispatched.
    """
    # pass 1: where to begin. Below the watermark everything is dispatched; below `flushed_up_to` all is whole.
    dispatched = queues.dispatched_up_to()
    watermark = watermark_of(queues, segments)
    start = _start(segments, watermark, flushed_up_to, stop)
    total_bytes = max(start, _data_end(segments)) - start

    # pass 2: read forward, every record checked; dispatch what lies at or above the watermark (`>=`: it is the
    # exclusive end of what was dispatched)
    report(Progress("recovering", 0, total_bytes))
    records = dispatched_count = 0
    end, stopped_by, last_stored_ms = start, None, None
    from_device = stop is Stop.UNCLEAN
    for run in scan(segments, start, dispatch_from=watermark, assignment=assignment, from_device=from_device):
        store_run(run, watermark)
        end, stopped_by = run.end, run.stopped_by
        records += run.records
        dispatched_count += run.dispatched
        last_stored_ms = run.last_stored_ms or last_stored_ms
        report(Progress("recovering", end - start, total_bytes))

    known = (flushed_up_to or 0, dispatched or 0) if stop is Stop.CLEAN else (flushed_up_to or 0,)
    durable_up_to = PhysicalOffset(max(known))
    return Findings(
        start=start,
        end=end,
        records=records,
        dispatched=dispatched_count,
        last_stored_ms=last_stored_ms,
        stopped_by=stopped_by,
        durable_up_to=durable_up_to,
        queues_were_ahead=dispatched is not None and dispatched > end,
        verdict=judge(end, stopped_by, durable_up_to=durable_up_to, stop=stop),
    )


def refusal(segments: SegmentList, findings: Findings) -> StoreDamaged:
    """Return the error that names file, offset, reason, and the command that repairs the log."""
    end = findings.end
    if place_of(end, findings.durable_up_to) is Place.BELOW:
        promised = f"everything below {findings.durable_up_to} was durable"
    else:
        promised = "the previous broker stopped cleanly and had written more"
    command = f"quarry recover {segments.directory.parent} --replace-damaged"
    return StoreDamaged(
        segments.path_of(end) if len(segments) else segments.directory,
        f"the log is broken at offset {end}, but {promised}: {findings.reason}; `{command} --dry-run` shows what is "
        f"lost; `{command}` gives it up and keeps the rest",
    )


class _Saving:
    """The helper puts the records that are found into the queues, and saves now and then how far that is done for
    good.
    """

    def __init__(
        self,
        queues: ConsumeQueueStore,
        save_position: SavePosition,
        every_bytes: int,
        flushed_up_to: PhysicalOffset,
    ) -> None:
        self._queues = queues
        self._save_position = save_position
        self._every_bytes = every_bytes
        self._flushed_up_to = flushed_up_to
        self._saved: PhysicalOffset | None = None

    def store(self, run: FoundRecords, watermark: PhysicalOffset) -> None:
        if run.end > watermark:
            self._queues.put_again(run.requests, run.end)
        if self._saved is None:
            self._saved = run.end
        elif run.end - self._saved >= self._every_bytes:
            self._queues.flush()
            self._saved = run.end
            # The range was read from the device, or flushed before a clean stop. The queues may be far behind the
            # offset that is known to be durable: that offset never goes back.
            if run.end > self._flushed_up_to:
                self._save_position(run.end)


def _start(
    segments: SegmentList, watermark: PhysicalOffset, flushed_up_to: PhysicalOffset | None, stop: Stop
) -> PhysicalOffset:
    if watermark > segments.end_of_files:
        # the queues have entries of records that the log has lost: read the whole last segment
        return segments.base_of(segments.end_of_files)
    if stop is Stop.CLEAN:
        return watermark
    if flushed_up_to is not None and flushed_up_to >= segments.minimum:
        return min(watermark, flushed_up_to)
    return segments.base_of(watermark)


def _data_end(segments: SegmentList) -> PhysicalOffset:
    """Return an offset after which the files hold only zeros, to estimate how long reading will take."""
    for base in reversed(segments.bases):
        length = segments.disk.data_end(segments.path_of(base))
        if length:
            return PhysicalOffset(base + length)
    return segments.minimum


def backfill(
    segments: SegmentList,
    queues: RocksConsumeQueues,
    *,
    start: PhysicalOffset,
    end: PhysicalOffset,
    save_position: SavePosition,
    report: ReportProgress,
) -> None:
    """Add the entries of log range [start, end) that a double-write store has only in its file queues.

    Double write begins on a running broker, so RocksDB holds only the entries from then on. Repeating the call is
    harmless; `save_position` gets offsets below which RocksDB is complete and durable. Raises StoreDamaged.
    """
    saved = start
    for run in whole_runs(segments, start, end, DenseAssignment(queues)):
        queues.put_missing(run.requests)
        report(Progress("completing the queues of a double-write store", run.end - start, end - start))
        if run.end - saved >= SAVE_EVERY_BYTES:
            queues.flush()
            save_position(run.end)
            saved = run.end
    queues.flush()
    save_position(end)


def whole_runs(
    segments: SegmentList, start: PhysicalOffset, end: PhysicalOffset, assignment: OffsetAssignment
) -> Iterator[FoundRecords]:
    """Yield the records of [start, end), where the log is known to be whole. Raises StoreDamaged where it is not."""
    return (found_in(batch, start, assignment) for batch in whole_batches(segments, start, end))


def whole_batches(segments: SegmentList, start: PhysicalOffset, end: PhysicalOffset) -> Iterator[RecordBatch]:
    """Yield the records of [start, end) as `whole_runs` does, but as columns."""
    for batch in scan_log(segments, start, end, check_crc=False):
        if not (batch.ended_by is None or isinstance(batch.ended_by, Blank)):
            path = segments.path_of(batch.end)
            raise StoreDamaged(
                path, f"the log is broken at offset {batch.end}, but continues to {end}: {batch.ended_by}"
            )
        yield batch
