"""Backups share files with each other, and a restore refuses damaged ones and names the damage."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from quarry_mq.store.backup import newest_backup, read_manifest, restore
from quarry_mq.store.backup.plan import backup_name, frozen_below
from quarry_mq.store.errors import Busy, NotAStore, StoreDamaged
from quarry_mq.store.message import PhysicalOffset
from tests.backup.disk import FaultyCopyingDisk
from tests.backup.test_crashes import DEST, NEW, SEGMENT, STORE, back_up, content, expected, plan, put, source
from tests.faults.disk import FaultyFile


class TwoFileSystems(FaultyCopyingDisk):
    """The store on one, the backups on another."""

    def link_file(self, source: Path, target: Path) -> None:
        if source.is_relative_to(STORE) != target.is_relative_to(STORE):
            raise OSError(errno.EXDEV, os.strerror(errno.EXDEV), str(target))
        super().link_file(source, target)


@pytest.fixture(params=[FaultyCopyingDisk, TwoFileSystems], ids=["one-file-system", "two"])
def disk(request: pytest.FixtureRequest) -> FaultyCopyingDisk:
    made: FaultyCopyingDisk = request.param()
    source(made)
    return made


def files_of(disk: FaultyCopyingDisk, directory: Path) -> dict[str, FaultyFile]:
    return {
        str(path.relative_to(directory)): file for path, file in disk.files.items() if path.is_relative_to(directory)
    }


def test_a_second_backup_holds_once_what_did_not_change(disk: FaultyCopyingDisk) -> None:
    """Segments and tables are one file with two names; so is anything else whose content is the same."""
    first = back_up(disk)
    put(disk, STORE / "commitlog" / f"{3 * SEGMENT:020d}", b"x" * SEGMENT)
    disk.files[STORE / "config" / "topics.json"] = FaultyFile(b"{} ")
    second = back_up(disk)
    mine, others = files_of(disk, first), files_of(disk, second)
    changed = {path for path in others if others[path] is not mine.get(path)}
    assert changed == {"config/topics.json", "backup-manifest.json"}
    # the same name and size, another content: a database that was made anew
    disk.files[STORE / "quarry" / "000012.sst"] = FaultyFile(b"000012.SST")
    third = files_of(disk, back_up(disk))
    assert bytes(third["quarry/000012.sst"].live) == b"000012.SST"
    assert bytes(others["quarry/000012.sst"].live) == b"000012.sst"


def test_only_what_never_changes_is_linked_with_the_store(disk: FaultyCopyingDisk) -> None:
    directory = back_up(disk)
    shared = {path for path, file in files_of(disk, directory).items() if file is disk.files.get(STORE / path)}
    frozen = {
        f"commitlog/{0:020d}",
        f"commitlog/{SEGMENT:020d}",
        "quarry/000012.sst",
        "consumequeue_rocksdb/000012.sst",
    }
    assert shared == (set() if isinstance(disk, TwoFileSystems) else frozen)
    assert {each.path for each in read_manifest(disk, directory).files if each.frozen} == frozen


def test_the_key_of_the_self_signed_certificate_is_in_no_backup_and_stays_beside_a_restored_store(
    disk: FaultyCopyingDisk,
) -> None:
    put(disk, STORE / "tls" / "key.pem", b"secret")
    directory = back_up(disk)
    assert not [path for path in files_of(disk, directory) if "tls" in path]
    put(disk, NEW / "tls" / "key.pem", b"of the new place")
    restore(disk, directory, NEW, report=lambda _: None)
    assert disk.read(NEW / "tls" / "key.pem") == b"of the new place"


def test_copies_share_nothing_with_the_store_not_even_later(disk: FaultyCopyingDisk) -> None:
    back_up(disk)
    for _ in range(2):
        directory = back_up(disk, may_link=False)
        for path, file in files_of(disk, directory).items():
            if not isinstance(disk, TwoFileSystems):
                assert file is not disk.files.get(STORE / path), path


def test_two_backups_into_one_folder_at_once_are_refused(disk: FaultyCopyingDisk) -> None:
    back_up(disk)
    lock = disk.lock(DEST / "lock")
    with pytest.raises(Busy, match="being written"):
        back_up(disk)
    lock.release()
    back_up(disk)


def test_names_ascend_whatever_the_clock_says() -> None:
    assert backup_name(0, []) == "19700101T000000.000Z"
    assert backup_name(1_795_250_122_125, []) == "20261121T083522.125Z"
    assert backup_name(0, ["20261121T083522.125Z"]) == "20261121T083522.126Z"
    assert backup_name(0, ["20261231T235959.999Z"]) == "20270101T000000.000Z"


def test_segments_that_a_start_may_still_cut_are_never_linked() -> None:
    ends = [(PhysicalOffset(number * SEGMENT), 1) for number in range(4)]
    assert frozen_below(ends, PhysicalOffset(4 * SEGMENT)) == 3 * SEGMENT, "the last one is written again"
    assert frozen_below(ends, PhysicalOffset(SEGMENT + 7)) == SEGMENT + 7
    assert frozen_below(ends, None) == 2 * SEGMENT, "nobody wrote down what was durable"
    assert frozen_below([*ends, (PhysicalOffset(4 * SEGMENT), 0)], None) == 2 * SEGMENT, "empty: it was prepared"
    assert frozen_below([], None) == 0


def test_a_restored_store_is_the_backup_s_and_shares_nothing_with_it(disk: FaultyCopyingDisk) -> None:
    directory = back_up(disk)
    restore(disk, DEST, NEW, report=lambda _: None)
    made = files_of(disk, NEW)
    assert {path: bytes(file.live) for path, file in made.items() if path != "lock"} == expected(disk)
    assert not {id(file) for file in made.values()} & {id(file) for file in files_of(disk, directory).values()}


def test_a_restore_that_links_copies_what_a_broker_writes(disk: FaultyCopyingDisk) -> None:
    directory = back_up(disk)
    report = restore(disk, directory, NEW, report=lambda _: None, may_link=True)
    backup = files_of(disk, directory)
    shared = {path for path, file in files_of(disk, NEW).items() if file is backup.get(path)}
    assert shared == {each.path for each in read_manifest(disk, directory).files if each.frozen}
    assert report.linked_bytes == sum(backup[path].live.__len__() for path in shared)


def test_the_newest_finished_backup_is_restored(disk: FaultyCopyingDisk) -> None:
    back_up(disk)
    disk.files[STORE / "config" / "topics.json"] = FaultyFile(b"newer")
    second = back_up(disk)
    disk.make_directories(DEST / "99991231T235959.999Z")
    assert newest_backup(disk, DEST) == second
    restore(disk, DEST, NEW, report=lambda _: None)
    assert disk.read(NEW / "config" / "topics.json") == b"newer"


Harm = Callable[[FaultyCopyingDisk, Path], None]


def _flip(disk: FaultyCopyingDisk, path: Path) -> None:
    disk.files[path].live[-1] ^= 1


def _shorten(disk: FaultyCopyingDisk, path: Path) -> None:
    del disk.files[path].live[-1]


def _lose(disk: FaultyCopyingDisk, path: Path) -> None:
    del disk.files[path]


@pytest.mark.parametrize(
    ("harm", "word"), [(_flip, "content changed"), (_shorten, "bytes, expected"), (_lose, "missing")]
)
def test_everything_damaged_or_missing_is_named_and_nothing_is_restored(
    disk: FaultyCopyingDisk, harm: Harm, word: str
) -> None:
    directory = back_up(disk, may_link=False)
    victims = [directory / "commitlog" / f"{SEGMENT:020d}", directory / "quarry" / "CURRENT"]
    for path in victims:
        harm(disk, path)
    with pytest.raises(StoreDamaged) as caught:
        restore(disk, directory, NEW, report=lambda _: None)
    assert caught.value.reason.count(word) == 2
    assert all(str(path) in caught.value.reason for path in victims)
    assert content(disk, NEW) == {}


def test_a_manifest_that_was_changed_is_refused(disk: FaultyCopyingDisk) -> None:
    directory = back_up(disk)
    path = directory / "backup-manifest.json"
    whole = json.loads(disk.read(path))
    whole["manifest"]["logEnd"] += 1
    disk.files[path] = FaultyFile(json.dumps(whole).encode())
    with pytest.raises(StoreDamaged, match="checksum"):
        restore(disk, directory, NEW, report=lambda _: None)
    disk.files[path] = FaultyFile(b"{")
    with pytest.raises(StoreDamaged, match="not a manifest"):
        restore(disk, directory, NEW, report=lambda _: None)
    # the next backup does not build upon it, and stands by itself
    assert newest_backup(disk, DEST) == directory
    again = back_up(disk)
    assert restore(disk, DEST, NEW, report=lambda _: None).source == again


def test_a_store_is_restored_into_an_empty_directory_only(disk: FaultyCopyingDisk) -> None:
    back_up(disk)
    put(disk, NEW / "commitlog" / "anything", b"of somebody")
    before = content(disk, NEW)
    with pytest.raises(NotAStore, match="not empty: it contains 'commitlog'"):
        restore(disk, DEST, NEW, report=lambda _: None)
    assert content(disk, NEW) == before


@pytest.mark.parametrize("path", [DEST, STORE / "config"])
def test_what_is_no_backup_is_refused(disk: FaultyCopyingDisk, path: Path) -> None:
    with pytest.raises(NotAStore, match="contains no backup"):
        restore(disk, path, NEW, report=lambda _: None)


def test_a_plan_leaves_out_what_belongs_to_the_running_system(disk: FaultyCopyingDisk) -> None:
    put(disk, STORE / "backup" / "1" / "quarry" / "CURRENT", b"of a point")
    put(disk, STORE / "checkpoint.tmp", b"about to become the checkpoint")
    put(disk, STORE / "commitlog" / "broken" / f"{7:020d}.broken", b"cut")
    planned = {each.path for each in plan(disk)}
    left_out = {"backup/1/quarry/CURRENT", "checkpoint.tmp", f"commitlog/broken/{7:020d}.broken"}
    assert planned == expected(disk).keys() - left_out
