"""Points of a live store: consistent, held by a lease, and gone when nobody holds them."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from quarry_mq.protocol.clock import ManualClock
from quarry_mq.server.maintenance.backup_points import LEASE_S, POINTS_MAX, BackupPoints, Engines
from quarry_mq.store.backup import plan_live, write_backup
from quarry_mq.store.commitlog.segments import SegmentPins
from quarry_mq.store.errors import Busy, Invalid
from quarry_mq.store.fs import PosixCopyingDisk
from quarry_mq.store.message import QueueOffset
from quarry_mq.store.metadata import READ_WRITE, Topic, TopicType
from quarry_mq.store.opening.open_store import OpenStore, open_store
from quarry_mq.store.settings import StoreSettings
from tests.verify.stores import ORDERS, send, verified


class Bench:
    """An open store and the points of it."""

    def __init__(self, root: Path) -> None:
        self.clock = ManualClock()
        self.disk = PosixCopyingDisk()
        settings = StoreSettings(root=root, segment_size=64 * 1024)
        self.store: OpenStore = open_store(settings, disk=self.disk, clock=self.clock, report=lambda _: None)
        for name in ("orders", "bills"):
            if self.store.topics.get(name) is None:
                self.store.topics.create(Topic(name, TopicType.NORMAL, 2, 2, READ_WRITE, {}))
        self.pins: SegmentPins = self.store.pins
        self.folder = root / "backup"
        self.points = self.open_points(root)

    def open_points(self, root: Path) -> BackupPoints:
        return BackupPoints(
            root,
            store=self.store.messages,
            segments=self.store.segments,
            engines=Engines(
                lambda: self.store.queues.engine, self.store.queues.rocks_directory.name, self.store.state_engine
            ),
            pins=self.pins,
            disk=self.disk,
            clock=self.clock,
            write_state=lambda: None,
        )

    def send(self, count: int) -> None:
        send(self.store, count)
        self.store.messages.dispatch(self.store.messages.appended_up_to)

    def pinned(self) -> list[str]:
        return [each.name for each in self.disk.list_directory(self.folder)]


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    made = Bench(tmp_path / "store")
    yield made
    made.store.close()


def test_what_comes_after_the_point_is_not_in_the_backup(bench: Bench, tmp_path: Path) -> None:
    """Messages and offsets that come while files are copied: the log ends at the point, and no group is beyond it."""
    bench.send(300)
    point = asyncio.run(bench.points.begin())
    bench.send(300)
    batch = bench.store.state_engine.batch()
    bench.store.offsets.stage(batch, "readers", ORDERS, QueueOffset(600))
    bench.store.state_engine.write(batch, sync=True)
    plan = plan_live(bench.disk, point)
    made = write_backup(bench.disk, plan, tmp_path / "backups", clock=bench.clock, report=lambda _: None)
    report = verified(made.directory)
    assert report.differences == []
    assert (report.log_end, report.clean_stop) == (point.log_end, True)
    assert sum(each.checked for check, each in report.counts.items() if check.value == "log") == 900
    bench.points.end(point.name)
    assert bench.pinned() == []


def test_a_point_of_an_empty_store(bench: Bench, tmp_path: Path) -> None:
    point = asyncio.run(bench.points.begin())
    assert (point.log_begin, point.log_end) == (0, 0)
    planned = plan_live(bench.disk, point)
    assert {each.path.partition("/")[0] for each in planned.files} >= {"quarry", "consumequeue_rocksdb"}


def test_segments_stay_while_the_lease_lasts_and_the_point_goes_with_it(bench: Bench) -> None:
    """A command that died must neither fill the disk nor be waited for."""
    bench.send(10)
    point = asyncio.run(bench.points.begin())
    assert bench.pins.lowest() == 0
    bench.clock.advance(LEASE_S - 1)
    bench.points.renew(point.name)
    bench.points.sweep()
    assert bench.pinned() == [point.name]
    bench.clock.advance(LEASE_S)
    bench.points.sweep()
    assert bench.pinned() == []
    assert bench.pins.lowest() is None
    with pytest.raises(Invalid):
        bench.points.renew(point.name)
    with pytest.raises(Invalid):
        bench.points.end(point.name)


def test_names_are_the_brokers_and_nothing_else_is_touched(bench: Bench) -> None:
    """No remote call may name a path."""
    bench.send(1)
    point = asyncio.run(bench.points.begin())
    assert point.name.isdecimal()
    for name in ("../quarry", "", ".", point.name + "/../../quarry"):
        with pytest.raises(Invalid):
            bench.points.end(name)
        with pytest.raises(Invalid):
            bench.points.renew(name)
    assert bench.pinned() == [point.name]


def test_only_so_many_points_are_held_at_once(bench: Bench) -> None:
    names = [asyncio.run(bench.points.begin()).name for _ in range(POINTS_MAX)]
    assert len(set(names)) == POINTS_MAX
    with pytest.raises(Busy):
        asyncio.run(bench.points.begin())
    bench.points.end(names[0])
    asyncio.run(bench.points.begin())


def test_points_of_a_broker_that_died_are_removed_by_the_next(bench: Bench, tmp_path: Path) -> None:
    asyncio.run(bench.points.begin())
    bench.disk.make_directories(bench.folder / "mine")
    assert len(bench.pinned()) == 2
    bench.open_points(tmp_path / "store")
    assert bench.pinned() == ["mine"], "what somebody else put there stays"


def test_a_point_that_could_not_be_made_leaves_nothing(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: Path) -> None:
        raise OSError(28, "No space left on device", "checkpoint")

    monkeypatch.setattr(bench.store.state_engine, "checkpoint", refuse)
    with pytest.raises(OSError, match="No space"):
        asyncio.run(bench.points.begin())
    assert bench.pinned() == []
    assert bench.pins.lowest() is None


def test_a_caller_that_goes_away_meanwhile_leaves_nothing(bench: Bench) -> None:
    async def test() -> None:
        making = asyncio.get_running_loop().create_task(bench.points.begin())
        await asyncio.sleep(0)
        making.cancel()
        with pytest.raises(asyncio.CancelledError):
            await making

    asyncio.run(test())
    assert bench.pinned() == []
    assert bench.pins.lowest() is None
