"""Verifies the store of a running broker: the log in the background, and everything on request.

What `quarry verify` compares is compared on request, one verification at a time, on a thread, throttled. Between them
the log is read sweep after sweep (`log_sweeps.py`), on the same thread: a sweep waits while a verification runs.

A verification reads a backup point: databases as they were at one moment, and the log up to an offset, none of whose
segments expires meanwhile. Queue files have no such copy; they only grow, and what was added lies above that offset.
Only if a topic was deleted meanwhile may they show differences that are none, and the verdict says so.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from threading import Event
from typing import Final

import structlog

from quarry_mq.kv import KvError
from quarry_mq.protocol.clock import Clock, Progress
from quarry_mq.server.maintenance.backup_points import BackupLeases
from quarry_mq.server.maintenance.log_sweeps import LogSweeps
from quarry_mq.server.settings.broker_settings import BrokerSettings
from quarry_mq.server.tasks import TimeSlice, Worker, until_set
from quarry_mq.store.backup import BackupPoint
from quarry_mq.store.errors import BrokerError, Busy, Invalid, StoreDamaged
from quarry_mq.store.fs import Disk
from quarry_mq.store.layout.paths import StorePaths
from quarry_mq.store.message import PhysicalOffset
from quarry_mq.store.offline import OfflineStore
from quarry_mq.store.opening.open_store import OpenStore
from quarry_mq.store.verify import Check, VerifyReport, verify
from quarry_mq.store.verify.report import THE_BROKER, Verdict, Verdicts, VerdictState

log = structlog.get_logger(__name__)

BUSY_PERCENT: Final = 25
RENEWAL_S: Final = 20.0
PAUSE_MAX_S: Final = 5.0
OF_FILES: Final = {Check.FILE_RECORDS, Check.FILE_ENTRIES}
ERRORS: Final = (KvError, OSError, BrokerError)


class _CancelledError(Exception):
    """Raised on the thread when the verification was cancelled."""


@dataclass(slots=True)
class _Job:
    """The verification that is under way."""

    verdict: Verdict
    busy_ratio: float
    cancelled: Event = field(default_factory=Event)
    progress: Progress = field(default_factory=lambda: Progress("waiting", 0, 0))


class OnlineVerification:
    """Verifications of one open store. Lives on the event loop's thread."""

    def __init__(
        self,
        store: OpenStore,
        settings: BrokerSettings,
        *,
        points: BackupLeases,
        report_damage: Callable[[StoreDamaged], None],
        disk: Disk,
        clock: Clock,
    ) -> None:
        """`report_damage` is called for each damage of the log that is found."""
        self._paths = StorePaths(settings.store.directory.absolute())
        self._points = points
        self._queues = store.queues
        self._messages = store.messages
        self._report_damage = report_damage
        self._disk = disk
        self._clock = clock
        self._worker = Worker("verification")
        self._verdicts = Verdicts(store.state_engine)
        self.sweeps: Final = LogSweeps(
            settings.verification,
            segments=store.segments,
            messages=store.messages,
            verdicts=self._verdicts,
            worker=self._worker,
            report_damage=report_damage,
            clock=clock,
        )
        self._job: _Job | None = None
        self._wanted = asyncio.Event()

    def configure(self, settings: BrokerSettings) -> None:
        """Apply changed settings to the sweeps at once."""
        self.sweeps.configure(settings.verification)
        self._wanted.set()

    # -- on request

    def begin(self, asked_by: str, busy_percent: int = 0) -> Verdict:
        """Begin a verification. Raises Busy while another is under way, Invalid, kv.KvError."""
        if self._job is not None:
            raise Busy(f"verification {self._job.verdict.id} is already running")
        if not 0 <= busy_percent <= 100:
            raise Invalid("busy_percent must be 1 to 100, or 0 for the default")
        if asked_by == THE_BROKER:
            raise Invalid(f"asked_by must not be {THE_BROKER!r}: that is whom the sweeps over the log are from")
        newest = next(iter(self._verdicts.all()), None)
        at_ms = max(self._clock.wall_ms(), 0 if newest is None else newest.id + 1)
        verdict = Verdict(id=at_ms, asked_by=asked_by, state=VerdictState.RUNNING)
        self._verdicts.save(verdict)
        self._job = _Job(verdict, (busy_percent or BUSY_PERCENT) / 100)
        self._wanted.set()
        return verdict

    @property
    def is_running(self) -> bool:
        return self._job is not None

    def cancel(self, verification_id: int) -> Verdict:
        """Cancel the verification; it ends soon. Raises Invalid when it is not running."""
        current = self.sweeps.current
        if current is not None and current.id == verification_id:
            raise Invalid(
                f"{verification_id} is a sweep of the broker over its log: verification.interval_ms = 0 ends them all"
            )
        if self._job is None or self._job.verdict.id != verification_id:
            raise Invalid(f"verification {verification_id} is not running")
        self._job.cancelled.set()
        return self._job.verdict

    def requested(self) -> list[Verdict]:
        """Return the stored verdicts that somebody asked for, the newest first."""
        running = None if self._job is None else self._job.verdict.id
        return [
            each.given_up(VerdictState.FAILED, None, "the broker stopped before the verification was complete")
            if each.state is VerdictState.RUNNING and each.id != running
            else each
            for each in self._verdicts.all()
            if not each.is_sweep
        ]

    def all(self) -> list[Verdict]:
        """Return the stored verdicts and the sweeps over the log, the newest first."""
        sweeps = [each for each in self._verdicts.all() if each.is_sweep and each.state is not VerdictState.RUNNING]
        if self.sweeps.current is not None:
            sweeps.append(self.sweeps.current)
        return sorted([*self.requested(), *sweeps], key=lambda each: each.id, reverse=True)

    def get(self, verification_id: int | None) -> Verdict:
        """Return one verdict, or the newest that somebody asked for, or else the newest sweep.

        Raises Invalid when there is none.
        """
        if verification_id is None:
            found = next(iter([*self.requested(), *self.all()]), None)
        else:
            found = next((each for each in self.all() if each.id == verification_id), None)
        if found is None:
            raise Invalid("there is no verification" + ("" if verification_id is None else f" {verification_id}"))
        return found

    def progress_of(self, verdict: Verdict) -> Progress | None:
        """Return the progress of a verification; None unless it is under way."""
        if verdict.is_sweep:
            current = self.sweeps.current
            return self.sweeps.progress if current is not None and current.id == verdict.id else None
        return self._job.progress if self._job is not None and self._job.verdict.id == verdict.id else None

    # -- the task

    async def run(self) -> None:
        """Run each verification that was begun, and the sweeps over the log between them, until cancelled."""
        while True:
            job = self._job
            if job is None:
                await until_set(self._wanted, await self.sweeps.work())
                self._wanted.clear()
                continue
            try:
                verdict = await self._verified(job)
                await self._worker.run(self._verdicts.save, verdict)
                log.info("store verified", id=verdict.id, outcome=verdict.state.value, remark=verdict.remark)
            except ERRORS as error:
                log.error("the verdict of a verification could not be kept", error=str(error))
            finally:
                job.cancelled.set()  # if this task was cancelled, the thread is still working
                self._job = None

    async def stop(self) -> None:
        """Wait until no work is under way on the thread. `run` must have been cancelled before."""
        await self.sweeps.save()
        await self._worker.stop()

    async def _verified(self, job: _Job) -> Verdict:
        try:
            point = await self._points.begin()
        except ERRORS as error:
            return job.verdict.given_up(VerdictState.FAILED, self._clock.wall_ms(), str(error))
        renewing = asyncio.get_running_loop().create_task(self._renew(point.name))
        try:
            removals = self._queues.removals
            limit = PhysicalOffset(min(point.log_end, self._messages.dispatched_up_to))
            report = await self._worker.run(self._verify, job, point, limit)
            self._report_damaged_log(report)
            return job.verdict.ended(report, self._clock.wall_ms(), self._remark(report, removals))
        except _CancelledError:
            return job.verdict.given_up(VerdictState.CANCELLED, self._clock.wall_ms())
        except ERRORS as error:
            return job.verdict.given_up(VerdictState.FAILED, self._clock.wall_ms(), str(error))
        finally:
            renewing.cancel()
            with suppress(Invalid):
                self._points.end(point.name)

    async def _renew(self, name: str) -> None:
        while True:
            await asyncio.sleep(RENEWAL_S)
            self._points.renew(name)

    def _report_damaged_log(self, report: VerifyReport) -> None:
        """Report damage of the log as a read that meets it does. Other differences are in the verdict alone."""
        for each in report.differences:
            if each.check is Check.LOG and each.physical_offset is not None:
                at, words = each.physical_offset, each.found.partition(": ")[2] or each.found
                self._report_damage(
                    StoreDamaged(each.file, f"the record at offset {at} is damaged: {words}", record_at=at)
                )

    def _remark(self, report: VerifyReport, removals: int) -> str | None:
        of_files = any(count.differences for check, count in report.counts.items() if check in OF_FILES)
        if of_files and removals != self._queues.removals:
            return "queues were removed while their files were read: run the verification again"
        return None

    # -- on the thread

    def _verify(self, job: _Job, point: BackupPoint, limit: PhysicalOffset) -> VerifyReport:
        folder = self._paths.backup_points / point.name
        time_slice = TimeSlice(self._clock)

        def report(progress: Progress) -> None:
            job.progress = progress
            job.cancelled.wait(min(PAUSE_MAX_S, time_slice.took_s * (1 / job.busy_ratio - 1)))
            if job.cancelled.is_set():
                raise _CancelledError
            time_slice.restart()

        rocksdb_folder = self._queues.rocks_directory.name
        with OfflineStore.at_point(self._disk, self._paths.root, folder, rocksdb_folder, limit) as store:
            return verify(store, report)
