"""The steps of a migration, and the conditions of each of them (ADR 14).

A step has up to three parts. `prepare` and `finish` block for the disk and belong on another thread; `switch` is the
step itself, on the thread that dispatches: the rows in one durable batch, then memory. Before the batch nothing has
changed; after it the next start is in the phase to which the step led.

| step                           | prepare                 | rows, in one batch            | finish                |
|--------------------------------|-------------------------|-------------------------------|-----------------------|
| `file` → `double_write`        | mark RocksDB, remove    | phase, range of the backfill, |                       |
|                                | what lies there, make   | unmark                        |                       |
|                                | the database            |                               |                       |
| `double_write` ↔ `backfilling` |                         | phase                         |                       |
| `backfilling` ↔ `verified`     |                         | phase                         |                       |
| `verified` ↔ `reading_rocksdb` |                         | phase                         |                       |
| `reading_rocksdb` → `rocksdb`  | (queues are flushed)    | phase, mark files             | remove files, unmark  |
| `double_write` → `file`        |                         | phase, mark RocksDB           | close and remove the  |
|                                |                         |                               | database, unmark      |

If the process is killed in `prepare`, a start removes what is marked. If it is killed after the rows of `file` →
`double_write`, a start makes the database. If it is killed in `finish`, the next start removes RocksDB, and the next
broker removes files.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

import structlog

from quarry_mq.kv import KeyValueEngine
from quarry_mq.protocol.clock import Clock
from quarry_mq.store.commitlog import SegmentList
from quarry_mq.store.consumequeue import DoubleWriteConsumeQueues, RocksConsumeQueues
from quarry_mq.store.engines import StoreEngines
from quarry_mq.store.errors import Busy, Forbidden
from quarry_mq.store.fs import Disk
from quarry_mq.store.layout.paths import StorePaths
from quarry_mq.store.layout.queue_phase import QueuePhase, QueuePlace
from quarry_mq.store.message import PhysicalOffset
from quarry_mq.store.migration.backfill import Backfill
from quarry_mq.store.migration.comparison import AgreementReport, Comparison, begin_comparison
from quarry_mq.store.migration.open_queues import OpenQueues
from quarry_mq.store.migration.queue_copy import queues_left_out
from quarry_mq.store.migration.rows import FileQueueRemoval, MigrationRows, MigrationStep, Removing, remove_database
from quarry_mq.store.settings import StoreSettings
from quarry_mq.store.state.identity import StoreIdentity

log = structlog.get_logger(__name__)

NAMES_LOGGED_MAX: Final = 16
_NEEDS_AGREEMENT: Final = (QueuePhase.BACKFILLING, QueuePhase.VERIFIED, QueuePhase.READING_ROCKSDB)
"""The phases that require a valid report of agreement before a step forwards."""


class MigrationStats(NamedTuple):
    """The position of a migration. Offsets are those of the log; without a backfill its range is None."""

    read_rocksdb: bool
    assign_rocksdb: bool
    backfilled_to: PhysicalOffset | None
    backfill_end: PhysicalOffset | None
    log_begin: PhysicalOffset
    lag_bytes: int
    """Bytes of the log by which the slower of the two stores lags behind the other."""

    @property
    def backfill_ratio(self) -> float:
        """The share of the backfill's range that is done, from 0 to 1. Only what the log still has counts."""
        if self.backfilled_to is None or self.backfill_end is None:
            return 1.0
        total = self.backfill_end - self.log_begin
        return 1.0 if total <= 0 else min(1.0, max(0.0, (self.backfilled_to - self.log_begin) / total))


class QueueMigration:
    """The migration of one open store. Belongs to the thread that dispatches, except where a method says otherwise."""

    def __init__(
        self,
        queues: OpenQueues,
        rows: MigrationRows,
        identity: StoreIdentity,
        *,
        settings: StoreSettings,
        segments: SegmentList,
        disk: Disk,
        engines: StoreEngines,
        clock: Clock,
    ) -> None:
        self._queues = queues
        self._rows = rows
        self._identity = identity
        self._settings = settings
        self._segments = segments
        self._disk = disk
        self._engines = engines
        self._clock = clock
        self._at_start: AgreementReport | None = None

    @property
    def phase(self) -> QueuePhase:
        return self._queues.phase

    @property
    def rows(self) -> MigrationRows:
        return self._rows

    @property
    def is_backfilled(self) -> bool:
        """True once RocksDB has everything that the files had when double write began."""
        done, end = self._identity.backfilled_to, self._identity.backfill_end
        return done is None or end is None or done >= end

    def stats(self) -> MigrationStats:
        """Return the position of the migration, for people. Any thread."""
        queues, identity = self._queues, self._identity
        return MigrationStats(
            read_rocksdb=queues.places.reads_rocksdb(self.phase),
            assign_rocksdb=queues.places.assigns_rocksdb(self.phase),
            backfilled_to=identity.backfilled_to,
            backfill_end=identity.backfill_end,
            log_begin=self._segments.minimum,
            lag_bytes=queues.lag_bytes,
        )

    # -- conditions

    def target_of_advance(self) -> QueuePhase:
        """Return the next phase. Raises Forbidden with the reason if no step leads on, Busy if one may in a while.

        It does not check for a valid report: see `needs_comparison`.
        """
        phase = self.phase
        target = phase.next
        if target is None:
            raise Forbidden("the migration is complete: only RocksDB is written and read")
        if phase is QueuePhase.BACKFILLING:
            self._require_all_in_rocksdb()
        self._require_settings(target)
        return target

    def target_of_rollback(self) -> QueuePhase:
        """Return the phase before. Raises Forbidden with the reason if no step leads back."""
        phase = self.phase
        target = phase.previous
        if target is None:
            raise Forbidden("the migration has not begun: only files are written and read")
        if phase is QueuePhase.ROCKSDB:
            raise Forbidden(
                "the file queues are gone, so the running broker cannot go back: stop the broker and run `quarry "
                f"migrate {self._settings.root} --to file`"
            )
        self._require_settings(target)
        return target

    def needs_comparison(self, target: QueuePhase) -> str | None:
        """Return why queues must be compared before the step to `target`; None when they need not be."""
        if self.phase not in _NEEDS_AGREEMENT or target is not self.phase.next:
            return None
        report = self._rows.report()
        if report is None:
            return "files and RocksDB were never compared"
        if report.doubt is not None:
            return f"the last comparison is not valid any more: {report.doubt}"
        if not report.agrees:
            return f"the last comparison found {sum(report.differences.values())} differences"
        return None

    def _require_all_in_rocksdb(self) -> None:
        if self._queues.doubled is not None:
            raise Forbidden(
                "consume_queue.double_write_topics leaves topics out of RocksDB: remove the setting and restart; "
                "then all topics are copied"
            )
        if not self.is_backfilled:
            raise Busy(f"the backfill is not complete: {self._identity.backfilled_to} of {self._identity.backfill_end}")

    def _require_settings(self, target: QueuePhase) -> None:
        """Raise Forbidden if the next start would be refused because of this step."""
        mode = self._settings.queue_mode
        if mode is not None and mode is not target.mode:
            raise Forbidden(
                f"consume_queue.mode says `{mode.value}`, with which the broker would refuse to start in phase "
                f"{target.value}: remove the setting and restart"
            )
        places = self._settings.queue_places
        if objection := places.objection(target):
            raise Forbidden(objection)
        if target is QueuePhase.ROCKSDB and QueuePlace.FILE in places:
            raise Forbidden("consume_queue.read or consume_queue.assign says `file`, but this step removes the files")

    # -- steps

    def prepare(self, target: QueuePhase) -> KeyValueEngine | None:
        """Do the part of the step that takes long, and return the database made for it. Any thread.

        Raises OSError, kv.KvError; then nothing has changed.
        """
        if (self.phase, target) != (QueuePhase.FILE, QueuePhase.DOUBLE_WRITE):
            return None
        directory = self._queues.rocks_directory
        self._rows.begin_removing(Removing.ROCKSDB)
        remove_database(self._disk, directory)
        return self._engines.open_queues(directory, create=True)

    def switch(self, target: QueuePhase, asked_by: str, engine: KeyValueEngine | None) -> Callable[[], None]:
        """Take the step. Returns the work that is left for another thread, long or not.

        `engine` is the result of `prepare`; it is closed if the step is not taken. Raises Forbidden, Busy, kv.KvError;
        then nothing has changed.
        """
        try:
            return self._switch(target, asked_by, engine)
        except BaseException:
            if engine is not None and self._queues.engine is not engine:
                engine.close()
            raise

    def _switch(self, target: QueuePhase, asked_by: str, engine: KeyValueEngine | None) -> Callable[[], None]:
        origin = self.phase
        self._require(target)
        step = MigrationStep(at_ms=self._clock.wall_ms(), origin=origin, target=target, asked_by=asked_by)
        finish: Callable[[], None] = _nothing
        if target is QueuePhase.DOUBLE_WRITE and origin is QueuePhase.FILE:
            assert engine is not None
            self._begin_double_write(step, engine)
        elif target is QueuePhase.FILE:
            finish = self._drop_rocks(step)
        elif target is QueuePhase.ROCKSDB:
            self._rows.take(step, removing=Removing.FILES)
            finish = self._drop_files()
        else:
            if target is QueuePhase.BACKFILLING:
                self._rows.doubt("the migration was taken back afterwards")
            self._rows.take(step)
        self._queues.phase = target
        log.info("consume queues: migration step", origin=origin.value, target=target.value, asked_by=asked_by)
        return finish

    def _require(self, target: QueuePhase) -> None:
        """Check all conditions again: they may have changed since the caller's check."""
        expected = self.target_of_advance() if target is self.phase.next else self.target_of_rollback()
        if target is not expected:
            raise Forbidden(f"no step leads from {self.phase.value} to {target.value}")
        if reason := self.needs_comparison(target):
            raise Forbidden(reason)
        if target is self.phase.next and self._queues.lag_bytes:
            raise Busy("files and RocksDB are not in step: a write to one of them failed and is being retried")

    def _begin_double_write(self, step: MigrationStep, engine: KeyValueEngine) -> None:
        files = self._queues.files
        assert files is not None
        minimum = self._segments.minimum
        rocks = RocksConsumeQueues(
            engine, minimum_physical_offset=minimum, cached_queues_max=self._settings.cached_queues_max
        )
        since = files.dispatched_up_to()
        if since is None:  # nothing was ever sent
            since = minimum
            files.put([], since)
        self._rows.take(step, backfill=(minimum, since))
        if self._settings.doubled_topics is not None:
            self._rows.set_doubled_topics(self._settings.doubled_topics)
        rocks.put([], since)
        self._queues.add_rocks(rocks, engine)

    def _drop_rocks(self, step: MigrationStep) -> Callable[[], None]:
        engine, rocks = self._queues.engine, self._queues.rocks
        assert engine is not None
        assert rocks is not None
        self._rows.take(step, removing=Removing.ROCKSDB)
        self._queues.drop_rocks()

        def finish() -> None:
            self._queues.wait_for_users()
            if lost := queues_left_out(rocks):
                names = [queue.topic for queue in lost[:NAMES_LOGGED_MAX]]
                log.warning(
                    "light queues are gone with RocksDB: no file can have their names", names=names, count=len(lost)
                )
            engine.close()
            remove_database(self._disk, self._queues.rocks_directory)
            self._rows.removed()

        return finish

    def _drop_files(self) -> Callable[[], None]:
        files = self._queues.files
        assert files is not None
        self._queues.drop_files()

        def finish() -> None:
            self._queues.wait_for_users()
            files.close()

        return finish

    # -- what comes of it

    def comparison(self, asked_by: str) -> Comparison:
        """Begin a comparison of the queues as they are now."""
        both = self._queues.store
        assert isinstance(both, DoubleWriteConsumeQueues)
        return begin_comparison(both, self._clock, asked_by=asked_by)

    def start_check(self) -> Comparison | None:
        """Begin a comparison of the queues' bounds, which a start can afford. None when there is one kind of queues."""
        both = self._queues.store
        if not isinstance(both, DoubleWriteConsumeQueues) or both.files is None or both.rocks is None:
            return None
        complete_from = None if self.is_backfilled else self._identity.backfill_end
        return begin_comparison(both, self._clock, asked_by="the start", complete_from=complete_from, bounds_only=True)

    def keep_start_report(self, report: AgreementReport) -> None:
        """Keep the findings of the start until the next one. Nothing is repaired. Any thread."""
        self._at_start = report
        if report.agrees:
            log.info("files and RocksDB agree on the bounds of the queues", queues=report.queues)
            return
        named = sorted({f"{each.topic}/{each.queue_number}" for each in report.first})
        log.error(
            "files and RocksDB disagree on the bounds of queues",
            differences=dict(report.differences),
            queues=named,
            repair=f"quarry migrate {self._settings.root} --repair",
        )
        self._rows.doubt("files and RocksDB disagreed at a start")

    @property
    def at_start(self) -> AgreementReport | None:
        """The findings of the start; None while it compares, and when there is one kind of queues."""
        return self._at_start

    def mismatches(self) -> int:
        """Return the number of differences that the last comparison found. Any thread."""
        report = self._rows.report()
        return 0 if report is None else sum(report.differences.values())

    def backfill(self) -> Backfill | None:
        """Return the job that copies older entries into RocksDB; None when there is nothing to do, or not yet."""
        if self.phase is not QueuePhase.BACKFILLING or self.is_backfilled:
            return None
        return Backfill(self._disk, self._queues, self._segments, self._identity)

    def keep_report(self, report: AgreementReport) -> None:
        """Store the report of a comparison. Any thread."""
        self._rows.save_report(report)

    def removal(self) -> FileQueueRemoval | None:
        """Return the job that removes the file queues left by a step; None when there are none.

        Call `removed` when it is done.
        """
        if self.phase is not QueuePhase.ROCKSDB or self._rows.removing() is not Removing.FILES:
            return None
        return FileQueueRemoval(self._disk, StorePaths(self._settings.root).consume_queue)

    def removed(self) -> None:
        """Record that all file queues are removed. Any thread."""
        self._identity.clear_file_progress()
        self._rows.removed()
        log.info("file queues are removed")


def _nothing() -> None:
    pass
