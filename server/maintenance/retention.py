"""Lets old segments expire while the broker runs: checks disk and clock, decides, and has the files removed.

Two tasks do not wait for each other, so that a removal that takes long never keeps a full disk from being noticed
(rmq#1400): `watch` decides every few seconds, `remove` removes the files. Blocking work is on other threads; only the
moment when the start offsets of log and queues change is on the event loop's thread.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Final, NamedTuple, Protocol

import structlog

from quarry_mq.kv import EngineFull, KvError
from quarry_mq.protocol.clock import Clock
from quarry_mq.server.append import QueueCommit
from quarry_mq.server.tasks import LastErrors, Worker
from quarry_mq.store.errors import BrokerError
from quarry_mq.store.fs import DiskSpace
from quarry_mq.store.layout.paths import segment_name
from quarry_mq.store.message import PhysicalOffset
from quarry_mq.store.retention import (
    Candidate,
    Cause,
    ExpirySettings,
    FileSystem,
    Forced,
    LogExpiry,
    Plan,
    Situation,
    Unread,
    refusal,
)

log = structlog.get_logger(__name__)

THREADS: Final = 2  # one checks, one removes
FUTILE_PAUSE_S: Final = 600.0
"""Seconds in which no segment is deleted before its time, after such deletions have freed no space."""

UNLIMITED: Final = 1 << 62
NAMED_GROUPS_MAX: Final = 16
"""Number of groups that a log line names."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RetentionTimes:
    """The times of the retention checks.

    Nothing expires within `start_delay_s` of a start, since clocks are set right then.
    """

    interval_s: float = 10.0
    start_delay_s: float = 60.0


class RetentionMetrics(Protocol):
    def expired(self, cause: Cause, segments: int) -> None: ...

    def expired_unread(self, messages: int) -> None: ...

    def removed_segment(self, seconds: float) -> None: ...


class Commit(QueueCommit, Protocol):
    """The part of `server.append.group_commit` that retention needs."""

    def refuse_sends(self, reason: str) -> None: ...


class Expiring(NamedTuple):
    """Describe one segment that expires."""

    name: str
    size: int
    newest_ms: int | None
    cause: Cause


class ExpiryReport(NamedTuple):
    """The segments that expire, and the messages that groups lose by it because they were never delivered to them."""

    segments: Sequence[Expiring]
    unread: Unread


class Retention:
    """The expiry of one open store. Lives on the event loop's thread."""

    def __init__(
        self,
        expiry: LogExpiry,
        settings: ExpirySettings,
        times: RetentionTimes,
        *,
        commit: Commit,
        clock: Clock,
        metrics: RetentionMetrics,
        carry_over: Callable[[PhysicalOffset], Awaitable[int]],
        minimum_grew: Sequence[Callable[[PhysicalOffset], None]] = (),
    ) -> None:
        """`carry_over` writes pending messages below an offset again at the end of the log, and returns their number.

        `minimum_grew` is called with the log's start offset each time that it has changed.
        """
        self._expiry = expiry
        self._settings = settings
        self._times = times
        self._commit = commit
        self._clock = clock
        self._metrics = metrics
        self._carry_over = carry_over
        self._minimum_grew = minimum_grew
        self._started_s = clock.monotonic_s()
        self._forced: Forced | None = None
        self._futile_until_s = self._started_s
        self._sweep_lock = asyncio.Lock()
        self._to_remove = asyncio.Event()
        self._errors = LastErrors()
        self._worker = Worker("expiry", THREADS)
        self._used_ratios: Mapping[str, float] = {}
        self._log_space: DiskSpace | None = None
        if expiry.remover.pending:
            self._to_remove.set()

    @property
    def settings(self) -> ExpirySettings:
        return self._settings

    @property
    def used_ratios(self) -> Mapping[str, float]:
        """The used share (0 to 1) of the file systems of `log` and `queues` at the last check.

        May be read on any thread.
        """
        return self._used_ratios

    @property
    def used_bytes(self) -> int | None:
        """Used bytes of the log's file system at the last check; None before the first. May be read on any thread."""
        return None if self._log_space is None else self._log_space.used_bytes

    @property
    def log_space(self) -> DiskSpace | None:
        """Space of the log's file system at the last check; None before the first. May be read on any thread."""
        return self._log_space

    @property
    def force_percent(self) -> int:
        """Percentage of disk usage at which segments expire before their time."""
        return self._settings.force_percent

    @property
    def complaints(self) -> Mapping[str, str]:
        """The steps that are blocked, each with its error."""
        return self._errors.texts

    # -- tasks

    async def watch(self) -> None:
        """Check the disk and the clock, and expire segments, until cancelled."""
        while True:
            try:
                await self._look()
                self._errors.clear("expiry")
            except (OSError, KvError, BrokerError) as error:
                self._report("expiry", error)
            await asyncio.sleep(self._times.interval_s)

    async def remove(self) -> None:
        """Remove the files of expired segments, until cancelled. A file that cannot be removed now is tried again."""
        remover = self._expiry.remover
        while True:
            await self._to_remove.wait()
            self._to_remove.clear()
            try:
                for each in await self._worker.run(remover.run):
                    self._metrics.removed_segment(each.seconds)
                    log.info("expired segment removed", file=each.path.name, seconds=round(each.seconds, 3))
                self._errors.clear("removal")
            except OSError as error:
                self._report("removal", error)
            if remover.pending:
                await asyncio.sleep(self._times.interval_s)
                self._to_remove.set()

    async def stop(self) -> None:
        """Stop: when it returns no work is under way on any thread. Both tasks must have been cancelled before.

        The next broker removes the files that are left.
        """
        self._expiry.stop()
        await self._worker.stop()

    def configure(self, settings: ExpirySettings) -> None:
        """Apply changed settings from the next check on."""
        self._settings = settings

    # -- on request

    async def expire_now(self, *, dry_run: bool) -> ExpiryReport:
        """Expire everything that is past its retention, at any hour; with `dry_run` only report it.

        The files are removed soon after. Raises OSError, kv.KvError.
        """
        async with self._sweep_lock:
            situation = await self._see(requested=True)
            settings = replace(self._settings, segments_per_round=UNLIMITED)
            plan = await self._worker.run(self._expiry.plan, settings, situation)
            plan, unread = (plan, await self._unread(plan)) if dry_run else await self._carry_out(plan)
            return ExpiryReport([self._expiring(*each) for each in plan.segments], unread)

    # -- inside

    async def _look(self) -> None:
        async with self._sweep_lock:
            situation = self._judge_forced(await self._see())
            self._commit.refuse_sends(refusal(self._settings, situation))
            if self._clock.monotonic_s() - self._started_s < self._times.start_delay_s:
                return
            if self._expiry.remover.is_stuck:
                return  # segments that expired before come first
            plan = await self._worker.run(self._expiry.plan, self._settings, situation)
            done, _ = await self._carry_out(plan)
            if done.forced and situation.log is not None:
                freed_bytes = len(done.segments) * self._expiry.segment_size + situation.going_bytes
                self._forced = Forced(freed_bytes, situation.log.space.used_bytes, self._expiry.end)

    def _judge_forced(self, situation: Situation) -> Situation:
        """Mark forced deletions as futile if the last ones freed no space.

        The log must not be deleted bit by bit for nothing, when something else fills the disk or keeps the files.
        """
        if self._forced is None or situation.going_bytes or situation.log is None:
            return situation
        forced, self._forced = self._forced, None
        if not forced.was_futile(situation.log.space.used_bytes, self._expiry.end):
            return situation
        log.error(
            "deleting segments before their time has made no room, nothing more is deleted so for a while",
            deleted_bytes=forced.freed_bytes,
            seconds=FUTILE_PAUSE_S,
        )
        self._futile_until_s = self._clock.monotonic_s() + FUTILE_PAUSE_S
        return replace(situation, futile=True)

    async def _see(self, *, requested: bool = False) -> Situation:
        hour = datetime.fromtimestamp(self._clock.wall_ms() / 1000).hour
        futile = self._clock.monotonic_s() < self._futile_until_s
        situation = await self._worker.run(self._expiry.situation, hour, requested=requested, futile=futile)
        seen: dict[str, FileSystem | None] = {"log": situation.log, "queues": next(iter(situation.others), None)}
        self._used_ratios = {
            name: each.space.used_bytes / each.space.total_bytes for name, each in seen.items() if each is not None
        }
        if situation.log is not None:
            self._log_space = situation.log.space
        return situation

    async def _unread(self, plan: Plan) -> Unread:
        if not plan.segments:
            return Unread({}, complete=True)
        return await self._worker.run(self._expiry.unread_before, self._end(plan))

    def _end(self, plan: Plan) -> PhysicalOffset:
        return PhysicalOffset(plan.segments[-1][0].base + self._expiry.segment_size)

    async def _carry_out(self, plan: Plan) -> tuple[Plan, Unread]:
        """Carry out what can be done of the plan; return that part, and the messages that groups had not read."""
        if plan.segments:
            await self._save_what_waits(plan)
        if plan.segments and self._expiry.latest_beginning < self._end(plan):
            await self._commit.make_queues_durable()
        latest = self._expiry.latest_beginning
        plan = Plan(tuple(each for each in plan.segments if each[0].base < latest))
        unread = await self._unread(plan)
        if not plan.segments:
            return plan, unread
        minimum = self._end(plan)
        try:
            await self._worker.run(self._expiry.announce, minimum)
        except EngineFull as error:
            # expiry is about to free space; without the announcement the next start only logs a warning
            log.warning("the new beginning of the log could not be written down", error=str(error))
        reached = self._expiry.retire(minimum)
        self._tell(plan, unread, reached)
        self._to_remove.set()
        for tell in self._minimum_grew:
            tell(reached)
        return plan, unread

    async def _save_what_waits(self, plan: Plan) -> None:
        """Carry over pending messages. Raises the error that prevents it, unless the disk needs the space more."""
        try:
            if await self._carry_over(self._end(plan)):
                await self._commit.make_queues_durable()
        except (OSError, KvError, BrokerError) as error:
            if not plan.forced:
                raise
            log.error("delayed messages go with the log, they could not be carried over", error=str(error))

    def _tell(self, plan: Plan, unread: Unread, begins_at: PhysicalOffset) -> None:
        for cause in Cause:
            self._metrics.expired(cause, sum(each is cause for _, each in plan.segments))
        log.info("segments expired", segments=len(plan.segments), forced=plan.forced, log_begins_at=begins_at)
        if plan.forced:
            log.warning("the disk is nearly full: segments were deleted before their time", segments=plan.forced)
        if unread.messages:
            self._metrics.expired_unread(unread.messages)
            most = sorted(unread.messages_by_group.items(), key=lambda each: -each[1])
            log.warning(
                "messages expired that groups had not read",
                messages=unread.messages,
                groups=dict(most[:NAMED_GROUPS_MAX]),
                groups_count=len(most),
                complete=unread.complete,
            )

    def _expiring(self, candidate: Candidate, cause: Cause) -> Expiring:
        return Expiring(segment_name(candidate.base), self._expiry.segment_size, candidate.newest_ms, cause)

    def _report(self, step: str, error: Exception) -> None:
        if self._errors.is_new(error, step):
            log.error("expiry is held up, it is tried again", step=step, error=str(error))
