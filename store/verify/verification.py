"""The module runs a verification: queues, metadata, the log once from end to end, then the pieces that differ."""

from __future__ import annotations

from collections.abc import Iterator, Sequence, Set
from dataclasses import dataclass, field
from functools import cached_property
from typing import Final, NamedTuple

import numpy as np

from quarry_mq.protocol.clock import Progress, ReportProgress
from quarry_mq.store.consumequeue.rocks_layout import (
    CHECKPOINT_KEY,
    CHECKPOINT_SIZE,
    ENTRIES_FAMILY,
    I64,
    OFFSET_FAMILY,
)
from quarry_mq.store.index.indexes import KeyIndexes
from quarry_mq.store.layout.kind import StoreKind
from quarry_mq.store.message import PhysicalOffset, QueueId, QueueOffset
from quarry_mq.store.migration import MigrationRows, Removing
from quarry_mq.store.offline import OfflineStore, QueueSource
from quarry_mq.store.record import Blank, Corrupt, Torn
from quarry_mq.store.rocketmq import read_metadata
from quarry_mq.store.scan import RecordBatch
from quarry_mq.store.state.identity import META, StoreIdentity
from quarry_mq.store.verify.index import IndexComparison, coverages, indexes_to_compare, tell_uncompared
from quarry_mq.store.verify.log import after_damage, requests_in, scan
from quarry_mq.store.verify.metadata import Metadata, MetadataComparison, QuarryMetadata, RocketmqRows, ends_of
from quarry_mq.store.verify.pending import check_pending
from quarry_mq.store.verify.queues import QueueComparison
from quarry_mq.store.verify.report import Check, Difference, Findings, Note, VerifyReport
from quarry_mq.store.verify.sources import ALL_QUEUES, EntrySource, file_queues, rocks_queues
from quarry_mq.store.verify.sums import PIECE_BYTES, new_key

DIFFERENCES_MAX: Final = 20
"""The number of differences per check that are reported by default."""


def verify(store: OfflineStore, report: ReportProgress, *, differences_max: int = DIFFERENCES_MAX) -> VerifyReport:
    """Compare everything that the store holds in two places. Changes nothing.

    Memory is bounded whatever the number of queues and messages: entries and records are summed piece by piece
    (`store.verify.sums`), and only pieces that differ are compared one by one. Raises StoreDamaged or kv.EngineCorrupt
    for what cannot be read at all, OSError as the disk gives it.
    """
    findings = Findings(differences_max)
    with indexes_to_compare(store, findings) as indexes:
        return Verification(store, indexes, report, findings, new_key()).run()


class LogDamage(NamedTuple):
    """Damage is the bytes of the log from `begin` to `end` that are no records, though there must be some."""

    begin: PhysicalOffset
    end: PhysicalOffset
    words: str


@dataclass(slots=True)
class LogReading:
    """The reading says what was read of the log, part after part."""

    begin: PhysicalOffset
    end: PhysicalOffset
    """The offset where the last whole record ends; `begin` if there was none."""
    damage: list[LogDamage] = field(default_factory=list)
    ends_with_damage: bool = False
    """True if no record came after the last damage."""

    def read(self, end: PhysicalOffset) -> None:
        """Note that records up to `end` were whole."""
        self.end = end
        self.ends_with_damage = False

    def damaged(self, damage: LogDamage) -> None:
        self.damage.append(damage)
        self.ends_with_damage = True

    def absorb(self, other: LogReading) -> None:
        """Add what others have read of the part that follows."""
        self.damage += other.damage
        if other.end > other.begin:
            self.end = other.end
        self.ends_with_damage = other.ends_with_damage or (self.ends_with_damage and other.end == other.begin)


class Verification:
    """A verification runs its steps in order.

    The three long ones, `read_queues`, `read_log` and `compare`, may be done in parts by several processes, each of
    which makes its own Verification with the same key.
    """

    def __init__(
        self, store: OfflineStore, indexes: KeyIndexes, report: ReportProgress, findings: Findings, key: bytes
    ) -> None:
        self._store = store
        self._report = report
        self.findings: Final = findings
        self._identity = _identity(store)
        self._clean_stop = not store.found.has_abort
        self.comparisons: Final = [QueueComparison(store, each, findings, key) for each in self._sources()]
        self.index_comparisons: Final = [
            IndexComparison(store, indexes, each, findings, key) for each in coverages(store, indexes)
        ]
        self._indexes = indexes
        self._metadata = self._open_metadata()
        self.first_records: Final[dict[int, PhysicalOffset]] = {}
        """The first record that begins in each piece of the log."""

    def run(self) -> VerifyReport:
        findings = self.findings
        tell_uncompared(self._store, self._indexes, findings)
        self.read_queues()
        claims: MetadataComparison | None = None
        if self.comparisons and self._has_metadata:
            claims = MetadataComparison(self._store, self._metadata, self._store.queue_reader(), findings)
            claims.check_topics()
            claims.read_claims()
        reading = self.read_log(claims)
        self._judge_damage(reading)
        if claims is not None:
            claims.finish()
        elif not self.comparisons:
            self._tell_missing_queues()
        self._check_checkpoint(reading.end)
        if self._identity is not None and not findings.differing[Check.LOG]:
            check_pending(self._store, self._identity.pending_before, reading.end, findings, self._report)
        self.compare(reading.damage)
        return VerifyReport(
            counts=findings.counts(),
            differences=findings.differences(),
            notes={note: count for note, count in findings.notes.items() if count},
            log_begin=self._store.minimum,
            log_end=reading.end,
            clean_stop=self._clean_stop,
        )

    # -- the long steps

    def read_queues(self) -> None:
        """Sum what the queues and the index hold, and check each by itself."""
        for comparison in self.comparisons:
            for read in comparison.read_entries(comparison.source.queues(ALL_QUEUES)):
                self._report(Progress("reading the queues", read, max(read, self._entries_estimate())))
        for index in self.index_comparisons:
            files = index.files
            for number, file in enumerate(files):
                self._report(Progress("reading the index", number, len(files)))
                index.read_items(file)

    def read_log(self, claims: MetadataComparison | None) -> LogReading:
        """Sum what the queues and the index must hold according to the records."""
        store = self._store
        reading = LogReading(store.minimum, store.minimum)
        total = (store.log_limit or store.segments.end_of_files) - store.minimum
        wanted = frozenset() if claims is None else claims.open_queues
        self.findings.count(Check.LOG, 0)
        for found in scan(store):
            if isinstance(found, Torn | Corrupt):
                kind = "torn" if isinstance(found, Torn) else "corrupt"
                begin, end = found.physical_offset, after_damage(store, found.physical_offset)
                reading.damaged(LogDamage(begin, end, f"{kind}: {found.reason}"))
                continue
            if not len(found) and not isinstance(found.ended_by, Blank):
                continue
            reading.read(found.end)
            ends = self.add_batch(found, wanted)
            if claims is not None:
                claims.add_undispatched(ends)
            self._report(Progress("reading the log", reading.end - store.minimum, total))
        return reading

    def add_batch(self, batch: RecordBatch, wanted: Set[QueueId]) -> dict[QueueId, QueueOffset]:
        """Sum the records of a batch. Returns the ends of the wanted queues according to records that are not
        dispatched yet.
        """
        self.findings.count(Check.LOG, len(batch))
        places = batch.columns.physical_offset
        pieces, first = np.unique(places // PIECE_BYTES, return_index=True)
        for piece, row in zip(pieces.tolist(), first.tolist(), strict=True):
            self.first_records.setdefault(piece, PhysicalOffset(int(places[row])))
        requests = requests_in(batch)
        entries = requests.entries
        for comparison in self.comparisons:
            comparison.add_records(batch, entries)
        for index in self.index_comparisons:
            index.add_records(requests)
        checkpoint = self._checkpoint or 0
        if not wanted or batch.end <= checkpoint:
            return {}
        return ends_of(entries.select(entries.physical_offset >= checkpoint), wanted)

    def compare(self, damage: Sequence[LogDamage]) -> None:
        """Compare the pieces that differ."""
        for comparison in self.comparisons:
            pieces = comparison.differing()
            for done, piece in enumerate(pieces):
                self._report(Progress("comparing what differs", done, len(pieces)))
                comparison.compare_records(piece, self.first_records.get(piece), self.is_deleted)
            if pieces:
                comparison.compare_entries(comparison.source.queues(ALL_QUEUES), set(pieces))
        for index in self.index_comparisons:
            index.compare(set(index.differing()), self.first_records, [each[:2] for each in damage])

    def is_deleted(self, topic: str, at: PhysicalOffset) -> bool:
        """Return whether a record of the topic was deleted with it: the topic is gone, or was created again since."""
        is_gone = self._has_metadata and not self._metadata.has_topic(topic)
        return is_gone or at < self._metadata.deleted_below(topic)

    # -- the parts

    def _sources(self) -> Iterator[EntrySource]:
        store, found = self._store, self._store.found
        is_quarry = found.kind is StoreKind.QUARRY
        writes_files = is_quarry and store.queue_phase.writes_files
        origin = self._origin()
        was_double = origin is StoreKind.ROCKETMQ_DOUBLE_WRITE
        begins_late = was_double or (self._identity is not None and self._identity.backfill_end is not None)
        if self._uses_rocksdb:
            engine, directory = store.queue_engine(), found.rocksdb_directory
            yield EntrySource(
                records_check=Check.RECORDS,
                entries_check=Check.ENTRIES,
                file=directory,
                reader=store.queue_reader(QueueSource.ROCKSDB),
                queues=lambda part: rocks_queues(engine, directory, self.findings, part.keys),
                has_bounds=True,
                with_time=True,
                light_by_place=origin in (StoreKind.ROCKETMQ_FILE, StoreKind.ROCKETMQ_DOUBLE_WRITE),
                begins_late=begins_late and not self._is_backfilled(),
                ends_early=False,
                light_ends_early=False,
                compared_below=self._checkpoint or PhysicalOffset(0),
                light_removed_below=(self._identity and self._identity.light_floor) or QueueOffset(0),
                leaves_out_names=self._identity is not None and self._identity.files_up_to is not None,
            )
        if writes_files or (found.has_file_queues and not self._removes_files()):
            reader = store.queue_reader(QueueSource.FILE)
            yield EntrySource(
                records_check=Check.FILE_RECORDS,
                entries_check=Check.FILE_ENTRIES,
                file=store.paths.consume_queue,
                reader=reader,
                queues=lambda part: file_queues(reader, part.queues),
                has_bounds=False,
                with_time=False,
                light_by_place=True,
                begins_late=False,
                ends_early=(is_quarry and not writes_files) or not self._clean_stop,
                light_ends_early=found.has_rocksdb and not writes_files,
                compared_below=store.log_limit,
                leaves_out_names=True,
            )

    def _removes_files(self) -> bool:
        """Return whether a migration has ended and its queue files are just being removed."""
        if self._store.found.kind is not StoreKind.QUARRY:
            return False
        return MigrationRows(self._store.state_engine()).removing() is Removing.FILES

    @property
    def _uses_rocksdb(self) -> bool:
        """Return whether the store uses RocksDB. A database in a store whose queues are in files is a leftover."""
        found = self._store.found
        return found.has_rocksdb and (found.kind is not StoreKind.QUARRY or self._store.queue_phase.writes_rocksdb)

    def _entries_estimate(self) -> int:
        if not self._uses_rocksdb:
            return 0
        return self._store.queue_engine().statistics().get(f"{ENTRIES_FAMILY}.keys_estimate", 0)

    def _open_metadata(self) -> Metadata:
        if self._store.found.kind is StoreKind.QUARRY:
            return QuarryMetadata(self._store.state_engine(), self._store.paths.quarry)
        return RocketmqRows(read_metadata(self._store.disk, self._store.paths.root))

    @property
    def _has_metadata(self) -> bool:
        """Return False for a store that follows RocketMQ: the metadata of its topics and groups come when it serves."""
        return self._identity is None or self._identity.metadata_imported

    def _origin(self) -> StoreKind:
        if self._identity is None or self._identity.origin is None:
            return self._store.found.layout
        return StoreKind(self._identity.origin)

    def _is_backfilled(self) -> bool:
        if self._identity is None or self._identity.backfill_end is None:
            return False
        return (self._identity.backfilled_to or 0) >= self._identity.backfill_end

    @cached_property
    def _checkpoint(self) -> PhysicalOffset | None:
        """Return the dispatch check point of RocksDB."""
        if not self._uses_rocksdb:
            return None
        value = self._store.queue_engine().family(OFFSET_FAMILY).get(CHECKPOINT_KEY)
        if value is None or len(value) != CHECKPOINT_SIZE:
            return None
        return PhysicalOffset(I64.unpack(value)[0])

    # -- the log

    def _judge_damage(self, reading: LogReading) -> None:
        """Report damage, except what an unclean stop leaves at the very end, above everything that was durable."""
        promised = self._promised()
        for number, (at, _, words) in enumerate(reading.damage, 1):
            is_end = number == len(reading.damage) and reading.ends_with_damage
            if is_end and not self._clean_stop and at >= promised:
                self.findings.note(Note.TORN_END)
                continue
            self._differ_log(at, "a whole record", words)
        if reading.end < promised and not reading.damage:
            self._differ_log(reading.end, f"records up to offset {promised}, which were durable", "the end of the log")

    def _promised(self) -> PhysicalOffset:
        """Return an offset below which the log must be whole; RocketMQ writes none down."""
        if self._store.log_limit is not None:
            return self._store.log_limit
        flushed = None if self._identity is None else self._identity.flushed_up_to
        return flushed or PhysicalOffset(0)

    def _check_checkpoint(self, end: PhysicalOffset) -> None:
        checkpoint = self._checkpoint
        if checkpoint is None:
            return
        self.findings.count(Check.CHECKPOINT)
        if checkpoint > end:
            self.findings.differ(
                Difference(
                    check=Check.CHECKPOINT,
                    file=self._store.found.rocksdb_directory,
                    expected=f"a dispatch checkpoint of at most {end}, the end of the log",
                    found=f"{checkpoint}",
                )
            )

    def _tell_missing_queues(self) -> None:
        records = self.findings.checked[Check.LOG]
        if records:
            self.findings.differ(
                Difference(
                    check=Check.RECORDS,
                    file=self._store.found.rocksdb_directory,
                    expected=f"the entries of {records} records",
                    found="no database; the next start of a broker rebuilds it from the log",
                )
            )

    def _differ_log(self, at: PhysicalOffset, expected: str, found: str) -> None:
        self.findings.differ(
            Difference(
                check=Check.LOG,
                file=self._store.file_of(at),
                expected=expected,
                found=found,
                physical_offset=at,
            )
        )


def _identity(store: OfflineStore) -> StoreIdentity | None:
    """Return Quarry's rows about the store; None when it never ran on it, or died in its very first start."""
    if store.found.kind is not StoreKind.QUARRY:
        return None
    engine = store.state_engine()
    if engine.family(META).get(b"format") is None:
        return None
    return StoreIdentity(engine, store.paths.quarry)
