"""Reads the whole log of the running broker sweep after sweep, so that damage is found before somebody needs the bytes.

A sweep reads piece after piece on the thread of the verifications, at a bounded rate and for a small part of the time:
a step that takes long, because disk or processor are busy, is followed by a pause in proportion. A sweep that a stop
interrupts goes on after the next start, from the beginning of the segment that it had got to.

Each sweep is a row among the verdicts of verifications (`store.verify.report`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Final, Protocol

import structlog

from quarry_mq.kv import KvError
from quarry_mq.protocol.clock import Clock, Progress
from quarry_mq.server.settings.sections import VerificationSection
from quarry_mq.server.tasks import LastErrors, TimeSlice, Worker
from quarry_mq.store.commitlog import SegmentList
from quarry_mq.store.errors import BrokerError, StoreDamaged
from quarry_mq.store.message import PhysicalOffset
from quarry_mq.store.verify import DIFFERENCES_MAX, Check, LogCheck, LogPiece
from quarry_mq.store.verify.report import THE_BROKER, Verdict, Verdicts, VerdictState

log = structlog.get_logger(__name__)

START_DELAY_S: Final = 60.0
"""Seconds after a start in which nothing is read: consumers that come back need the disk more."""
RATE_MIN: Final = 1 << 20
"""Bytes per second at which also a small log is read."""
SWEEP_SHARE: Final = 0.5
"""The share of the interval in which a sweep is to be through, if the largest rate allows it."""
BUSY_RATIO: Final = 0.1
"""The largest share of the time in which a piece is being read: 10 % of one processor core, and of the disk."""
SAVE_INTERVAL_S: Final = 60.0
PAUSE_MIN_S: Final = 0.01
IDLE_S: Final = 60.0
RETRY_S: Final = 5.0


class ReadLog(Protocol):
    """The part of the message store that the sweeps need."""

    @property
    def flushed_up_to(self) -> PhysicalOffset: ...


class LogSweeps:
    """The sweeps of one open store. Lives on the event loop's thread."""

    def __init__(
        self,
        settings: VerificationSection,
        *,
        segments: SegmentList,
        messages: ReadLog,
        verdicts: Verdicts,
        worker: Worker,
        report_damage: Callable[[StoreDamaged], None],
        clock: Clock,
    ) -> None:
        """`report_damage` is called for each damage that is found, also if an earlier sweep has found it."""
        self._settings = settings
        self._segments = segments
        self._messages = messages
        self._verdicts = verdicts
        self._worker = worker
        self._report_damage = report_damage
        self._clock = clock
        self._errors = LastErrors()
        self._sweep: Verdict | None = None
        self._resumable: Verdict | None = None
        """The sweep as it was where its last segment began."""
        self._check: LogCheck | None = None
        self._saved_s = self._started_s = clock.monotonic_s()
        self.finished: Verdict | None = None
        """The last sweep that was completed."""
        self.read_bytes = 0
        """Bytes that were read since the start. May be read on any thread."""
        self._begun_s: float | None = None
        """Monotonic time at which the last sweep began; None if there was none. The wall clock may be set back."""
        self._is_loaded = False

    def configure(self, settings: VerificationSection) -> None:
        """Apply changed settings from the next piece on."""
        self._settings = settings

    @property
    def current(self) -> Verdict | None:
        """The sweep that is under way, with what it has found so far; None also while sweeps are turned off."""
        return self._sweep if self._settings.interval_ms else None

    @property
    def progress(self) -> Progress | None:
        """The progress of the sweep; None if none is under way. May be read on any thread."""
        if self.current is None:
            return None
        begin, end = self._segments.minimum, self._messages.flushed_up_to
        at = begin if self._check is None else self._check.at
        return Progress("reading the log", min(max(at - begin, 0), end - begin), end - begin)

    @property
    def problem(self) -> str | None:
        """The error that holds the sweep up, which is tried again."""
        return self._errors.texts.get("")

    async def work(self) -> float:
        """Read one piece if a sweep is due, and return the seconds to wait before the next call."""
        time_slice = TimeSlice(self._clock)
        try:
            if not self._is_loaded:
                self._load(await self._worker.run(self._verdicts.all))
            wait_s = self._due_in_s()
            if wait_s > 0:
                return min(wait_s, IDLE_S)
            time_slice.restart()
            read_bytes = await self._read_piece()
            self._errors.clear()
        except (OSError, KvError, BrokerError) as error:
            if self._errors.is_new(error):
                log.error("the check of the log is held up, it is tried again", error=str(error))
            return RETRY_S
        took_s = time_slice.took_s
        return max(read_bytes / self._rate(), took_s / BUSY_RATIO, PAUSE_MIN_S) - took_s

    async def save(self) -> None:
        """Save how far the sweep is, so that it goes on after a restart. An error only makes it read more again."""
        if self._resumable is not None:
            with suppress(KvError):
                await self._worker.run(self._verdicts.save, self._resumable)

    # -- inside

    def _load(self, verdicts: Sequence[Verdict]) -> None:
        """Go on where the sweeps before the start have ended."""
        for each in verdicts:
            if each.is_sweep and each.state is VerdictState.RUNNING:
                self._sweep = self._sweep or each
            elif each.is_sweep:
                self.finished = each
                self._begun_s = self._started_s - max(self._clock.wall_ms() - each.id, 0) / 1000
                break
        self._is_loaded = True

    def _due_in_s(self) -> float:
        """Return in how many seconds there is something to read; 0 if there is now."""
        interval_ms = self._settings.interval_ms
        if not interval_ms:
            return IDLE_S
        delay_s = self._started_s + min(START_DELAY_S, interval_ms / 1000) - self._clock.monotonic_s()
        if self._sweep is not None or self._begun_s is None:
            return delay_s
        return max(delay_s, self._begun_s + interval_ms / 1000 - self._clock.monotonic_s())

    def _rate(self) -> float:
        """Return how many bytes per second are read: so many that the sweep is through in time, within bounds."""
        log_bytes = self._messages.flushed_up_to - self._segments.minimum
        needed = 1000 * log_bytes / (SWEEP_SHARE * max(self._settings.interval_ms, 1))
        return min(max(needed, RATE_MIN), self._settings.rate)

    async def _read_piece(self) -> int:
        """Read a piece and return its size. Raises OSError, KvError, BrokerError."""
        if self._sweep is None:
            self._sweep = await self._begun()
        if self._check is None:
            start = PhysicalOffset(self._sweep.log_end)
            self._check = LogCheck(self._segments, lambda: self._messages.flushed_up_to, start)
        piece = await self._worker.run(self._check.step)
        if piece is None:
            await self._end()
            return 0
        self._note(piece)
        await self._keep_position()
        self.read_bytes += piece.size
        return piece.size

    async def _keep_position(self) -> None:
        """Note the sweep where a segment begins, and save what was noted now and then."""
        assert self._sweep is not None
        assert self._check is not None
        if (self._check.at - self._segments.minimum) % self._segments.segment_size:
            return
        self._resumable = replace(self._sweep, log_end=self._check.at)
        if self._clock.monotonic_s() - self._saved_s >= SAVE_INTERVAL_S:
            self._saved_s = self._clock.monotonic_s()
            await self._worker.run(self._verdicts.save, self._resumable)

    async def _begun(self) -> Verdict:
        newest = next(iter(self._verdicts.all()), None)
        at_ms = max(self._clock.wall_ms(), 0 if newest is None else newest.id + 1)
        begin = self._segments.minimum
        verdict = Verdict(
            id=at_ms,
            asked_by=THE_BROKER,
            state=VerdictState.RUNNING,
            log_begin=begin,
            log_end=begin,
            checks={Check.LOG.value: [0, 0]},
        )
        await self._worker.run(self._verdicts.save, verdict)
        self._begun_s = self._clock.monotonic_s()
        return verdict

    def _note(self, piece: LogPiece) -> None:
        assert self._sweep is not None
        records, differences = self._sweep.checks.get(Check.LOG.value, (0, 0))
        first = self._sweep.first
        if piece.damage is not None:
            self._report_damage(piece.damage)
            differences += 1
            if len(first) < DIFFERENCES_MAX:
                first = [*first, [Check.LOG.value, str(piece.damage)]]
        checks = {Check.LOG.value: [records + piece.records, differences]}
        self._sweep = replace(self._sweep, checks=checks, first=first)

    async def _end(self) -> None:
        assert self._sweep is not None
        assert self._check is not None
        found = replace(self._sweep, log_end=self._check.at)
        differences = found.checks[Check.LOG.value][1]
        state = VerdictState.DIFFER if differences else VerdictState.AGREE
        finished = replace(found, state=state, ended_at_ms=self._clock.wall_ms())
        await self._worker.run(self._verdicts.save, finished)
        self.finished = finished
        self._sweep = self._resumable = self._check = None
        records = found.checks[Check.LOG.value][0]
        log.info("log checked", records=records, damaged=differences, log_begin=found.log_begin, log_end=found.log_end)
