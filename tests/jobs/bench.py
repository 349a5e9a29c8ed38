"""Jobs over an engine in memory, whose work counts to a number."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from quarry_mq.protocol.clock import SystemClock
from quarry_mq.server.delivery import StateWriter
from quarry_mq.server.jobs import DeadLetterResend, JobKind, Jobs, Running
from quarry_mq.store.state.identity import FAMILIES, META
from quarry_mq.store.state.jobs import Job, JobState, JobTable
from tests.server.committing import FillingEngine

PATIENCE_S = 30.0
COUNTED = b"counted/"


class Stats:
    def __init__(self) -> None:
        self.open = 0
        self.did: dict[str, int] = {}
        self.ended: list[tuple[str, JobState]] = []

    def jobs_open(self, count: int) -> None:
        self.open = count

    def job_did(self, kind: str, count: int) -> None:
        self.did[kind] = self.did.get(kind, 0) + count

    def job_ended(self, kind: str, state: JobState) -> None:
        self.ended.append((kind, state))


class Counting:
    """Counts to the number that the group's name is, and writes each number beside the job."""

    def __init__(self, writer: StateWriter, engine: FillingEngine) -> None:
        self._writer = writer
        self._family = engine.family(META)
        self.before_each: Callable[[int], None] = lambda _: None
        self.may_go_on = asyncio.Event()
        self.may_go_on.set()
        self.counted: list[int] = []
        self.rested = 0
        """Steps that have ended are counted here. A step ends with a look at whether the job is cancelled."""

    def check(self, asked: DeadLetterResend) -> None:
        int(asked.group)

    async def run(self, asked: DeadLetterResend, running: Running) -> None:
        running.expect(int(asked.group))
        for number in range(running.job.cursor.get("next", 0), int(asked.group)):
            self.before_each(number)
            self._writer.batch().put(self._family, COUNTED + b"%d" % number, b"")
            self.counted.append(number)
            running.did(1, {"next": number + 1}, {"sent": 1})
            running.keep()
            await running.rest()
            self.rested += 1
            await self.may_go_on.wait()


class Bench:
    """`begin_again` is a process that ends without a word, and the next one."""

    def __init__(self) -> None:
        self.engine = FillingEngine(FAMILIES, write_ahead_log=True)
        self.clock = SystemClock()
        self.begin_again()

    def begin_again(self) -> None:
        self.stats = Stats()
        self.writer = StateWriter(self.engine, lambda callback: None)
        self.work = Counting(self.writer, self.engine)
        self.jobs = Jobs(
            JobTable(self.engine),
            {JobKind.RESEND_DEAD_LETTERS: self.work},
            writer=self.writer,
            clock=self.clock,
            metrics=self.stats,
        )

    def begin(self, number: int = 10, **terms: Any) -> Job:
        return self.jobs.begin(DeadLetterResend(group=str(number)), "operator", **terms)

    def written(self) -> int:
        """How many numbers are written."""
        family = self.engine.family(META)
        count = 0
        while family.get(COUNTED + b"%d" % count) is not None:
            count += 1
        return count

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        task = asyncio.get_running_loop().create_task(self.jobs.run())
        try:
            yield
        finally:
            task.cancel()
            await asyncio.wait([task])
            if not task.cancelled():
                task.result()

    async def ended(self, job: Job) -> Job:
        return await self.until(job, lambda found: found.state.is_end)

    async def until(self, job: Job, condition: Callable[[Job], bool]) -> Job:
        async with asyncio.timeout(PATIENCE_S):
            while not condition(found := self.jobs.get(job.id)):
                await asyncio.sleep(0.002)
        return found
