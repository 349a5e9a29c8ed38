"""Removes entries below the log's start offset from the consume queues while the broker runs.

A sweep begins when the start offset grew, and at a start if the last sweep was not finished. Its steps are small: each
keeps the interpreter's lock or the event loop for about a millisecond, and is followed by a pause that is no shorter.
When enough entries are gone RocksDB rewrites the tables of entries, on its own threads; only that frees the space.

A failure is logged once and tried again.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from threading import Event
from typing import Final, Protocol

import structlog

from quarry_mq.kv import KvError
from quarry_mq.protocol.clock import Clock
from quarry_mq.server.tasks.worker import LastErrors, Worker
from quarry_mq.store.errors import StoreUnusable
from quarry_mq.store.offsets import PhysicalOffset
from quarry_mq.store.retention import DueSweep, LogExpiry, QueueExpiry

log = structlog.get_logger(__name__)

MOVE_CHECK_INTERVAL_S: Final = 0.1
_REFUSALS: Final = (KvError, OSError, StoreUnusable)


@dataclass(frozen=True, kw_only=True, slots=True)
class CleaningSettings:
    """Settings of the clean-up.

    `pause_s` follows each step; `rewrite_ratio` is the share of removed entries at which tables are rewritten.
    """

    pause_s: float = 0.002
    retry_interval_s: float = 10.0
    rewrite_ratio: float = 0.2


class CleaningMetrics(Protocol):
    def cleaned_queues(self, entries: int, files: int, seconds: float) -> None: ...

    def rewrote_tables(self, before_bytes: int, after_bytes: int, seconds: float) -> None: ...

    def cleaning_failed(self) -> None: ...


class QueueCleaning:
    """The clean-up of one open store's queues. Lives on the event loop's thread."""

    def __init__(
        self,
        expiry: QueueExpiry,
        log_expiry: LogExpiry,
        settings: CleaningSettings,
        *,
        clock: Clock,
        metrics: CleaningMetrics,
    ) -> None:
        self._expiry = expiry
        self._log = log_expiry
        self._settings = settings
        self._clock = clock
        self._metrics = metrics
        self._wake = asyncio.Event()
        self._wake.set()  # a sweep may be left from before the start
        self._rewrite_asked = False
        self._errors = LastErrors()
        self._phase = ""
        self._stopping = Event()
        self._slice_began_s = 0.0
        # two threads: a stop waits for a step, but not for a rewrite, which the engine ends when it closes
        self._steps = Worker("queue-cleaning")
        self._rewrites = Worker("table-rewrite")

    @property
    def phase(self) -> str:
        """The current work: `files`, `rocksdb`, `rewrite`, or the empty text. May be read on any thread."""
        return self._phase

    @property
    def lag_bytes(self) -> int:
        """Bytes between the offset up to which the queues are cleaned and the log's start offset.

        May be read on any thread.
        """
        return max(0, self._log.minimum - self._expiry.expired_below())

    def minimum_grew(self, _: PhysicalOffset) -> None:
        self._wake.set()

    def rewrite_soon(self) -> None:
        """Rewrite RocksDB's tables once the queues are clean, however few entries were removed."""
        self._rewrite_asked = True
        self._wake.set()

    async def run(self) -> None:
        """Clean up whenever there is something to do, until cancelled."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            try:
                try:
                    await self._clean()
                finally:
                    ending = self._steps.run(self._expiry.end)  # also when cancelled: `stop` waits for it
                await ending
                self._errors.clear()
            except _REFUSALS as error:
                self._report(error)
                await asyncio.sleep(self._settings.retry_interval_s)
                self._wake.set()

    async def stop(self) -> None:
        """Wait until no step is under way. `run` must have been cancelled before.

        The rest of the work is done after the next start.
        """
        self._stopping.set()
        await self._steps.stop()
        self._rewrites.abandon()

    # -- inside

    async def _clean(self) -> None:
        while True:
            while self._log.remover.is_stuck:
                # after a crash the log begins with the first file that is still in its place
                await asyncio.sleep(MOVE_CHECK_INTERVAL_S)
            due = self._expiry.due(self._log.minimum, self._pause)
            if due is None:
                break
            await self._steps.run(self._expiry.begin)
            with self._under_way(due.kind):
                await self._sweep(due)
        wanted = self._rewrite_asked or self._expiry.is_sparse(self._settings.rewrite_ratio)
        if wanted and self._expiry.has_tables:
            with self._under_way("rewrite"):
                await self._rewrite()
        self._rewrite_asked = False

    async def _sweep(self, due: DueSweep) -> None:
        started_s = self._clock.monotonic_s()
        log.info("queues are being cleaned up", kind=due.kind, log_begins_at=self._log.minimum)
        while await self._steps.run(due.prepare):
            while due.carry_out():
                await asyncio.sleep(self._settings.pause_s)
        if not await self._steps.run(due.finish):
            return
        seconds = self._clock.monotonic_s() - started_s
        self._metrics.cleaned_queues(due.entries, due.files, seconds)
        log.info("queues cleaned up", kind=due.kind, entries=due.entries, files=due.files, seconds=round(seconds, 2))

    async def _rewrite(self) -> None:
        before_bytes, started_s = self._expiry.table_bytes(), self._clock.monotonic_s()
        await self._rewrites.run(self._expiry.rewrite_tables)
        seconds, after_bytes = self._clock.monotonic_s() - started_s, self._expiry.table_bytes()
        self._metrics.rewrote_tables(before_bytes, after_bytes, seconds)
        log.info(
            "tables of queue entries rewritten",
            bytes_before=before_bytes,
            bytes_after=after_bytes,
            seconds=round(seconds, 2),
        )

    def _pause(self) -> bool:
        """Pause the thread for at least as long as its last slice used a core; return whether to stop."""
        now_s = time.thread_time()
        slice_s, self._slice_began_s = now_s - self._slice_began_s, now_s
        return self._stopping.wait(max(self._settings.pause_s, slice_s))

    @contextmanager
    def _under_way(self, phase: str) -> Iterator[None]:
        self._phase = phase
        try:
            yield
        finally:
            self._phase = ""

    def _report(self, error: Exception) -> None:
        """Count the failure, and log it once while the same error repeats."""
        self._metrics.cleaning_failed()
        if self._errors.is_new(error):
            log.error("the clean-up of queues is held up, it is tried again", error=str(error))
