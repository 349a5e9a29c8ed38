"""Backup and restore, ended at every write: nothing usable or a complete one, and the source is never touched."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import pytest

from quarry_mq.protocol.clock import ManualClock
from quarry_mq.store.backup import (
    BackupPlan,
    PlannedFile,
    damaged_files,
    newest_backup,
    read_manifest,
    restore,
    write_backup,
)
from quarry_mq.store.backup.plan import frozen_below, is_finished, plan_offline
from quarry_mq.store.errors import NotAStore
from quarry_mq.store.layout.kind import inspect_store
from quarry_mq.store.layout.paths import StorePaths
from quarry_mq.store.message import PhysicalOffset
from tests.backup.disk import FaultyCopyingDisk
from tests.faults.disk import FaultyFile, PowerCut

STORE, DEST, NEW = Path("/store"), Path("/backups"), Path("/restored")
SEGMENT = 64 * 1024


def source(disk: FaultyCopyingDisk) -> None:
    """Three segments, two databases and RocketMQ's configuration."""
    paths = StorePaths(STORE)
    for number in range(3):
        put(disk, paths.commit_log / f"{number * SEGMENT:020d}", bytes([number + 1]) * SEGMENT)
    for name in ("CURRENT", "MANIFEST-000004", "000012.sst", "000013.log", "LOG", "LOCK"):
        put(disk, paths.quarry / name, name.encode())
        put(disk, paths.consume_queue_rocksdb / name, name.encode() * 2)
    put(disk, paths.config / "topics.json", b"{}")
    put(disk, paths.lock, b"lock")


def put(disk: FaultyCopyingDisk, path: Path, content: bytes) -> None:
    disk.make_directories(path.parent)
    disk.files[path] = FaultyFile(content)


def content(disk: FaultyCopyingDisk, root: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(root)): bytes(file.live) for path, file in disk.files.items() if path.is_relative_to(root)
    }


def plan(disk: FaultyCopyingDisk) -> list[PlannedFile]:
    bases = [PhysicalOffset(number * SEGMENT) for number in range(3)]
    ends = [(base, SEGMENT) for base in bases]
    return plan_offline(disk, STORE, bases=bases, segment_size=SEGMENT, frozen_below=frozen_below(ends, bases[2]))


def back_up(disk: FaultyCopyingDisk, *, may_link: bool = True) -> Path:
    planned = BackupPlan(plan(disk), False, PhysicalOffset(0), PhysicalOffset(3 * SEGMENT), SEGMENT)
    made = write_backup(disk, planned, DEST, clock=ManualClock(), report=lambda _: None, may_link=may_link)
    return made.directory


def expected(disk: FaultyCopyingDisk) -> dict[str, bytes]:
    left_out = ("lock", "/LOCK", "/LOG")
    return {path: data for path, data in content(disk, STORE).items() if not path.endswith(left_out)}


def is_sound(disk: FaultyCopyingDisk, directory: Path) -> bool:
    return damaged_files(disk, directory, read_manifest(disk, directory), lambda _: None) == []


def restored(disk: FaultyCopyingDisk) -> dict[str, bytes]:
    """What a restore has moved to its place."""
    return {
        path: data for path, data in content(disk, NEW).items() if path != "lock" and not path.startswith("restoring/")
    }


def operations_of_a_backup(*, second: bool, may_link: bool) -> int:
    disk = FaultyCopyingDisk()
    source(disk)
    if second:
        back_up(disk, may_link=may_link)
    before = disk.operations
    back_up(disk, may_link=may_link)
    return disk.operations - before


@pytest.mark.parametrize("second", [False, True], ids=["first", "second"])
@pytest.mark.parametrize("may_link", [False, True], ids=["copied", "linked"])
def test_a_backup_that_is_ended_at_any_write_is_complete_or_none(*, second: bool, may_link: bool) -> None:
    total = operations_of_a_backup(second=second, may_link=may_link)
    assert total > 10 or second
    for crash_at in range(1, total + 2):
        disk = FaultyCopyingDisk()
        source(disk)
        before = content(disk, STORE)
        first = back_up(disk, may_link=may_link) if second else None
        disk.crash_at = disk.operations + crash_at
        with suppress(PowerCut):
            back_up(disk, may_link=may_link)
        after = disk.after(crash_at)
        assert content(after, STORE) == before, f"{crash_at=}"
        try:
            newest = newest_backup(after, DEST)
        except NotAStore:
            assert not second, f"the first backup is gone, {crash_at=}"
        else:
            assert is_sound(after, newest), f"{crash_at=}"
            assert (newest == first) == (crash_at <= total), f"{crash_at=}"
        again = back_up(after, may_link=may_link)
        assert is_sound(after, again)
        names = [each.name for each in after.list_directory(DEST) if each.is_directory]
        assert all(is_finished(after, DEST / name) for name in names), "what was unfinished is gone"


def test_a_restore_that_is_ended_at_any_write_leaves_nothing_that_opens() -> None:
    disk = FaultyCopyingDisk()
    source(disk)
    back_up(disk)
    counting = disk.after(0)
    restore(counting, DEST, NEW, report=lambda _: None)
    total = counting.operations
    assert total > 10
    assert restored(counting) == expected(disk)
    for crash_at in range(1, total + 1):
        trying = disk.after(crash_at)
        before = content(trying, STORE), content(trying, DEST)
        trying.crash_at = crash_at
        with suppress(PowerCut):
            restore(trying, DEST, NEW, report=lambda _: None)
        after = trying.after(crash_at)
        assert (content(after, STORE), content(after, DEST)) == before, f"{crash_at=}"
        if any(path.startswith("commitlog/") for path in restored(after)):
            assert restored(after) == expected(disk), f"RocketMQ takes what has a log for a store, {crash_at=}"
        if after.exists(StorePaths(NEW).restoring):
            with pytest.raises(NotAStore, match="restore did not finish"):
                inspect_store(after, NEW)
            with pytest.raises(NotAStore, match="did not finish"):
                restore(after, DEST, NEW, report=lambda _: None)
            after.remove_tree(NEW)
        else:
            assert content(after, NEW).keys() <= {"lock"}, f"{crash_at=}"
        restore(after, DEST, NEW, report=lambda _: None)
        assert restored(after) == expected(disk)


@pytest.mark.parametrize("may_link", [False, True], ids=["copied", "linked"])
def test_what_was_restored_or_backed_up_is_there_after_a_power_cut(may_link: bool) -> None:
    """Names, too: those of files that were made in new folders, and moved with them."""
    for seed in range(20):
        disk = FaultyCopyingDisk()
        source(disk)
        back_up(disk, may_link=may_link)
        kept = disk.after(seed)
        assert is_sound(kept, newest_backup(kept, DEST)), f"{seed=}"
        restore(kept, DEST, NEW, report=lambda _: None, may_link=may_link)
        after = kept.after(seed)
        assert restored(after) == expected(disk), f"{seed=}"
        assert not after.exists(StorePaths(NEW).restoring)
