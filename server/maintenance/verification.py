"""Runs `quarry verify` on the store of a running broker: one at a time, on a thread, throttled.

It reads a backup point: databases as they were at one moment, and the log up to an offset, none of whose segments
expires meanwhile. Queue files have no such copy; they only grow, and what was added lies above that offset. Only if a
topic was deleted meanwhile may they show differences that are none, and the verdict says so.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event
from typing import Final

import structlog

from quarry_mq.kv import KvError
from quarry_mq.protocol.clock import Clock, Progress
from quarry_mq.server.maintenance.backup_points import BackupLeases
from quarry_mq.server.tasks import TimeSlice, Worker
from quarry_mq.store.backup import BackupPoint
from quarry_mq.store.errors import BrokerError, Busy, Invalid
from quarry_mq.store.fs import Disk
from quarry_mq.store.layout.paths import StorePaths
from quarry_mq.store.message import PhysicalOffset
from quarry_mq.store.migration.open_queues import OpenQueues
from quarry_mq.store.offline import OfflineStore
from quarry_mq.store.verify import Check, VerifyReport, verify
from quarry_mq.store.verify.report import Verdict, Verdicts, VerdictState

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
        root: Path,
        *,
        points: BackupLeases,
        queues: OpenQueues,
        dispatched_up_to: Callable[[], PhysicalOffset],
        verdicts: Verdicts,
        disk: Disk,
        clock: Clock,
    ) -> None:
        self._paths = StorePaths(root.absolute())
        self._points = points
        self._queues = queues
        self._dispatched_up_to = dispatched_up_to
        self._verdicts = verdicts
        self._disk = disk
        self._clock = clock
        self._worker = Worker("verification")
        self._job: _Job | None = None
        self._wanted = asyncio.Event()

    # -- on request

    def begin(self, asked_by: str, busy_percent: int = 0) -> Verdict:
        """Begin a verification. Raises Busy while another is under way, Invalid, kv.KvError."""
        if self._job is not None:
            raise Busy(f"verification {self._job.verdict.id} is already running")
        if not 0 <= busy_percent <= 100:
            raise Invalid("busy_percent must be 1 to 100, or 0 for the default")
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
        if self._job is None or self._job.verdict.id != verification_id:
            raise Invalid(f"verification {verification_id} is not running")
        self._job.cancelled.set()
        return self._job.verdict

    def all(self) -> list[Verdict]:
        """Return the stored verdicts, the newest first."""
        running = None if self._job is None else self._job.verdict.id
        return [
            each.given_up(VerdictState.FAILED, None, "the broker stopped before the verification was complete")
            if each.state is VerdictState.RUNNING and each.id != running
            else each
            for each in self._verdicts.all()
        ]

    def get(self, verification_id: int | None) -> Verdict:
        """Return one verdict, or the newest. Raises Invalid when there is none."""
        for each in self.all():
            if verification_id in {None, each.id}:
                return each
        raise Invalid("there is no verification" + ("" if verification_id is None else f" {verification_id}"))

    def progress_of(self, verdict: Verdict) -> Progress | None:
        """Return the progress of a verification; None unless it is under way."""
        return self._job.progress if self._job is not None and self._job.verdict.id == verdict.id else None

    # -- the task

    async def run(self) -> None:
        """Run each verification that was begun, until cancelled."""
        while True:
            await self._wanted.wait()
            self._wanted.clear()
            job = self._job
            if job is None:
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
        await self._worker.stop()

    async def _verified(self, job: _Job) -> Verdict:
        try:
            point = await self._points.begin()
        except ERRORS as error:
            return job.verdict.given_up(VerdictState.FAILED, self._clock.wall_ms(), str(error))
        renewing = asyncio.get_running_loop().create_task(self._renew(point.name))
        try:
            removals = self._queues.removals
            limit = PhysicalOffset(min(point.log_end, self._dispatched_up_to()))
            report = await self._worker.run(self._verify, job, point, limit)
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
