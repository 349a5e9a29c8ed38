"""`quarry migrate`: stores go to the other kind of queues and back, RocketMQ's and ours, also when killed anywhere."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from quarry_mq.kv import KeyRange
from quarry_mq.protocol.clock import ManualClock
from quarry_mq.store.consumequeue import open_consume_queue_engine
from quarry_mq.store.consumequeue.rocks_layout import ENTRIES_FAMILY, OFFSET_FAMILY, entry_key
from quarry_mq.store.errors import NotAStore, StoreLocked, StoreUnusable
from quarry_mq.store.fs import PosixDisk
from quarry_mq.store.layout.kind import inspect_store
from quarry_mq.store.layout.paths import StorePaths
from quarry_mq.store.layout.queue_phase import QueueMode, QueuePhase
from quarry_mq.store.message import QueueId, QueueOffset
from quarry_mq.store.metadata import READ_WRITE, Topic, TopicType
from quarry_mq.store.migration.rows import MigrationRows
from quarry_mq.store.offline import OfflineStore
from quarry_mq.store.opening.open_store import OpenStore
from quarry_mq.store.state.identity import open_state_engine
from quarry_mq.store.tools.queue_migration import Migrated, Orders, Target, migrate, plan
from quarry_mq.store.verify import verify
from tests.store.assembly import message
from tests.store.test_queue_modes import crash, entries, opened, send

GoldenStore = Callable[[str], Path]
ORDERS = QueueId("orders", 0)
LITE = QueueId("%LMQ%lite", 0)
NAMES = (ENTRIES_FAMILY, OFFSET_FAMILY)


def orders(target: Target, **more: bool) -> Orders:
    return Orders(target=target, asked_by="operator", **more)


def migrated(root: Path, target: Target, disk: PosixDisk | None = None, **more: bool) -> Migrated:
    return migrate(disk or PosixDisk(), ManualClock(), root, orders(target, **more), report=lambda _: None)


def rows_in(root: Path) -> dict[str, dict[bytes, bytes]]:
    """All that the database of queues holds."""
    engine = open_consume_queue_engine(inspect_store(PosixDisk(), root).rocksdb_directory, create=False)
    try:
        return {name: dict(engine.family(name).iterate(KeyRange(b"", None))) for name in NAMES}
    finally:
        engine.close()


def files_in(root: Path) -> dict[str, bytes]:
    """All queue files, without the zeros at their ends."""
    directory, disk = root / "consumequeue", PosixDisk()
    found = {}
    for path in directory.glob("*/*/0*"):
        with path.open("rb") as file:
            found[str(path.relative_to(directory))] = file.read(disk.data_end(path)).rstrip(b"\0")
    return found


def agrees(root: Path) -> bool:
    with OfflineStore.open(PosixDisk(), root) as store:
        report = verify(store, lambda _: None)
    return report.agrees


@pytest.mark.parametrize("name", ["file-clean", "file-kill"])
def test_a_file_store_of_rocketmq_goes_to_rocksdb_and_back(
    golden_copy: GoldenStore, golden_store: GoldenStore, tmp_path: Path, name: str
) -> None:
    """rmq#8600: the way to RocksDB loses nothing, and there is a way back. Key by key, byte by byte."""
    root, rebuilt = golden_copy(name) / "store", tmp_path / "rebuilt"
    shutil.copytree(golden_store(name) / "store", rebuilt)
    opened(rebuilt).close()
    before = files_in(root)
    done = migrated(root, Target.ROCKSDB)
    assert (done.origin, done.phase) == (QueuePhase.FILE, QueuePhase.ROCKSDB)
    assert done.report is not None
    assert done.report.agrees
    assert done.report.units > 5_000
    assert rows_in(root) == rows_in(rebuilt)
    assert files_in(root) == {}
    assert done.aside == root / "consumequeue.set-aside-0"
    assert agrees(root)
    back = migrated(root, Target.FILE)
    assert back.report is not None
    assert (back.phase, back.report.units) == (QueuePhase.FILE, done.report.units)
    assert files_in(root) == before
    assert not inspect_store(PosixDisk(), root).has_rocksdb
    assert agrees(root)


@pytest.mark.slow
def test_a_double_write_store_of_rocketmq(golden_copy: GoldenStore, golden_store: GoldenStore, tmp_path: Path) -> None:
    """Its light queues are numbered by RocksDB, whose numbers its consumers know: RocketMQ's files count otherwise."""
    root, rebuilt = golden_copy("double-clean") / "store", tmp_path / "rebuilt"
    shutil.copytree(golden_store("double-clean") / "store", rebuilt)
    opened(rebuilt).close()
    before = files_in(root)
    done = migrated(root, Target.ROCKSDB)
    assert (done.phase, done.report) == (QueuePhase.ROCKSDB, None), "its first opening has done it all"
    assert done.aside == root / "consumequeue.set-aside-0"
    expected = rows_in(rebuilt)
    assert rows_in(root) == expected
    back = migrated(root, Target.FILE)
    assert back.phase is QueuePhase.FILE
    after = files_in(root)
    ordinary = {name for name in before if not name.startswith("%LMQ%")}
    assert len(ordinary) > 30
    assert {name: after[name] for name in ordinary} == {name: before[name] for name in ordinary}
    assert after.keys() == before.keys()
    assert agrees(root)
    again = migrated(root, Target.ROCKSDB)
    assert again.phase is QueuePhase.ROCKSDB
    assert rows_in(root)[ENTRIES_FAMILY] == expected[ENTRIES_FAMILY]


@pytest.mark.parametrize("remove_old", [False, True])
def test_old_queues_are_kept_aside_unless_they_are_to_go(golden_copy: GoldenStore, remove_old: bool) -> None:
    root = golden_copy("rocks-clean") / "store"
    to_files = migrated(root, Target.FILE, remove_old=remove_old)
    to_rocksdb = migrated(root, Target.ROCKSDB, remove_old=remove_old)
    kept = sorted(path.name for path in root.glob("consumequeue*"))
    if remove_old:
        assert (to_files.aside, to_rocksdb.aside) == (None, None)
        assert kept == ["consumequeue_rocksdb"]
    else:
        assert kept == ["consumequeue.set-aside-0", "consumequeue_rocksdb", "consumequeue_rocksdb.set-aside-0"]
        assert (to_files.aside, to_rocksdb.aside) == (root / kept[2], root / kept[0])
    assert agrees(root)


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return tmp_path / "store"


def filled(root: Path, mode: QueueMode, *, light: str = LITE.topic) -> OpenStore:
    store = opened(root, mode)
    for topic in ("orders", "gone"):
        store.topics.create(Topic(topic, TopicType.NORMAL, 1, 1, READ_WRITE, {}), internal=True)
    send(store, 40)
    store.messages.append([message("gone", 0), message("gone", 0, INNER_MULTI_DISPATCH=light)])
    store.messages.dispatch(store.messages.flush())
    store.messages.delete_topic("gone")
    store.topics.delete("gone")
    return store


def shown(root: Path) -> dict[QueueId, list[Any]]:
    store = opened(root)
    found: dict[QueueId, list[Any]] = {queue: entries(store, queue) for queue in store.messages.iterate_queues()}
    store.close()
    return found


@pytest.mark.parametrize("crashed", [False, True], ids=["stopped", "crashed"])
def test_a_store_of_ours_there_and_back(store: Path, crashed: bool) -> None:
    """A deleted topic does not come back from the log, and numbering goes on where it was."""
    begun = filled(store, QueueMode.FILE)
    begun.messages.flush_queues()
    crash(begun) if crashed else begun.close()
    before = shown(store)
    assert before.keys() == {ORDERS, LITE}
    migrated(store, Target.ROCKSDB)
    assert shown(store) == before
    assert agrees(store)
    more = opened(store)
    send(more, 5)
    more.close()
    migrated(store, Target.FILE)
    after = shown(store)
    assert {queue: found[: len(before[queue])] for queue, found in after.items()} == before
    assert [each.queue_offset for each in after[ORDERS]] == list(range(45))
    assert agrees(store)


def test_a_queue_without_a_record_goes_on_where_it_was(store: Path) -> None:
    """rmq#8753: all of its records have expired. Neither the log nor a rebuild knows where it goes on."""
    begun = opened(store, QueueMode.FILE)
    for _ in range(7):
        begun.messages.append([message("quiet", 0)])
    for _ in range(700):
        begun.messages.append([message("busy", 0, b"x" * 500)])
    begun.messages.dispatch(begun.messages.flush())
    begun.close()
    first = min((store / "commitlog").glob("0*"))
    first.unlink()
    for target in (Target.ROCKSDB, Target.FILE, Target.ROCKSDB):
        migrated(store, target)
        again = opened(store)
        assert again.messages.bounds(QueueId("quiet", 0)) == (7, 7)
        assert again.messages.bounds(QueueId("busy", 0)).minimum > 0
        again.close()


@pytest.mark.parametrize("target", list(Target))
@pytest.mark.parametrize("phase", [each for each in QueuePhase if each.writes_files and each.writes_rocksdb])
def test_from_every_phase_in_between(store: Path, phase: QueuePhase, target: Target) -> None:
    begun = filled(store, QueueMode.DOUBLE_WRITE)
    begun.close()
    engine = open_state_engine(StorePaths(store).quarry, create=False)
    rows = MigrationRows(engine)
    batch = engine.batch()
    batch.put(engine.family("meta"), b"queue_phase", phase.value.encode())
    engine.write(batch, sync=True)
    engine.close()
    before = shown(store)
    done = migrated(store, target)
    assert (done.origin, done.phase) == (phase, target.phase)
    assert shown(store) == before
    assert agrees(store)
    engine = open_state_engine(StorePaths(store).quarry, create=False)
    rows = MigrationRows(engine)
    (*_, step) = rows.steps()
    assert (step.origin, step.target, step.asked_by) == (phase, target.phase, "operator")
    report = rows.report()
    engine.close()
    if target is Target.ROCKSDB:
        assert report is not None
        assert report.agrees


def test_two_that_differ_stay_as_they_are(store: Path) -> None:
    begun = filled(store, QueueMode.DOUBLE_WRITE)
    begun.identity.queue_phase = QueuePhase.READING_ROCKSDB.value
    begun.close()
    engine = open_consume_queue_engine(store / "consumequeue_rocksdb", create=False)
    batch = engine.batch()
    batch.delete(engine.family(ENTRIES_FAMILY), entry_key(ORDERS, QueueOffset(3)))
    engine.write(batch)
    engine.close()
    for target in Target:
        done = migrated(store, target)
        assert done.phase is QueuePhase.READING_ROCKSDB
        assert done.report is not None
        assert done.report.differences == {"missing_in_rocksdb": 1}
        assert (done.report.first[0].topic, done.report.first[0].queue_offset) == ("orders", 3)
    engine = open_state_engine(StorePaths(store).quarry, create=False)
    assert MigrationRows(engine).report() == done.report
    engine.close()


def test_names_that_no_file_can_have_are_not_lost_by_accident(store: Path) -> None:
    filled(store, QueueMode.ROCKSDB, light="%LMQ%a/b").close()
    with pytest.raises(
        StoreUnusable, match=r"1 light queues have names that are not possible as file names \(%LMQ%a/b\)"
    ):
        migrated(store, Target.FILE)
    assert QueueId("%LMQ%a/b", 0) in shown(store)
    done = migrated(store, Target.FILE, leave_out_names=True)
    assert (done.phase, done.left_out) == (QueuePhase.FILE, 1)
    assert shown(store).keys() == {ORDERS, LITE}


def test_what_it_refuses(store: Path) -> None:
    with pytest.raises(NotAStore):
        migrated(store, Target.FILE)
    running = opened(store)
    with pytest.raises(StoreLocked):
        migrated(store, Target.FILE)
    running.close()


def test_a_plan_changes_nothing_and_says_what_will_be_done(store: Path) -> None:
    filled(store, QueueMode.FILE).close()
    before = {path: path.stat().st_mtime_ns for path in store.rglob("*")}
    planned = plan(PosixDisk(), store, orders(Target.ROCKSDB))
    assert planned.origin is QueuePhase.FILE
    assert planned.steps[-3:] == (
        "compare every entry of both",
        "change to phase rocksdb",
        "set the old queue files aside",
    )
    assert "nothing else" in plan(PosixDisk(), store, orders(Target.FILE)).steps[-1]
    assert {path: path.stat().st_mtime_ns for path in store.rglob("*")} == before


class Killed(BaseException):
    """The process is no more."""


class MortalDisk(PosixDisk):
    """Dies at the change it was told to die at, before it is made."""

    def __init__(self, dies_at: int | None = None) -> None:
        super().__init__()
        self.changes = 0
        self._dies_at = dies_at

    def _change(self) -> None:
        self.changes += 1
        if self.changes == self._dies_at:
            raise Killed

    def open_sparse(self, path: Path, size: int | None = None) -> Any:
        self._change()
        return super().open_sparse(path, size)

    def make_directories(self, path: Path) -> None:
        self._change()
        super().make_directories(path)

    def replace_atomically(self, path: Path, data: bytes | memoryview) -> None:
        self._change()
        super().replace_atomically(path, data)

    def remove(self, path: Path) -> None:
        self._change()
        super().remove(path)

    def remove_directory(self, path: Path) -> None:
        self._change()
        super().remove_directory(path)

    def move(self, path: Path, target: Path) -> None:
        self._change()
        super().move(path, target)

    def sync_directory(self, path: Path) -> None:
        self._change()
        super().sync_directory(path)


@pytest.mark.parametrize("every", [23, pytest.param(1, marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    "remove_old", [False, pytest.param(True, marks=pytest.mark.slow)], ids=["set aside", "removed"]
)
@pytest.mark.parametrize("target", [Target.ROCKSDB, pytest.param(Target.FILE, marks=pytest.mark.slow)])
def test_killed_at_any_change_it_can_be_run_again(tmp_path: Path, target: Target, remove_old: bool, every: int) -> None:
    """At whichever change of the disk it dies: the store opens with the same queues, and the next run goes through."""
    origin = QueueMode.FILE if target is Target.ROCKSDB else QueueMode.ROCKSDB
    template = tmp_path / "template"
    filled(template, origin).close()
    before = shown(template)
    counting = MortalDisk()
    shutil.copytree(template, tmp_path / "whole")
    migrated(tmp_path / "whole", target, counting, remove_old=remove_old)
    assert counting.changes > 20
    for dies_at in sorted({*range(1, counting.changes, every), *range(counting.changes - 4, counting.changes + 1)}):
        root = tmp_path / f"killed at {dies_at}"
        shutil.copytree(template, root)
        with pytest.raises(Killed):
            migrated(root, target, MortalDisk(dies_at), remove_old=remove_old)
        assert shown(root) == before, f"killed at change {dies_at}"
        assert agrees(root)
        done = migrated(root, target, remove_old=remove_old)
        assert done.phase is target.phase
        assert shown(root) == before
        left = {path.name for path in root.glob("consumequeue*") if "set-aside" not in path.name}
        assert left == {"consumequeue_rocksdb" if target is Target.ROCKSDB else "consumequeue"}, dies_at
        assert agrees(root)
        shutil.rmtree(root)
