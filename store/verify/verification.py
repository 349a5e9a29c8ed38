"""The order of a verification: queues, metadata, the log once from end to end, then the pieces that differ."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from store.consumequeue.rocks_layout import CHECKPOINT_KEY, CHECKPOINT_SIZE, I64, OFFSET_FAMILY, UNITS_FAMILY
from store.identity import StoreIdentity
from store.kind import StoreKind
from store.migration import MigrationRows, Removing
from store.offline import OfflineStore, QueueSource
from store.offsets import PhysicalOffset
from store.record import Blank, Corrupt, Torn
from store.recovery import Progress, ReportProgress
from store.rocketmq import read_metadata
from store.state import META
from store.verify.held import check_held
from store.verify.log import scan, units_in
from store.verify.metadata import Metadata, MetadataComparison, QuarryMetadata, RocketmqRows
from store.verify.queues import QueueComparison
from store.verify.report import Check, Difference, Findings, Note, VerifyReport
from store.verify.sources import UnitSource, file_queues, rocks_queues

DIFFERENCES_MAX: Final = 20
"""How many differences of each check are told unless more are asked for."""


def verify(store: OfflineStore, report: ReportProgress, *, differences_max: int = DIFFERENCES_MAX) -> VerifyReport:
    """Compare everything in the store that says the same thing twice. Changes nothing.

    Memory is bounded whatever the number of queues and messages: units and records are summed piece by piece
    (`store.verify.sums`), and only pieces that differ are compared one by one. Raises StoreDamaged or
    kv.EngineCorrupt for what cannot be read at all, OSError as the disk gives it.
    """
    return _Verification(store, report, differences_max).run()


class _Verification:
    """The steps of one verification."""

    def __init__(self, store: OfflineStore, report: ReportProgress, differences_max: int) -> None:
        self._store = store
        self._report = report
        self._findings = Findings(differences_max)
        self._identity = _identity(store)
        self._clean_stop = not store.found.has_abort
        self._end = store.minimum
        """Where the last whole record ends."""

    def run(self) -> VerifyReport:
        findings = self._findings
        comparisons = [QueueComparison(self._store, source, findings) for source in self._sources()]
        for comparison in comparisons:
            for read in comparison.read_units():
                self._report(Progress("reading the queues", read, max(read, self._units_estimate())))
        metadata = self._metadata()
        claims: MetadataComparison | None = None
        if comparisons:
            claims = MetadataComparison(self._store, metadata, self._store.queue_reader(), findings)
            claims.check_topics()
            claims.read_claims()
        self._read_log(comparisons, claims)
        if claims is None:
            self._tell_missing_queues()
        else:
            claims.finish()
        self._check_checkpoint()
        if self._identity is not None and not findings.differing[Check.LOG]:
            check_held(self._store, self._identity.held_before, self._end, findings, self._report)
        for comparison in comparisons:
            for done, total in comparison.compare(lambda topic: not metadata.has_topic(topic)):
                self._report(Progress("comparing what differs", done, total))
        return VerifyReport(
            counts=findings.counts(),
            differences=findings.differences(),
            notes={note: count for note, count in findings.notes.items() if count},
            log_begin=self._store.minimum,
            log_end=self._end,
            clean_stop=self._clean_stop,
        )

    # -- the parts

    def _sources(self) -> Iterator[UnitSource]:
        store, found = self._store, self._store.found
        is_quarry = found.kind is StoreKind.QUARRY
        writes_files = is_quarry and store.queue_phase.writes_files
        origin = self._origin()
        was_double = origin is StoreKind.ROCKETMQ_DOUBLE_WRITE
        begins_late = was_double or (self._identity is not None and self._identity.backfill_end is not None)
        if self._uses_rocksdb:
            engine, directory = store.queue_engine(), found.rocksdb_directory
            yield UnitSource(
                records_check=Check.RECORDS,
                units_check=Check.UNITS,
                file=directory,
                reader=store.queue_reader(QueueSource.ROCKSDB),
                queues=lambda: rocks_queues(engine, directory, self._findings),
                has_bounds=True,
                with_time=True,
                light_by_place=origin in (StoreKind.ROCKETMQ_FILE, StoreKind.ROCKETMQ_DOUBLE_WRITE),
                begins_late=begins_late and not self._is_backfilled(),
                ends_early=False,
                light_ends_early=False,
                compared_below=self._checkpoint() or PhysicalOffset(0),
            )
        if writes_files or (found.has_file_queues and not self._removes_files()):
            reader = store.queue_reader(QueueSource.FILE)
            yield UnitSource(
                records_check=Check.FILE_RECORDS,
                units_check=Check.FILE_UNITS,
                file=store.paths.consume_queue,
                reader=reader,
                queues=lambda: file_queues(reader),
                has_bounds=False,
                with_time=False,
                light_by_place=True,
                begins_late=False,
                ends_early=(is_quarry and not writes_files) or not self._clean_stop,
                light_ends_early=found.has_rocksdb and not writes_files,
                compared_below=store.log_limit,
            )

    def _removes_files(self) -> bool:
        """Whether a migration has come to an end and its queue files are just being removed."""
        if self._store.found.kind is not StoreKind.QUARRY:
            return False
        return MigrationRows(self._store.state_engine()).removing() is Removing.FILES

    @property
    def _uses_rocksdb(self) -> bool:
        """A database that lies in a store whose queues are in files is a leftover."""
        found = self._store.found
        return found.has_rocksdb and (found.kind is not StoreKind.QUARRY or self._store.queue_phase.writes_rocksdb)

    def _units_estimate(self) -> int:
        if not self._uses_rocksdb:
            return 0
        return self._store.queue_engine().statistics().get(f"{UNITS_FAMILY}.keys_estimate", 0)

    def _metadata(self) -> Metadata:
        if self._store.found.kind is StoreKind.QUARRY:
            return QuarryMetadata(self._store.state_engine(), self._store.paths.quarry)
        return RocketmqRows(read_metadata(self._store.disk, self._store.paths.root))

    def _origin(self) -> StoreKind:
        if self._identity is None or self._identity.origin is None:
            return self._store.found.layout
        return StoreKind(self._identity.origin)

    def _is_backfilled(self) -> bool:
        if self._identity is None or self._identity.backfill_end is None:
            return False
        return (self._identity.backfilled_to or 0) >= self._identity.backfill_end

    def _checkpoint(self) -> PhysicalOffset | None:
        """The dispatch check point of RocksDB."""
        if not self._uses_rocksdb:
            return None
        value = self._store.queue_engine().family(OFFSET_FAMILY).get(CHECKPOINT_KEY)
        if value is None or len(value) != CHECKPOINT_SIZE:
            return None
        return PhysicalOffset(I64.unpack(value)[0])

    # -- the log

    def _read_log(self, comparisons: list[QueueComparison], claims: MetadataComparison | None) -> None:
        store, findings = self._store, self._findings
        begin, total = store.minimum, (store.log_limit or store.segments.end_of_files) - store.minimum
        checkpoint = self._checkpoint() or 0
        damage: list[Torn | Corrupt] = []
        last_damage_end = begin
        findings.count(Check.LOG, 0)
        for found in scan(store):
            if isinstance(found, Torn | Corrupt):
                damage.append(found)
                last_damage_end = self._end
                continue
            if not len(found) and not isinstance(found.ended_by, Blank):
                continue
            findings.count(Check.LOG, len(found))
            self._end = found.end
            units = units_in(found)
            if claims is not None and found.end > checkpoint:
                claims.add_undispatched(units.select(units.physical_offset >= checkpoint))
            for comparison in comparisons:
                comparison.add_records(found, units)
            self._report(Progress("reading the log", self._end - begin, total))
        self._judge_damage(damage, last_damage_end)

    def _judge_damage(self, damage: list[Torn | Corrupt], records_before_the_last: PhysicalOffset) -> None:
        """What an unclean stop leaves at the very end, above everything that was durable, is no difference."""
        promised = self._promised()
        for each in damage:
            is_end = each is damage[-1] and self._end == records_before_the_last
            if is_end and not self._clean_stop and each.physical_offset >= promised:
                self._findings.note(Note.TORN_END)
                continue
            kind = "torn" if isinstance(each, Torn) else "corrupt"
            self._differ_log(each.physical_offset, "a whole record", f"{kind}: {each.reason}")
        if self._end < promised and not damage:
            self._differ_log(self._end, f"records up to offset {promised}, which was durable", "the end of the log")

    def _promised(self) -> PhysicalOffset:
        """An offset below which the log must be whole; RocketMQ writes none down."""
        if self._store.log_limit is not None:
            return self._store.log_limit
        flushed = None if self._identity is None else self._identity.flushed_up_to
        return flushed or PhysicalOffset(0)

    def _check_checkpoint(self) -> None:
        checkpoint = self._checkpoint()
        if checkpoint is None:
            return
        self._findings.count(Check.CHECKPOINT)
        if checkpoint > self._end:
            self._findings.differ(
                Difference(
                    check=Check.CHECKPOINT,
                    file=self._store.found.rocksdb_directory,
                    expected=f"a dispatch check point of at most {self._end}, the end of the log",
                    found=f"{checkpoint}",
                )
            )

    def _tell_missing_queues(self) -> None:
        records = self._findings.checked[Check.LOG]
        if records:
            self._findings.differ(
                Difference(
                    check=Check.RECORDS,
                    file=self._store.found.rocksdb_directory,
                    expected=f"the units of {records} records",
                    found="no database; the next start of a broker makes it from the log",
                )
            )

    def _differ_log(self, at: PhysicalOffset, expected: str, found: str) -> None:
        self._findings.differ(
            Difference(
                check=Check.LOG,
                file=self._store.file_of(at),
                expected=expected,
                found=found,
                physical_offset=at,
            )
        )


def _identity(store: OfflineStore) -> StoreIdentity | None:
    """What Quarry knows of the store; None when it never ran on it, or died in its very first start."""
    if store.found.kind is not StoreKind.QUARRY:
        return None
    engine = store.state_engine()
    if engine.family(META).get(b"format") is None:
        return None
    return StoreIdentity(engine, store.paths.quarry)
