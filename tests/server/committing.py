"""A group commit over a real store, on a disk and an engine that can fail or be full."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import closing
from pathlib import Path

from pydantic import ByteSize

from quarry_mq.kv import EngineFull, WriteBatch
from quarry_mq.kv.memory import MemoryEngine
from quarry_mq.protocol.clock import ManualClock
from quarry_mq.server.append.group_commit import GroupCommit, LogFlushes, Stored
from quarry_mq.server.settings.sections import StoreSection
from quarry_mq.server.tasks import LoopThreads
from quarry_mq.store.consumequeue.rocks_layout import ENTRIES_FAMILY, OFFSET_FAMILY
from quarry_mq.store.fs.posix import PosixDisk
from quarry_mq.store.message import Appended, DispatchRequest, EncodedMessage, Message
from quarry_mq.store.native import SyncThread
from quarry_mq.store.settings import Durability
from tests.faults.disk import FaultyDisk
from tests.store.assembly import assemble


class Stats:
    def __init__(self) -> None:
        self.batches: list[int] = []
        self.sends_per_flush: list[int] = []

    @property
    def flushes(self) -> int:
        return len(self.sends_per_flush)

    def observe_flush(self, seconds: float, sends: int) -> None:
        self.sends_per_flush.append(sends)

    def observe_batch(self, messages: int) -> None:
        self.batches.append(messages)


class Reports:
    """Hold what group commit has reported about the health of the broker."""

    def __init__(self) -> None:
        self.reasons: list[str] = []
        self.refusals: list[str] = []

    def poisoned(self, reason: str) -> None:
        self.reasons.append(reason)

    def sends_refused(self, reason: str) -> None:
        self.refusals.append(reason)


class FillingEngine(MemoryEngine):
    """Finds no room while `is_full`, for writes as for flushes: what RocksDB says until it has looked again."""

    is_full = False
    watermarks_flushed = 0
    after_flush: Callable[[Sequence[str]], None] = staticmethod(lambda _: None)

    def write(self, batch: WriteBatch, *, sync: bool = False) -> None:
        self._need_room()
        super().write(batch, sync=sync)

    def flush(self, names: Sequence[str]) -> None:
        self._need_room()
        super().flush(names)
        self.watermarks_flushed += OFFSET_FAMILY in names
        self.after_flush(names)

    def _need_room(self) -> None:
        if self.is_full:
            raise EngineFull("IO error: No space left on device: While appending to file: 000008.sst")


class Bench:
    """A group commit and everything around it, recorded."""

    def __init__(
        self,
        threads: LoopThreads,
        durability: Durability,
        *,
        queue_flush_bytes: int = 1 << 40,
        flush_interval_s: float = 0.01,
        sync_thread: SyncThread | None = None,
        directory: Path | None = None,
    ) -> None:
        """`directory`: the log is on the real disk, there."""
        self.disk = FaultyDisk()
        self.engine = FillingEngine((ENTRIES_FAMILY, OFFSET_FAMILY))
        if directory is None:
            self.opened = assemble(self.disk, self.engine)
        else:
            self.opened = assemble(PosixDisk(), self.engine, directory=directory / "commitlog")
        self.store = self.opened.store
        self.stats = Stats()
        self.clock = ManualClock()
        self.arrived: list[DispatchRequest] = []
        self.health = Reports()
        self.poisoned, self.sends_refused = self.health.reasons, self.health.refusals
        self.commit = GroupCommit(
            self.store,
            LogFlushes(self.store, threads, sync_thread),
            StoreSection(
                durability=durability,
                flush_interval_ms=round(flush_interval_s * 1000),
                queue_flush_size=ByteSize(queue_flush_bytes),
            ),
            clock=self.clock,
            after_pass=self._after_pass,
            messages_arrived=self.arrived.extend,
            health=self.health,
            metrics=self.stats,
        )

    def _after_pass(self, callback: Callable[[], None]) -> None:
        asyncio.get_running_loop().call_soon(callback)

    def send(self, *messages: Message) -> asyncio.Future[Sequence[Appended]]:
        answer, stored = _answer()
        self.commit.send(messages, stored)
        return answer

    def send_durably(self, *messages: Message) -> asyncio.Future[Sequence[Appended]]:
        answer, stored = _answer()
        self.commit.send_durably(messages, stored)
        return answer

    def send_encoded(self, *messages: EncodedMessage) -> asyncio.Future[Sequence[Appended]]:
        answer, stored = _answer()
        self.commit.send_encoded(list(messages), stored, self.clock.monotonic_s(), sends=len(messages))
        return answer


def _answer() -> tuple[asyncio.Future[Sequence[Appended]], Stored]:
    answer: asyncio.Future[Sequence[Appended]] = asyncio.get_running_loop().create_future()

    def stored(appended: Sequence[Appended], error: Exception | None) -> None:
        if error is None:
            answer.set_result(appended)
        else:
            answer.set_exception(error)

    return answer, stored


def run(test: Callable[[LoopThreads], Awaitable[None]]) -> None:
    async def within_time() -> None:
        with closing(LoopThreads(2, "flush")) as threads:
            await asyncio.wait_for(test(threads), timeout=20)

    asyncio.run(within_time())
