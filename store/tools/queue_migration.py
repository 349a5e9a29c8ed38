"""The module is `quarry migrate`: it moves the queues of a stopped store to the other kind at once.

    1  recover the store and stop it cleanly, as `quarry recover` does
    2  make the other kind of queues in a separate directory (`….migrating`), complete and durable
    3  compare every entry of both (`store.migration.comparison`): if they differ, it ends here
    4  move the directory to its place
    5  write the new phase: from here on a start uses the new queues
    6  set the old queues aside, or remove them if that was asked for

If it is killed before 5, the store is what it was, and another run begins again with 2. If it is killed in 6, the old
queues lie where no start reads them, and another run does the rest.
"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Final, Protocol

from quarry_mq.kv import EngineCorrupt, KeyValueEngine
from quarry_mq.protocol.clock import Clock, Progress, ReportProgress
from quarry_mq.store.commitlog import SegmentList
from quarry_mq.store.consumequeue import FileConsumeQueues, RocksConsumeQueues, entries_in_files
from quarry_mq.store.consumequeue.rocks_layout import ENTRIES_FAMILY
from quarry_mq.store.engines import RocksStoreEngines, StoreEngines
from quarry_mq.store.errors import NotAStore, StoreLocked, StoreUnusable
from quarry_mq.store.fs import Disk
from quarry_mq.store.layout.kind import DATABASE_MARKER, FoundStore, StoreKind, inspect_store
from quarry_mq.store.layout.paths import StorePaths
from quarry_mq.store.layout.queue_phase import QueueMode, QueuePhase, parse_phase
from quarry_mq.store.message import PhysicalOffset, QueueId
from quarry_mq.store.migration.comparison import AgreementReport, EntryComparison, Scope
from quarry_mq.store.migration.queue_copy import files_to_rocksdb, queues_left_out, rocksdb_to_files
from quarry_mq.store.migration.rows import FileQueueRemoval, MigrationRows, MigrationStep, Removing, remove_database
from quarry_mq.store.offline import OfflineStore, open_log
from quarry_mq.store.opening.open_store import open_store
from quarry_mq.store.opening.parts import open_identity
from quarry_mq.store.opening.repair import (
    aside_of,
    databases,
    free_database_place,
    set_databases_aside,
    set_names_aside,
)
from quarry_mq.store.settings import UNITS_PER_FILE, StoreSettings
from quarry_mq.store.state.identity import StoreIdentity


class Target(Enum):
    """The target is the kind of queues that the store is to have."""

    ROCKSDB = "rocksdb"
    FILE = "file"

    @property
    def phase(self) -> QueuePhase:
        return QueuePhase(self.value)


@dataclass(frozen=True, slots=True, kw_only=True)
class Orders:
    """The orders are what the operator asks for.

    `remove_old`: the queues that are no longer used are removed and not set aside. `leave_out_names`: light queues
    whose names no file can have, and which have entries in RocksDB alone, may be lost.
    """

    target: Target
    asked_by: str
    remove_old: bool = False
    leave_out_names: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Migrated:
    """The object is the result of a migration. `report` is None where nothing had to be compared."""

    origin: QueuePhase
    phase: QueuePhase
    report: AgreementReport | None = None
    left_out: int = 0
    """The number of light queues that no file can have: only their records in the log are left."""
    aside: Path | None = None
    """The place where the old queues are now; None: they are removed, or there were none."""


class MakeRocksdb(Protocol):
    """The function makes the database of queues from a store with queue files, complete and durable, in a new
    directory.

    The database holds the entries that the files hold, which they do up to `end`.
    """

    def __call__(self, place: Path, files: FileConsumeQueues, end: PhysicalOffset, /) -> None: ...


def migrate(
    disk: Disk,
    clock: Clock,
    root: Path,
    orders: Orders,
    *,
    report: ReportProgress,
    engines: StoreEngines | None = None,
    make_rocksdb: MakeRocksdb | None = None,
) -> Migrated:
    """Move the queues. If both kinds of queues turn out to differ, the phase stays, and the report says how they
    differ.

    `make_rocksdb` replaces reading the log here. Raises StoreUnusable, kv.KvError, OSError, and what `make_rocksdb`
    raises; then the store is what it was.
    """
    engines = engines or RocksStoreEngines()
    found = inspect_store(disk, root)
    if found.kind is StoreKind.NEW:
        raise NotAStore(root, "there is no store in this directory")
    # RocketMQ's queue files have the next offsets of queues whose records have expired; the log does not
    mode = QueueMode.FILE if found.kind is StoreKind.ROCKETMQ_FILE else None
    settings = StoreSettings(root=root, queue_mode=mode)
    open_store(settings, disk=disk, clock=clock, report=report, engines=engines).close()
    try:
        lock = disk.lock(StorePaths(root).lock)
    except BlockingIOError as error:
        raise StoreLocked(StorePaths(root).lock, "a broker was started on the store meanwhile") from error
    try:
        return _Migration(disk, clock, root, orders, report=report, engines=engines, make_rocksdb=make_rocksdb).run()
    finally:
        lock.release()


@dataclass(frozen=True, slots=True)
class Plan:
    """A plan says in words what a migration would do."""

    origin: QueuePhase
    steps: tuple[str, ...]


def plan(disk: Disk, root: Path, orders: Orders) -> Plan:
    """Plan the migration and change nothing. Raises StoreUnusable and OSError as opening an offline store does."""
    with OfflineStore.open(disk, root) as store:
        found = store.found
        if found.kind is StoreKind.QUARRY:
            origin = store.queue_phase
        else:
            origin = QueuePhase.FILE if found.kind is StoreKind.ROCKETMQ_FILE else QueuePhase.ROCKSDB
    steps = ["recover the log and the queues" if found.has_abort else "open the store and stop it cleanly"]
    target = orders.target.phase
    if origin is target:
        return Plan(origin, (*steps, "nothing else: the queues are already where they should be"))
    if target is QueuePhase.ROCKSDB and not origin.reads_rocksdb:
        steps.append("read the log once and build the queues in RocksDB")
    if target is QueuePhase.FILE and not origin.writes_files:
        steps.append("write queue files from RocksDB")
    if not (target is QueuePhase.FILE and not origin.reads_rocksdb):
        steps.append("compare every entry of both")
    old = "queue files" if target is QueuePhase.ROCKSDB else "database of queues"
    steps.append(f"change to phase {target.value}")
    steps.append(f"remove the old {old}" if orders.remove_old else f"set the old {old} aside")
    return Plan(origin, tuple(steps))


class _Migration:
    """The object runs the steps 2 to 6 of a migration. The lock is held."""

    def __init__(
        self,
        disk: Disk,
        clock: Clock,
        root: Path,
        orders: Orders,
        *,
        report: ReportProgress,
        engines: StoreEngines,
        make_rocksdb: MakeRocksdb | None,
    ) -> None:
        self._make_rocksdb = make_rocksdb
        self._disk = disk
        self._clock = clock
        self._paths = StorePaths(root)
        self._orders = orders
        self._report = report
        self._engines = engines
        self._found: FoundStore = inspect_store(disk, root)

    def run(self) -> Migrated:
        paths = self._paths
        if self._found.has_abort:
            raise StoreUnusable(paths.root, "did not stop cleanly after its recovery: run this command again")
        with ExitStack() as closing:
            state_engine, identity = open_identity(self._engines, paths.quarry, self._disk, self._found)
            closing.callback(state_engine.close)
            origin = parse_phase(identity.queue_phase, paths.root)
            if origin is self._orders.target.phase:
                # an earlier run may have been killed in its last step
                return Migrated(origin=origin, phase=origin, aside=self._dispose(MigrationRows(state_engine)))
            if self._orders.target is Target.ROCKSDB:
                return self._to_rocksdb(origin, state_engine, identity)
            return self._to_files(origin, state_engine, identity)

    # -- to RocksDB

    def _to_rocksdb(self, origin: QueuePhase, state_engine: KeyValueEngine, identity: StoreIdentity) -> Migrated:
        paths, place = self._paths, self._paths.consume_queue_rocksdb_migrating
        # as long as files are read they are the truth, and the content of RocksDB does not matter
        makes = not origin.reads_rocksdb
        with ExitStack() as closing:
            segments = self._segments(closing)
            end = identity.files_up_to or segments.minimum
            files = self._files(paths.consume_queue, segments.minimum, end, _units_per_file(identity), closing)
            if makes:
                remove_database(self._disk, place)
            if makes and self._make_rocksdb is not None:
                self._make_rocksdb(place, files, end)
            rocks, _ = self._rocks(place if makes else self._found.rocksdb_directory, segments.minimum, closing)
            if makes and self._make_rocksdb is None:
                files_to_rocksdb(self._disk, segments, files, rocks, self._report)
            report = self._compare(files, rocks, segments.minimum, end)
        rows = MigrationRows(state_engine)
        if report.agrees or not makes:
            rows.save_report(report)
        if not report.agrees:
            return Migrated(origin=origin, phase=origin, report=report)
        if makes:
            free_database_place(self._disk, paths)
            self._disk.move(place, paths.consume_queue_rocksdb)
            if identity.backfill_end is not None:
                identity.backfilled_to = identity.backfill_end
        aside = self._switch(rows, origin)
        return Migrated(origin=origin, phase=QueuePhase.ROCKSDB, report=report, aside=aside)

    # -- to files

    def _to_files(self, origin: QueuePhase, state_engine: KeyValueEngine, identity: StoreIdentity) -> Migrated:
        paths, place = self._paths, self._paths.consume_queue_migrating
        makes = not origin.writes_files
        units_per_file = identity.units_per_file or entries_in_files(self._disk, paths.consume_queue) or UNITS_PER_FILE
        report = None
        with ExitStack() as closing:
            segments = self._segments(closing)
            if makes:
                self._remove_files(place)
            rocks, engine = self._rocks(self._found.rocksdb_directory, segments.minimum, closing)
            end = (rocks.dispatched_up_to() if makes else identity.files_up_to) or segments.minimum
            files = self._files(place if makes else paths.consume_queue, segments.minimum, end, units_per_file, closing)
            left_out = queues_left_out(rocks)
            if left_out and not self._orders.leave_out_names:
                raise StoreUnusable(paths.root, _refusal_of(left_out))
            if origin.reads_rocksdb:
                if makes:
                    estimate = engine.statistics().get(f"{ENTRIES_FAMILY}.keys_estimate", 0)
                    rocksdb_to_files(rocks, files, segments.minimum, estimate, self._report)
                report = self._compare(files, rocks, segments.minimum, end)
        rows = MigrationRows(state_engine)
        if report is not None and not report.agrees:
            if not makes:
                rows.save_report(report)
            return Migrated(origin=origin, phase=origin, report=report)
        if makes:
            self._free_file_place()
            self._disk.move(place, paths.consume_queue)
            identity.units_per_file = units_per_file
            identity.set_files_up_to(end, emptied=entries_in_files(self._disk, paths.consume_queue) is None)
        aside = self._switch(rows, origin)
        return Migrated(origin=origin, phase=QueuePhase.FILE, report=report, left_out=len(left_out), aside=aside)

    def _free_file_place(self) -> None:
        """Set old queue files aside. A database that lies among them moves to its separate place."""
        paths = self._paths
        if not self._disk.exists(paths.consume_queue):
            return
        if self._found.rocksdb_directory == paths.consume_queue:
            if self._disk.exists(paths.consume_queue_rocksdb):
                self._disk.move(paths.consume_queue_rocksdb, aside_of(self._disk, paths.consume_queue_rocksdb))
            self._disk.move(paths.consume_queue, paths.consume_queue_rocksdb)
        else:
            self._disk.move(paths.consume_queue, aside_of(self._disk, paths.consume_queue))

    # -- the switch

    def _switch(self, rows: MigrationRows, origin: QueuePhase) -> Path | None:
        """Write the phase down; then the old queues are set aside or removed. Returns where they are kept."""
        step = MigrationStep(
            at_ms=self._clock.wall_ms(),
            origin=origin,
            target=self._orders.target.phase,
            asked_by=self._orders.asked_by,
        )
        rows.take(step, removing=self._old if self._orders.remove_old else None)
        return self._dispose(rows)

    @property
    def _old(self) -> Removing:
        return Removing.FILES if self._orders.target is Target.ROCKSDB else Removing.ROCKSDB

    def _dispose(self, rows: MigrationRows) -> Path | None:
        """Set the queues that are no longer used aside, or remove them. Returns where they are kept; None: nowhere."""
        paths = self._paths
        if not self._orders.remove_old:
            return self._set_files_aside() if self._old is Removing.FILES else set_databases_aside(self._disk, paths)
        if self._old is Removing.FILES:
            self._remove_files(paths.consume_queue)
        else:
            for directory in databases(self._disk, paths):
                remove_database(self._disk, directory)
            self._remove_files(paths.consume_queue_rocksdb)  # old queue files that moved with the database
        rows.removed()
        return None

    def _set_files_aside(self) -> Path | None:
        directory = self._paths.consume_queue
        entries = self._disk.list_directory(directory)
        aside = aside_of(self._disk, directory)
        if self._disk.exists(directory / DATABASE_MARKER):
            set_names_aside(self._disk, directory, [entry.name for entry in entries if entry.is_directory])
        elif entries:
            self._disk.move(directory, aside)
        return aside if self._disk.exists(aside) else None

    def _remove_files(self, directory: Path) -> None:
        removal = FileQueueRemoval(self._disk, directory)
        while removal.step():
            pass

    # -- what is opened

    def _segments(self, closing: ExitStack) -> SegmentList:
        segments = open_log(self._disk, self._paths)
        closing.callback(segments.close)
        return segments

    def _files(
        self, directory: Path, minimum: PhysicalOffset, end: PhysicalOffset, units_per_file: int, closing: ExitStack
    ) -> FileConsumeQueues:
        files = FileConsumeQueues(
            self._disk,
            directory,
            minimum_physical_offset=minimum,
            dispatched_up_to=end,
            save_dispatched=_save_nothing,
            after_crash=False,
            units_per_file=units_per_file,
        )
        closing.callback(files.close)
        return files

    def _rocks(
        self, directory: Path, minimum: PhysicalOffset, closing: ExitStack
    ) -> tuple[RocksConsumeQueues, KeyValueEngine]:
        create = not self._disk.exists(directory / DATABASE_MARKER)
        try:
            engine = self._engines.open_queues(directory, create=create)
        except EngineCorrupt as error:
            advice = f"`quarry recover {self._paths.root} --rebuild-queues` rebuilds it"
            raise StoreUnusable(directory, f"the database is damaged ({error}); {advice}") from error
        closing.callback(engine.close)
        return RocksConsumeQueues(engine, minimum_physical_offset=minimum), engine

    def _compare(
        self, files: FileConsumeQueues, rocks: RocksConsumeQueues, minimum: PhysicalOffset, end: PhysicalOffset
    ) -> AgreementReport:
        scope = Scope(below=end, minimum=lambda: minimum)
        comparison = EntryComparison(
            files.entry_reader(), rocks.entry_reader(), scope, self._clock, asked_by=self._orders.asked_by
        )
        try:
            while comparison.step():
                entries = comparison.progress().units
                self._report(Progress("comparing both", entries, entries))
        finally:
            comparison.close()
        return comparison.report()


def _save_nothing(_: PhysicalOffset, /, *, emptied: bool) -> None:
    """Save nothing: only a broker puts entries."""


def _units_per_file(identity: StoreIdentity) -> int:
    units_per_file = identity.units_per_file
    assert units_per_file is not None, "the store was opened with files"
    return units_per_file


NAMED_MAX: Final = 20
"""The number of names that a refusal lists; it also gives the total."""


def _refusal_of(left_out: list[QueueId]) -> str:
    names = ", ".join(queue.topic for queue in left_out[:NAMED_MAX]) + (", …" if len(left_out) > NAMED_MAX else "")
    return (
        f"{len(left_out)} light queues have names that are not possible as file names ({names}) and would be lost; "
        "--leave-out-names accepts that"
    )
