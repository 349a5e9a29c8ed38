"""Long work for operators: jobs with an id, progress, a result and an end, kept over restarts (ADR 39).

One job runs at a time, in slices of a millisecond. Its parameters are kept in JSON, so all fields are numbers, texts
and lists of them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from enum import Enum
from typing import Any, Final, Protocol

import structlog

from quarry_mq.kv import EngineFull, KvError
from quarry_mq.protocol.clock import Clock
from quarry_mq.server.delivery import StateWriter
from quarry_mq.server.delivery.model import Place, ResetTarget, StoredSince
from quarry_mq.server.errors import NoSuchJob
from quarry_mq.server.tasks import TimeSlice
from quarry_mq.store.errors import BrokerError, Busy, Invalid, StorePoisoned, Unavailable
from quarry_mq.store.message import QueueOffset
from quarry_mq.store.state.jobs import TEXT_MAX, Job, JobState, JobTable

log = structlog.get_logger(__name__)

OFFSETS_MAX: Final = 1_000
"""Dead letters that one job may name by offset."""


class JobKind(Enum):
    """The kinds of jobs. The value is the kind's name, also in metrics."""

    RESET_OFFSET = "reset-offset"
    RESEND_DEAD_LETTERS = "resend-dead-letters"
    RESEND_MESSAGES = "resend-messages"


@dataclass(frozen=True, kw_only=True, slots=True)
class OffsetReset:
    """Move a group's next offset in one queue or all queues of a topic, lite topics included."""

    group: str
    topic: str
    to: str
    """`earliest`, `latest`, `offset` or `time`; for the last two, `at` is the offset, or the time in ms since 1970."""
    at: int = 0
    queue: int | None = None

    @classmethod
    def of(cls, group: str, topic: str, target: ResetTarget, queue: int | None = None) -> OffsetReset:
        match target:
            case Place():
                return cls(group=group, topic=topic, to=target.value, queue=queue)
            case StoredSince(time_ms):
                return cls(group=group, topic=topic, to="time", at=time_ms, queue=queue)
            case int():
                return cls(group=group, topic=topic, to="offset", at=target, queue=queue)

    @property
    def target(self) -> ResetTarget:
        match self.to:
            case "time":
                return StoredSince(self.at)
            case "offset":
                return QueueOffset(self.at)
            case _:
                return Place(self.to)


@dataclass(frozen=True, kw_only=True, slots=True)
class DeadLetterResend:
    """Send dead letters of a group to it once more: these offsets, or all that were never sent again."""

    group: str
    offsets: tuple[int, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class MessageResend:
    """Send stored messages of a topic once more, to `to_topic`.

    The messages are those that have `key` (unless it is empty), or those of one queue or of all queues, stored in
    [from_ms, to_ms], with offsets in [from_offset, to_offset). Only what lies below `log_end`, and so was stored when
    the job was requested, is sent.
    """

    topic: str
    to_topic: str
    log_end: int
    key: str = ""
    queue: int | None = None
    from_offset: int | None = None
    to_offset: int | None = None
    from_ms: int | None = None
    to_ms: int | None = None


Asked = OffsetReset | DeadLetterResend | MessageResend

_TYPES: Final[Mapping[JobKind, type[Asked]]] = {
    JobKind.RESET_OFFSET: OffsetReset,
    JobKind.RESEND_DEAD_LETTERS: DeadLetterResend,
    JobKind.RESEND_MESSAGES: MessageResend,
}


def kind_of(asked: Asked) -> JobKind:
    return next(kind for kind, each in _TYPES.items() if isinstance(asked, each))


def fields_of(asked: Asked) -> dict[str, Any]:
    return asdict(asked)


def asked_of(job: Job) -> Asked:
    """Return the parameters of a job. Raises Invalid for a job that a newer version has begun."""
    try:
        fields: dict[str, Any] = {
            name: tuple(each) if isinstance(each, list) else each for name, each in job.asked.items()
        }
        return _TYPES[JobKind(job.kind)](**fields)
    except (ValueError, TypeError) as error:
        raise Invalid(f"this version of the broker does not support job {job.id} ({job.kind})") from error


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
        self.last_error: str | None = None
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
        self.last_error = None

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


OPEN_MAX: Final = 32
"""Jobs that are queued or running: one runs, the others wait."""

RETRY_S: Final = 1.0
"""Seconds until a job that was stopped by a full disk or a limit is tried again."""

TRANSIENT: Final = (Unavailable, EngineFull)
REFUSALS: Final = (BrokerError, KvError, OSError)
UNEXPECTED: Final = "unexpected error; see the broker's log"


class Work(Protocol):
    """The code that carries out the jobs of one kind."""

    def check(self, asked: Any) -> None:
        """Check the parameters. Raises Invalid for what cannot be done, naming the field."""

    async def run(self, asked: Any, running: Running) -> None:
        """Continue at the job's cursor until all is done. An exception ends the job, but Unavailable is tried again."""


class Jobs:
    """Keep all jobs of a broker. Lives on the event loop's thread."""

    def __init__(
        self,
        table: JobTable,
        works: Mapping[JobKind, Work],
        *,
        writer: StateWriter,
        clock: Clock,
        metrics: JobMetrics,
    ) -> None:
        """`works` do the jobs. What a job has sent is on the disk when it records its progress."""
        self._table = table
        self._works = works
        self._writer = writer
        self._clock = clock
        self._metrics = metrics
        self._wanted = asyncio.Event()
        self._current: Running | None = None
        kept = table.all()
        self._last_id = kept[0].id if kept else 0
        self._open = {job.id: self._opened(job) for job in reversed(kept) if not job.state.is_end}
        metrics.jobs_open(len(self._open))
        for each in self._open.values():
            log.info("job goes on after a restart", id=each.job.id, kind=each.job.kind, done=each.job.done)

    # -- on request

    def begin(self, asked: Asked, asked_by: str, *, is_dry_run: bool = False) -> Job:
        """Begin a job; it is stored when this returns.

        Raises Busy while too many wait, what the kind's check raises, StorePoisoned, kv.EngineFull.
        """
        if len(self._open) >= OPEN_MAX:
            raise Busy(f"{OPEN_MAX} jobs are queued or running: wait for one to end, or cancel one (quarry job list)")
        kind = kind_of(asked)
        self._works[kind].check(asked)
        self._last_id = max(self._clock.wall_ms(), self._last_id + 1)
        job = Job(
            id=self._last_id,
            kind=kind.value,
            asked_by=asked_by[:TEXT_MAX],
            asked=fields_of(asked),
            is_dry_run=is_dry_run,
        )
        running = self._opened(job)
        running.keep(durably=True)
        self._open[job.id] = running
        self._metrics.jobs_open(len(self._open))
        self._wanted.set()
        log.info("job begun", id=job.id, kind=job.kind, by=job.asked_by, dry_run=is_dry_run)
        return job

    def cancel(self, job_id: int) -> Job:
        """Cancel a job: at once if it waits for others, soon if it runs. What was done stays done.

        Raises NoSuchJob, or Invalid when it has ended; StorePoisoned, kv.EngineFull.
        """
        running = self._open.get(job_id)
        if running is None:
            raise Invalid(f"job {job_id} has ended: it is {self.get(job_id).state.value}")
        running.cancel()
        if running is not self._current:
            self._end(running, JobState.CANCELLED)
        return running.job

    def all(self) -> list[Job]:
        """Return all jobs that are kept, the newest first."""
        return [self._as_it_stands(job) for job in self._table.all()]

    def get(self, job_id: int) -> Job:
        """Return a job. Raises NoSuchJob."""
        job = self._table.get(job_id)
        if job is None:
            raise NoSuchJob(f"there is no job {job_id}")
        return self._as_it_stands(job)

    # -- the task

    async def run(self) -> None:
        """Carry out the jobs, the oldest first, until cancelled."""
        while True:
            self._current = next(iter(self._open.values()), None)
            if self._current is None:
                self._wanted.clear()
                await self._wanted.wait()
            else:
                await self._carry_out(self._current)

    async def _carry_out(self, running: Running) -> None:
        """Run a job until it has ended, and try again while something temporary is in the way."""
        while True:
            try:
                state, remark = await self._outcome(running)
                self._end(running, state, remark)
            except TRANSIENT as error:
                running.fall_back()
                if str(error) != running.last_error:
                    log.warning("a job cannot go on for now, it is tried again", id=running.job.id, error=str(error))
                running.last_error = str(error)
                await running.wait(RETRY_S)
            except StorePoisoned:
                await asyncio.Event().wait()  # nothing can be written any more: the job continues after the restart
            else:
                return

    async def _outcome(self, running: Running) -> tuple[JobState, str | None]:
        """Run a job once and return how it ended. Raises temporary errors, and StorePoisoned."""
        job = running.job
        if running.is_cancelled:
            return JobState.CANCELLED, None
        try:
            asked = asked_of(job)
            running.job = replace(job, state=JobState.RUNNING)
            running.restart_slice()
            await self._works[kind_of(asked)].run(asked, running)
        except JobCancelled:
            return JobState.CANCELLED, None
        except (*TRANSIENT, StorePoisoned):
            raise
        except REFUSALS as error:
            return JobState.FAILED, str(error)
        except Exception:
            # a broker that died of the error would begin the job again, and so on
            log.exception("a job ended with an unexpected error", id=job.id, kind=job.kind)
            return JobState.FAILED, UNEXPECTED
        return JobState.DONE, None

    def _end(self, running: Running, state: JobState, remark: str | None = None) -> None:
        """End a job. Raises StorePoisoned, kv.EngineFull; the job has not ended then."""
        running.job = job = running.job.ended(state, self._clock.wall_ms(), remark)
        try:
            running.keep(durably=True)
        except (StorePoisoned, EngineFull):
            running.fall_back()
            raise
        del self._open[job.id]
        self._metrics.jobs_open(len(self._open))
        self._metrics.job_ended(job.kind, state)
        log.info("job ended", id=job.id, kind=job.kind, outcome=state.value, remark=remark, counts=dict(job.counts))

    # -- parts

    def _opened(self, job: Job) -> Running:
        return Running(job, self._table, self._writer, self._clock, self._metrics)

    def _as_it_stands(self, job: Job) -> Job:
        running = self._open.get(job.id)
        return job if running is None else replace(running.job, remark=running.last_error)
