"""The migration of a running broker: what interrupts what, and what holds a step up."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from quarry_mq.protocol.clock import SystemClock
from quarry_mq.server.maintenance.queue_migration import OnlineMigration
from quarry_mq.store.errors import Busy, Forbidden
from quarry_mq.store.layout.queue_phase import QueueMode, QueuePhase
from quarry_mq.store.message import QueueOffset
from quarry_mq.store.opening.open_store import OpenStore
from tests.migration.test_machine import opened
from tests.store.test_queue_modes import ORDERS, entries, send


class Commit:
    """Flushes at once."""

    def __init__(self, store: OpenStore) -> None:
        self._messages = store.messages
        self.succeeds = True

    async def make_queues_durable(self) -> bool:
        if self.succeeds:
            self._messages.flush()
            self._messages.flush_queues()
        return self.succeeds


class Bench:
    def __init__(self, store: OpenStore, bytes_per_s: int) -> None:
        self.store = store
        self.commit = Commit(store)
        self.migration = OnlineMigration(store.migration, self.commit, SystemClock(), backfill_bytes_per_s=bytes_per_s)

    async def until(self, condition: Callable[[], bool]) -> None:
        while not condition():
            await asyncio.sleep(0.002)

    async def advance_to(self, phase: QueuePhase) -> None:
        while self.store.migration.phase is not phase:
            before = self.store.migration.phase
            try:
                await self.migration.advance("test")
            except Busy:
                await asyncio.sleep(0.002)
                continue
            await self.until(lambda before=before: self.store.migration.phase is not before)  # type: ignore[misc]


@asynccontextmanager
async def running(root: Path, *, bytes_per_s: int = 1 << 30) -> AsyncIterator[Bench]:
    """A store in files with two portions of history, its migration under way."""
    store = opened(root, QueueMode.FILE)
    send(store, 300)
    store.close()
    bench = Bench(opened(root), bytes_per_s)
    task = asyncio.get_running_loop().create_task(bench.migration.run())
    try:
        yield bench
    finally:
        task.cancel()
        await asyncio.wait([task])
        await bench.migration.stop()
        bench.store.close()


def run(test: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(test, 60))


def test_a_step_back_does_not_wait_for_the_backfill(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("quarry_mq.store.migration.backfill.PORTION_ENTRIES", 100)

    async def test() -> None:
        async with running(tmp_path, bytes_per_s=1) as bench:
            await bench.advance_to(QueuePhase.BACKFILLING)
            with pytest.raises(Busy, match="not complete"):
                await bench.migration.advance("test")
            rocks = bench.store.queues.rocks
            assert rocks is not None
            await bench.until(lambda: bool(rocks.entries(ORDERS, QueueOffset(0), 1)))
            assert await bench.migration.roll_back("test") is QueuePhase.DOUBLE_WRITE
            assert await bench.migration.roll_back("test") is QueuePhase.FILE
            assert not (tmp_path / "consumequeue_rocksdb").exists()
            assert len(entries(bench.store, ORDERS)) == 300

    run(test())


def test_differences_are_told_and_the_phase_stays(tmp_path: Path) -> None:
    async def test() -> None:
        async with running(tmp_path) as bench:
            await bench.advance_to(QueuePhase.BACKFILLING)
            await bench.until(lambda: bench.store.migration.is_backfilled)
            rocks, files = bench.store.queues.rocks, bench.store.queues.files
            assert rocks is not None
            assert files is not None
            kept = bench.store.messages.entries(ORDERS, QueueOffset(0), 300)
            rocks.restart_at(ORDERS, QueueOffset(290))
            assert await bench.migration.advance("operator") is None
            with pytest.raises(Busy, match="being compared"):
                await bench.migration.advance("operator")
            await bench.until(lambda: bench.store.migration.rows.report() is not None)
            await bench.until(lambda: bench.migration.status().comparing is None)
            status = bench.migration.status()
            assert status.phase is QueuePhase.BACKFILLING
            assert status.report is not None
            assert status.report.differences == {"missing_in_rocksdb": 10, "maximum": 1}
            assert status.report.asked_by == "operator"
            assert status.comparison_first == "the last comparison found 11 differences"
            assert bench.store.migration.mismatches() == 11
            assert bench.store.messages.entries(ORDERS, QueueOffset(0), 300) == kept
            assert await bench.migration.roll_back("test") is QueuePhase.DOUBLE_WRITE
            assert await bench.migration.roll_back("test") is QueuePhase.FILE
            await bench.advance_to(QueuePhase.ROCKSDB)
            assert len(entries(bench.store, ORDERS)) == 300
            with pytest.raises(Forbidden, match="complete"):
                await bench.migration.advance("test")
            await bench.until(lambda: bench.store.migration.rows.removing() is None)
            assert not (tmp_path / "consumequeue").exists()

    run(test())


def test_a_flush_that_does_not_get_through_holds_the_backfill_up_and_is_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("quarry_mq.server.maintenance.queue_migration.RETRY_S", 0.01)

    async def test() -> None:
        async with running(tmp_path) as bench:
            bench.commit.succeeds = False
            await bench.advance_to(QueuePhase.BACKFILLING)
            await bench.until(lambda: bench.migration.status().problem is not None)
            assert not bench.store.migration.is_backfilled
            bench.commit.succeeds = True
            await bench.until(lambda: bench.store.migration.is_backfilled)
            await bench.until(lambda: bench.migration.status().problem is None)

    run(test())
