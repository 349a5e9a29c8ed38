"""Disks that copy keep their contract: the real one and the one that fails on order."""

from __future__ import annotations

import errno
import zlib
from pathlib import Path

import pytest

from quarry_mq.store.fs import CopyingDisk, PosixCopyingDisk
from tests.backup.disk import FaultyCopyingDisk

SIZE = 3 * 1024 * 1024 + 17


@pytest.fixture(params=["posix", "faulty"])
def disk(request: pytest.FixtureRequest) -> CopyingDisk:
    return PosixCopyingDisk() if request.param == "posix" else FaultyCopyingDisk()


@pytest.fixture
def folder(disk: CopyingDisk, tmp_path: Path) -> Path:
    disk.make_directories(tmp_path / "folder")
    return tmp_path / "folder"


def filled(disk: CopyingDisk, path: Path, size: int = SIZE) -> bytes:
    """A file with bytes at its begin and in its middle, and zeros otherwise."""
    segment = disk.create_segment(path, size)
    segment.write(0, b"begin")
    segment.write(size // 2, b"middle")
    segment.flush()
    segment.close()
    return disk.read(path)


@pytest.mark.parametrize("length", [0, 3, SIZE // 2 + 3, SIZE])
def test_a_copy_has_the_first_bytes_and_zeros_after_them(disk: CopyingDisk, folder: Path, length: int) -> None:
    content = filled(disk, folder / "a")
    expected = content[:length].ljust(SIZE, b"\0")
    assert disk.copy_file(folder / "a", folder / "b", length=length, size=SIZE) == zlib.crc32(expected)
    assert disk.read(folder / "b") == expected
    assert disk.checksum(folder / "b") == zlib.crc32(expected)
    assert disk.file_size(folder / "b") == SIZE


def test_a_copy_of_a_file_that_is_too_short_is_an_error(disk: CopyingDisk, folder: Path) -> None:
    filled(disk, folder / "a")
    with pytest.raises(OSError) as caught:  # noqa: PT011 - the number is looked at below
        disk.copy_file(folder / "a", folder / "b", length=SIZE + 1, size=SIZE + 1)
    assert caught.value.errno == errno.EIO


def test_nothing_is_written_over(disk: CopyingDisk, folder: Path) -> None:
    filled(disk, folder / "a")
    filled(disk, folder / "b")
    with pytest.raises(FileExistsError):
        disk.copy_file(folder / "a", folder / "b", length=1, size=1)
    with pytest.raises(FileExistsError):
        disk.link_file(folder / "a", folder / "b")
    with pytest.raises(FileExistsError):
        disk.rename(folder / "a", folder / "b")


def test_a_link_is_the_same_file_and_a_copy_is_not(disk: CopyingDisk, folder: Path) -> None:
    content = filled(disk, folder / "a")
    disk.link_file(folder / "a", folder / "linked")
    disk.copy_file(folder / "a", folder / "copied", length=SIZE, size=SIZE)
    assert disk.is_same_file(folder / "a", folder / "linked")
    assert not disk.is_same_file(folder / "a", folder / "copied")
    assert not disk.is_same_file(folder / "a", folder / "missing")
    disk.remove(folder / "a")
    assert disk.read(folder / "linked") == content


def test_a_directory_is_moved_with_all_it_holds(disk: CopyingDisk, folder: Path) -> None:
    disk.make_directories(folder / "x" / "y")
    filled(disk, folder / "x" / "y" / "a", 64)
    disk.rename(folder / "x", folder / "z")
    assert not disk.exists(folder / "x")
    assert disk.file_size(folder / "z" / "y" / "a") == 64


def test_a_tree_is_removed_with_all_it_holds(disk: CopyingDisk, folder: Path) -> None:
    disk.make_directories(folder / "x" / "y")
    filled(disk, folder / "x" / "y" / "a", 64)
    disk.remove_tree(folder / "x")
    disk.remove_tree(folder / "x")
    assert disk.list_directory(folder) == []


def test_a_copy_keeps_holes(tmp_path: Path) -> None:
    """A gigabyte of which little is written takes little room in the backup."""
    disk = PosixCopyingDisk()
    source = tmp_path / "a"
    with source.open("wb") as file:
        file.truncate(1 << 26)
        file.seek(1 << 25)
        file.write(b"x")
    disk.copy_file(source, tmp_path / "b", length=1 << 26, size=1 << 26)
    assert (tmp_path / "b").stat().st_size == 1 << 26
    assert (tmp_path / "b").stat().st_blocks * 512 <= 1 << 21


def test_a_rename_is_durable_at_both_ends(tmp_path: Path) -> None:
    """The fake disk takes it for durable at once."""
    source, target = tmp_path / "here" / "file", tmp_path / "there" / "file"
    for path in (source, target):
        path.parent.mkdir()
    source.write_bytes(b"x")
    synced_after: set[Path] = set()

    class NotingDisk(PosixCopyingDisk):
        def sync_directory(self, path: Path) -> None:
            super().sync_directory(path)
            if target.exists():
                synced_after.add(path)

    NotingDisk().rename(source, target)
    assert synced_after == {source.parent, target.parent}
