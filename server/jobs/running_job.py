"""A job that has not ended, as the code of its kind sees it."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, Protocol

from quarry_mq.protocol.clock import Clock
from quarry_mq.server.delivery import StateWriter
from quarry_mq.server.tasks.time_slice import TimeSlice
from quarry_mq.store.state.jobs import Job, JobState, JobTable


class JobCancelled(Exception):
    """The job was cancelled."""


class JobMetrics(Protocol):
    def jobs_open(self, count: int) -> None: ...

    def job_did(self, kind: str, count: int) -> None: ...

    def job_ended(self, kind: str, state: JobState) -> None: ...


class Running:
    """Stores a job's progress in the same batch as its effects, so that a crash repeats or loses none of them.

    Lives on the event loop's thread.
    """

    def __init__(self, job: Job, table: JobTable, writer: StateWriter, clock: Clock, metrics: JobMetrics) -> None:
        self.job = job
        """The job's current state; the stored one may be a step behind."""
        self.complaint: str | None = None
        """The temporary error because of which the job waits; None without one."""
        self._kept = job
        self._table = table
        self._writer = writer
        self._metrics = metrics
        self._slice = TimeSlice(clock)
        self._cancelled = asyncio.Event()

    @property
    def is_cancelled(self) -> bool:
        return self._cancelled.is_set()

    def cancel(self) -> None:
        self._cancelled.set()

    def expect(self, total: int) -> None:
        """Set the total number of items, once it is known."""
        self.job = replace(self.job, total=total)

    def did(self, done: int, cursor: Mapping[str, Any], counts: Mapping[str, int], errors: Sequence[str] = ()) -> None:
        """Record that `done` more items were done in this iteration of the loop. The job continues from `cursor`."""
        self.job = self.job.further(done, cursor, counts, tuple(errors))

    def keep(self, *, durably: bool = False) -> None:
        """Write the progress, with all that this loop iteration has staged. Raises StorePoisoned, kv.EngineFull."""
        written: list[Exception | None] = []
        self._table.stage(self._writer.batch(), self.job)
        self._writer.when_written(written.append)
        if durably:
            self._writer.write_durably()
        else:
            self._writer.write_now()
        error = written.pop()
        try:
            if error is not None:
                raise error
        finally:
            del error  # it refers to this frame
        self._metrics.job_did(self.job.kind, self.job.done - self._kept.done)
        self._kept = self.job
        self.complaint = None

    def fall_back(self) -> None:
        """Return to the state that was last written."""
        self.job = self._kept

    async def rest(self) -> None:
        """Yield between two small pieces of work. Raises JobCancelled, and as `keep`."""
        await self.pause()
        if self.is_cancelled:
            raise JobCancelled

    async def pause(self) -> None:
        """Yield like `rest`, but ignore cancellation, for work that cannot be interrupted here."""
        if self._slice.is_over:
            if self.job is not self._kept:
                self.keep()
            await self._slice.pause()

    def restart_slice(self) -> None:
        """Restart the time slice: the time that was spent waiting was not work."""
        self._slice.restart()

    async def wait(self, seconds: float) -> None:
        """Wait for some seconds, or until the job is cancelled meanwhile."""
        if self.is_cancelled:
            await asyncio.sleep(seconds)
            return
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._cancelled.wait()
