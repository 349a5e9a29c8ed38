"""Migrates the consume queues of a running broker: steps on request, and the work between them.

One thing is done at a time: a step, the backfill, a comparison, or the removal of what a step has left behind. A step
does not wait for the work but interrupts it; finished parts stay finished. Blocking calls are on a thread of their own;
changes of the queues are on the event loop's thread, in pieces of some milliseconds.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Final, NamedTuple

import structlog

from quarry_mq.kv import KvError
from quarry_mq.protocol.clock import Clock
from quarry_mq.server.append import QueueCommit
from quarry_mq.server.tasks import LastErrors, TimeSlice, Worker, until_set
from quarry_mq.store.errors import BrokerError, Busy, Unavailable
from quarry_mq.store.layout.queue_phase import QueuePhase
from quarry_mq.store.migration import (
    AgreementReport,
    Backfill,
    Comparison,
    ComparisonProgress,
    MigrationStep,
    QueueMigration,
)

log = structlog.get_logger(__name__)

SAVE_EVERY_BYTES: Final = 64 << 20
"""Bytes of the backfill that a killed broker repeats at most."""
PIECE_S: Final = 0.05
"""Seconds that a thread works before it pauses for as long."""
BREATH_S: Final = 0.002
RETRY_S: Final = 5.0
ERRORS: Final = (KvError, OSError, BrokerError)


class _Wanted(NamedTuple):
    """A step that waits for a comparison."""

    target: QueuePhase
    asked_by: str


@dataclass(frozen=True, slots=True, kw_only=True)
class MigrationStatus:
    """The current state of the migration, and its possible next steps."""

    phase: QueuePhase
    read_rocksdb: bool
    assign_rocksdb: bool
    advance_to: QueuePhase | None
    advance_refused: str | None
    """The reason why the next step cannot be taken now; None when it can, or when a comparison comes first."""
    comparison_first: str | None
    """The reason why the next step compares the queues first."""
    rollback_to: QueuePhase | None
    rollback_refused: str | None
    backfilled_to: int | None
    backfill_end: int | None
    log_begin: int
    lag_bytes: int
    comparing: ComparisonProgress | None
    report: AgreementReport | None
    at_start: AgreementReport | None
    """The report of the start, which compared the bounds of the queues."""
    is_removing: bool
    problem: str | None
    """Message of the error that blocks the work, which is tried again."""
    steps: tuple[MigrationStep, ...]


class OnlineMigration:
    """The migration of one open store. Lives on the event loop's thread."""

    def __init__(
        self,
        migration: QueueMigration,
        commit: QueueCommit,
        clock: Clock,
        *,
        backfill_bytes_per_s: int,
    ) -> None:
        self._migration = migration
        self._commit = commit
        self._clock = clock
        self._backfill_bytes_per_s = backfill_bytes_per_s
        self._worker = Worker("migration")
        self._busy = asyncio.Lock()
        self._to_do = asyncio.Event()
        self._to_do.set()
        self._interrupt = asyncio.Event()
        self._steps_waiting = 0
        self._wanted: _Wanted | None = None
        self._comparison: Comparison | None = None
        self._errors = LastErrors()
        self._is_checked = False

    def configure(self, *, backfill_bytes_per_s: int) -> None:
        self._backfill_bytes_per_s = backfill_bytes_per_s

    # -- on request

    async def advance(self, asked_by: str) -> QueuePhase | None:
        """Take the next step and return its phase.

        None: the queues are compared first, and the step is taken if
        they agree. Raises Forbidden, Busy, Unavailable, kv.KvError.
        """
        target = self._migration.target_of_advance()
        if self._wanted is not None:
            raise Busy("the queues are being compared")
        if self._migration.needs_comparison(target):
            self._wanted = _Wanted(target, asked_by)
            self._to_do.set()
            return None
        await self._take(target, asked_by)
        return target

    async def roll_back(self, asked_by: str) -> QueuePhase:
        """Take one step back.

        A comparison that is under way ends without a report. Raises the same errors as `advance`.
        """
        target = self._migration.target_of_rollback()
        self._wanted = None
        await self._take(target, asked_by)
        return target

    @property
    def problem(self) -> str | None:
        """Message of the error that blocks the work, which is tried again."""
        return self._errors.texts.get("")

    def status(self) -> MigrationStatus:
        migration = self._migration
        advance_to, advance_refused = _tried(migration.target_of_advance)
        rollback_to, rollback_refused = _tried(migration.target_of_rollback)
        stats = migration.stats()
        return MigrationStatus(
            phase=migration.phase,
            read_rocksdb=stats.read_rocksdb,
            assign_rocksdb=stats.assign_rocksdb,
            advance_to=advance_to,
            advance_refused=advance_refused,
            comparison_first=None if advance_to is None else migration.needs_comparison(advance_to),
            rollback_to=rollback_to,
            rollback_refused=rollback_refused,
            backfilled_to=stats.backfilled_to,
            backfill_end=stats.backfill_end,
            log_begin=stats.log_begin,
            lag_bytes=stats.lag_bytes,
            comparing=None if self._comparison is None else self._comparison.progress(),
            report=migration.rows.report(),
            at_start=migration.at_start,
            is_removing=migration.rows.removing() is not None,
            problem=self.problem,
            steps=tuple(migration.rows.steps()),
        )

    # -- the task

    async def run(self) -> None:
        """Do the work of the current phase until cancelled. A failure is logged once and tried again."""
        while True:
            await self._to_do.wait()
            self._to_do.clear()
            again = False
            async with self._busy:
                try:
                    again = await self._work()
                    self._errors.clear()
                except ERRORS as error:
                    if self._errors.is_new(error):
                        log.error("the migration of the consume queues is held up, it is tried again", error=str(error))
                    again = True
            if again:
                await self._pause(0.0 if self.problem is None else RETRY_S)
                self._to_do.set()

    async def stop(self) -> None:
        """Wait until no work is under way on any thread. `run` must have been cancelled before."""
        self._interrupt.set()
        await self._worker.stop()

    async def _work(self) -> bool:
        """Do the next piece of work, and return whether there may be more. It is left unfinished when a step waits."""
        if not self._is_checked:
            await self._check()
        elif (backfill := self._migration.backfill()) is not None:
            try:
                await self._backfill(backfill)
            finally:
                await self._worker.run(backfill.close)
        elif self._wanted is not None:
            await self._compare(self._wanted)
        elif (removal := self._migration.removal()) is not None:
            await self._in_pieces(removal.step)
            if not self._interrupt.is_set():
                await self._worker.run(self._migration.removed)
        else:
            return False
        return not self._interrupt.is_set()

    # -- the check at the start

    async def _check(self) -> None:
        check = self._migration.start_check()
        if check is not None:
            try:
                await self._in_pieces(check.step)
                if self._interrupt.is_set():
                    return
                await self._worker.run(self._migration.keep_start_report, check.report())
            finally:
                await self._worker.run(check.close)
        self._is_checked = True

    # -- the backfill

    async def _backfill(self, work: Backfill) -> None:
        log.info("backfill of RocksDB begins", log_offset=work.at, end=work.end)
        unsaved = 0
        while not self._interrupt.is_set():
            began_s = self._clock.monotonic_s()
            portion = await self._worker.run(work.read)
            if portion is None:
                while work.raise_max_offsets():
                    await asyncio.sleep(BREATH_S)
                await self._save(partial(work.save, work.end))
                log.info("backfill of RocksDB is through", end=work.end)
                return
            left = True
            while left:
                if work.is_stale(portion):
                    await self._worker.run(work.look_up_again, portion)
                else:
                    left = work.put(portion)
                    await asyncio.sleep(0)
            unsaved += portion.size
            if unsaved >= SAVE_EVERY_BYTES:
                await self._save(partial(work.save, portion.end))
                unsaved = 0
            await self._pause(began_s + portion.size / self._backfill_bytes_per_s - self._clock.monotonic_s())

    async def _save(self, save: Callable[[], None]) -> None:
        if not await self._commit.make_queues_durable():
            raise Unavailable("the queues could not be made durable")
        await self._worker.run(save)

    # -- a comparison

    async def _compare(self, wanted: _Wanted) -> None:
        comparison = self._comparison = self._migration.comparison(wanted.asked_by)
        log.info("consume queues: comparison begins", asked_by=wanted.asked_by)
        try:
            await self._in_pieces(comparison.step)
            if self._interrupt.is_set():
                return
            report = comparison.report()
        finally:
            self._comparison = None
            await self._worker.run(comparison.close)
        await self._worker.run(self._migration.keep_report, report)
        self._wanted = None
        tell = log.info if report.agrees else log.error
        tell("consume queues: compared", queues=report.queues, units=report.units, differences=dict(report.differences))
        if report.agrees:
            await self._take_now(wanted.target, wanted.asked_by)

    # -- steps

    async def _take(self, target: QueuePhase, asked_by: str) -> None:
        """Take a step, interrupting the work that is under way."""
        self._steps_waiting += 1
        self._interrupt.set()
        try:
            async with self._busy:
                await self._take_now(target, asked_by)
        finally:
            self._steps_waiting -= 1
            if not self._steps_waiting:
                self._interrupt.clear()
            self._to_do.set()

    async def _take_now(self, target: QueuePhase, asked_by: str) -> None:
        if target is QueuePhase.ROCKSDB and not await self._commit.make_queues_durable():
            raise Unavailable("the queues could not be made durable")
        try:
            engine = await self._worker.run(self._migration.prepare, target)
        except OSError as error:
            raise Unavailable(f"the step could not be prepared: {error}") from error
        finish = self._migration.switch(target, asked_by, engine)
        try:
            await self._worker.run(finish)
        except ERRORS as error:
            log.warning("what a migration step has left is removed at the next start", error=str(error))

    # -- inside

    async def _in_pieces(self, step: Callable[[], bool]) -> None:
        """Do pieces of work on the thread until none is left or a step waits, at most half of the time."""
        while not self._interrupt.is_set():
            time_slice = TimeSlice(self._clock, work_s=PIECE_S)
            if not await self._worker.run(self._piece, step, time_slice):
                return
            await self._pause(time_slice.took_s)

    def _piece(self, step: Callable[[], bool], time_slice: TimeSlice) -> bool:
        while step():
            if time_slice.is_over or self._interrupt.is_set():
                return True
        return False

    async def _pause(self, seconds: float) -> None:
        """Pause for this time, or shorter if a step waits."""
        if await until_set(self._interrupt, max(BREATH_S, seconds)):
            await asyncio.sleep(BREATH_S)


def _tried(target_of: Callable[[], QueuePhase]) -> tuple[QueuePhase | None, str | None]:
    try:
        return target_of(), None
    except BrokerError as refusal:
        return None, str(refusal)
