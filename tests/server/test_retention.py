"""Retention over a real store and a real group commit, on a disk that can be full and that can fail."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, closing
from pathlib import Path

import pytest
from pydantic import ByteSize
from structlog.testing import capture_logs

from quarry_mq.kv import EngineFull
from quarry_mq.kv.memory import MemoryEngine
from quarry_mq.server.append.group_commit import GroupCommit, LogFlushes
from quarry_mq.server.maintenance.retention import Retention, RetentionTimes
from quarry_mq.server.settings.sections import StoreSection
from quarry_mq.server.tasks import LoopThreads
from quarry_mq.store.errors import DiskRefused
from quarry_mq.store.fs import DiskSpace
from quarry_mq.store.message import Appended, PhysicalOffset, QueueId, QueueOffset
from quarry_mq.store.retention import Cause, ExpirySettings
from tests.expiry.log import BODY, QUEUE, Life, fill, machine, view_of
from tests.faults.disk import FaultyDisk
from tests.server.committing import Reports
from tests.store.assembly import LOG, SEGMENT_SIZE, message

DAY_S = 86_400
SETTINGS = ExpirySettings(delete_when=frozenset(), segments_per_round=3)


class FillingDisk(FaultyDisk):
    """Says of itself what the test says."""

    told: DiskSpace | None = None
    gives_back = True

    def space(self, directory: Path) -> DiskSpace | None:
        return self.told

    def remove(self, path: Path) -> None:
        super().remove(path)
        if self.told is not None and self.gives_back:
            self.told = DiskSpace(self.told.used_bytes - SEGMENT_SIZE, self.told.available_bytes + SEGMENT_SIZE)


class Counted:
    """Every figure that came."""

    def __init__(self) -> None:
        self.expired_by_cause = dict.fromkeys(Cause, 0)
        self.unread = 0
        self.removed = 0

    def expired(self, cause: Cause, segments: int) -> None:
        self.expired_by_cause[cause] += segments

    def expired_unread(self, messages: int) -> None:
        self.unread += messages

    def removed_segment(self, seconds: float) -> None:
        assert seconds >= 0
        self.removed += 1

    def observe_flush(self, seconds: float, sends: int) -> None: ...

    def observe_batch(self, messages: int) -> None: ...


class Bench:
    def __init__(self, settings: ExpirySettings, threads: LoopThreads) -> None:
        self.host = machine()
        self.disk = self.host.disk = FillingDisk()
        self.life: Life = self.host.start()
        self.counted = Counted()
        self.health = Reports()
        self.poisoned, self.refused = self.health.reasons, self.health.refusals
        self.minima: list[PhysicalOffset] = []
        self.carried: list[tuple[PhysicalOffset, PhysicalOffset]] = []
        """What was about to become the log's beginning, and what it was then."""
        self.carry_error: Exception | None = None
        self.commit = GroupCommit(
            self.life.opened.store,
            LogFlushes(self.life.opened.store, threads),
            StoreSection(flush_interval_ms=10, queue_flush_size=ByteSize(1 << 40)),
            clock=self.host.clock,
            after_pass=lambda callback: callback(),
            messages_arrived=lambda _: None,
            health=self.health,
            metrics=self.counted,
        )
        self.retention = Retention(
            self.life.expiry,
            settings,
            RetentionTimes(interval_s=0.001, start_delay_s=60),
            commit=self.commit,
            clock=self.host.clock,
            metrics=self.counted,
            carry_over=self.carry_over,
            minimum_grew=[self.minima.append],
        )

    async def carry_over(self, minimum: PhysicalOffset) -> int:
        self.carried.append((minimum, self.life.expiry.minimum))
        if self.carry_error is not None:
            raise self.carry_error
        return 1

    def be_used(self, percent: int) -> None:
        segments = 100
        total = segments * SEGMENT_SIZE
        self.disk.told = DiskSpace(total * percent // 100, total - total * percent // 100)

    async def send(self) -> Sequence[Appended]:
        answer: asyncio.Future[Sequence[Appended]] = asyncio.get_running_loop().create_future()

        def stored(appended: Sequence[Appended], error: Exception | None) -> None:
            if error is None:
                answer.set_result(appended)
            else:
                answer.set_exception(error)

        self.commit.send([message()], stored)
        return await answer

    async def until(self, condition: Callable[[], bool]) -> None:
        while not condition():
            await asyncio.sleep(0.001)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        tasks = [asyncio.create_task(self.retention.watch()), asyncio.create_task(self.retention.remove())]
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
            await self.retention.stop()
            assert not self.poisoned
            for task in tasks:
                assert task.cancelled()


def run(test: Callable[[Bench], Awaitable[None]], settings: ExpirySettings = SETTINGS) -> None:
    async def within_time() -> None:
        with closing(LoopThreads(2, "flush")) as threads:
            await asyncio.wait_for(test(Bench(settings, threads)), timeout=20)

    asyncio.run(within_time())


def test_old_segments_go_by_themselves_in_sweeps_until_only_the_last_is_left() -> None:
    async def test(bench: Bench) -> None:
        fill(bench.life, 8)
        bench.host.clock.advance(4 * DAY_S)
        async with bench.running():
            await bench.until(lambda: bench.counted.removed == 7)
        assert bench.minima == [3 * SEGMENT_SIZE, 6 * SEGMENT_SIZE, 7 * SEGMENT_SIZE], "three per round"
        assert bench.counted.expired_by_cause == {Cause.AGE: 7, Cause.ROOM: 0}
        assert bench.life.bodies() == [b"07"]

    run(test)


def test_what_waits_is_carried_over_before_the_log_begins_later() -> None:
    async def test(bench: Bench) -> None:
        fill(bench.life, 3)
        bench.host.clock.advance(4 * DAY_S)
        bench.carry_error = DiskRefused("no room")
        async with bench.running():
            await bench.until(lambda: len(bench.carried) > 2)
            assert bench.life.expiry.minimum == 0, "it is held up"
            bench.carry_error = None
            await bench.until(lambda: bench.counted.removed == 2)
        assert set(bench.carried) == {(2 * SEGMENT_SIZE, 0)}

    run(test)


def test_a_disk_that_is_full_is_not_kept_full_by_what_cannot_be_carried_over() -> None:
    async def test(bench: Bench) -> None:
        fill(bench.life, 6)
        bench.host.clock.advance(60)
        bench.be_used(91)
        bench.carry_error = DiskRefused("no room")
        async with bench.running():
            await bench.until(lambda: bench.life.expiry.minimum > 0)

    run(test)


def test_nothing_expires_right_after_a_start() -> None:
    """The clock may be set then."""

    async def test(bench: Bench) -> None:
        fill(bench.life, 3)
        bench.host.clock.advance(4 * DAY_S)
        again = Retention(
            bench.life.expiry,
            SETTINGS,
            RetentionTimes(interval_s=0.001, start_delay_s=60),
            commit=bench.commit,
            clock=bench.host.clock,
            metrics=bench.counted,
            carry_over=bench.carry_over,
        )
        bench.retention = again
        async with bench.running():
            await asyncio.sleep(0.05)
            assert bench.life.expiry.minimum == 0
            bench.host.clock.advance(60)
            await bench.until(lambda: bench.counted.removed == 2)

    run(test)


def test_a_disk_that_fills_up_is_cleaned_then_refused_then_taken_again() -> None:
    """Reads and acknowledgements do not pass through here: they go on."""

    async def test(bench: Bench) -> None:
        fill(bench.life, 6)
        bench.host.clock.advance(60)
        bench.be_used(84)
        async with bench.running():
            await asyncio.sleep(0.03)
            assert bench.life.expiry.minimum == 0, "nothing is old"
            bench.be_used(91)
            await bench.until(lambda: bool(bench.refused))
            with pytest.raises(DiskRefused, match="91 % full"):
                await bench.send()
            await bench.until(lambda: bench.life.expiry.minimum > 0)
            assert len(bench.life.bodies()) < 6, "what is left is read as ever"
            bench.be_used(60)
            await bench.until(lambda: not bench.refused[-1])
            await bench.send()
        assert bench.counted.expired_by_cause[Cause.ROOM] > 0

    run(test)


def test_forced_deletion_ends_when_there_is_room() -> None:
    """RocketMQ goes on for a whole round (ten files), and again until the disk has noticed."""

    async def test(bench: Bench) -> None:
        fill(bench.life, 9)
        bench.host.clock.advance(60)
        bench.be_used(87)  # two segments of a hundred too many
        view = view_of(bench.life, 0)  # and the first is not given back at once
        async with bench.running():
            await bench.until(lambda: bench.counted.removed == 1)
            await asyncio.sleep(0.03)
            assert bench.life.expiry.minimum == 2 * SEGMENT_SIZE
            assert bytes(view[:4])

    run(test)


def test_forced_deletion_that_makes_no_room_is_not_gone_on_with() -> None:
    """Hard links of a backup keep the room of all that is deleted, so the whole log would go for nothing."""

    async def test(bench: Bench) -> None:
        fill(bench.life, 9)
        bench.host.clock.advance(60)
        bench.be_used(88)
        bench.disk.gives_back = False
        with capture_logs() as lines:
            async with bench.running():
                await bench.until(lambda: any("has made no room" in line["event"] for line in lines))
                await asyncio.sleep(0.03)
                assert bench.life.expiry.minimum == 3 * SEGMENT_SIZE
                bench.host.clock.advance(601)
                await bench.until(lambda: bench.life.expiry.minimum == 6 * SEGMENT_SIZE)

    run(test)


def test_groups_that_lose_messages_are_named(caplog: pytest.LogCaptureFixture) -> None:
    """rmq#4549: a nearly full disk deleted what nobody had read, and nobody was told."""

    async def test(bench: Bench) -> None:
        fill(bench.life, 5)
        batch = bench.life.state.batch()
        bench.life.positions.stage(batch, "slow", QUEUE, QueueOffset(1))
        bench.life.positions.stage(batch, "quick", QUEUE, QueueOffset(5))
        bench.life.state.write(batch)
        bench.host.clock.advance(4 * DAY_S)
        with capture_logs() as lines:
            async with bench.running():
                await bench.until(lambda: bench.counted.removed == 4)
        warnings = [line for line in lines if line["event"] == "messages expired that groups had not read"]
        assert [line["groups"] for line in warnings] == [{"slow": 2}, {"slow": 1}], "by round: 1 and 2, then 3"
        assert bench.counted.unread == 3

    run(test)


def test_a_request_tells_first_and_then_does_it_whatever_the_hour() -> None:
    never = ExpirySettings(delete_when=frozenset({(9 + 12) % 24}), segments_per_round=1)

    async def test(bench: Bench) -> None:
        fill(bench.life, 4)
        bench.host.clock.advance(4 * DAY_S)
        told = await bench.retention.expire_now(dry_run=True)
        assert bench.life.expiry.minimum == 0
        done = await bench.retention.expire_now(dry_run=False)
        assert told == done
        assert [each.name for each in done.segments] == [f"{number * SEGMENT_SIZE:020d}" for number in range(3)]
        assert bench.life.expiry.minimum == 3 * SEGMENT_SIZE, "a request is not done in small rounds"
        assert (await bench.retention.expire_now(dry_run=False)).segments == []
        await bench.retention.stop()

    run(test, never)


def test_small_stores_whose_queues_are_rarely_flushed_expire_too() -> None:
    """What the queues would lose in a crash is made durable first."""

    async def test(bench: Bench) -> None:
        for _ in range(4):
            store = bench.life.opened.store
            store.append([message(body=BODY)])
            store.dispatch(store.flush())
        bench.host.clock.advance(4 * DAY_S)
        async with bench.running():
            await bench.until(lambda: bench.counted.removed == 3)
        assert bench.life.opened.store.queues_durable_up_to >= 3 * SEGMENT_SIZE

    run(test)


@pytest.mark.parametrize("operation", ["move", "remove"])
def test_a_disk_that_refuses_for_a_while_is_tried_again(operation: str) -> None:
    async def test(bench: Bench) -> None:
        fill(bench.life, 4)
        bench.host.clock.advance(4 * DAY_S)
        for nth in (1, 2, 3):
            bench.disk.fail(operation, nth=nth, error=errno.EIO)  # type: ignore[arg-type]
        with capture_logs() as lines:
            async with bench.running():
                await bench.until(lambda: bench.counted.removed == 3)
        complaints = [line for line in lines if line["log_level"] == "error"]
        assert complaints
        assert all("Input/output error" in line["error"] for line in complaints)

    run(test)


def test_a_disk_without_room_for_a_name_is_cleaned_all_the_same() -> None:
    """A folder or a rename may need a block. What is to make room must not need any."""

    async def test(bench: Bench) -> None:
        fill(bench.life, 4)
        bench.host.clock.advance(4 * DAY_S)
        bench.disk.fail("move", error=errno.ENOSPC)
        async with bench.running():
            await bench.until(lambda: bench.counted.removed == 2)
        assert not bench.life.expiry.remover.pending, "the first one was removed where it was"
        assert not bench.disk.exists(LOG / f"{0:020d}")

    run(test)


def test_a_database_without_room_does_not_stop_expiry(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(bench: Bench) -> None:
        fill(bench.life, 4)
        bench.host.clock.advance(4 * DAY_S)
        with monkeypatch.context() as full:

            def write(_: MemoryEngine, __: object, *, sync: bool = False) -> None:
                raise EngineFull("No space left on device")

            full.setattr(MemoryEngine, "write", write)
            async with bench.running():
                await bench.until(lambda: bench.counted.removed == 3)

    run(test)


def test_what_an_earlier_broker_left_is_removed() -> None:
    async def test(bench: Bench) -> None:
        fill(bench.life, 4)
        bench.life.expiry.retire(PhysicalOffset(2 * SEGMENT_SIZE))
        bench.life.expiry.remover._move_all()
        bench.host.crash(0, power_loss=False)
        bench.life = bench.host.start()
        bench.retention = Retention(
            bench.life.expiry,
            SETTINGS,
            RetentionTimes(interval_s=0.001),
            commit=bench.commit,
            clock=bench.host.clock,
            metrics=bench.counted,
            carry_over=bench.carry_over,
        )
        assert bench.life.expiry.going_bytes == 2 * SEGMENT_SIZE
        async with bench.running():
            await bench.until(lambda: bench.life.expiry.going_bytes == 0)

    run(test)


def test_consumers_read_on_while_segments_expire() -> None:
    """An entry that is visible has its record: the queues begin later at the same moment as the log."""

    async def test(bench: Bench) -> None:
        fill(bench.life, 30)
        store = bench.life.opened.store
        bench.host.clock.advance(4 * DAY_S)
        seen = 0
        async with bench.running():
            while bench.counted.removed < 29:
                for entry in store.entries(QueueId(*QUEUE), QueueOffset(0), 100):
                    assert bytes(store.read(entry).body[:2]) == b"%02d" % entry.queue_offset
                    seen += 1
                    if seen % 5 == 0:
                        break
                await asyncio.sleep(0)
        assert seen > 0

    run(test)
