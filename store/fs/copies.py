"""The module handles whole files for backups: it copies them with their holes, links them, computes their checksums."""

from __future__ import annotations

import errno
import os
import shutil
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Final, Protocol

from isal import isal_zlib

from quarry_mq.store.fs.posix import FILE_MODE, PosixDisk
from quarry_mq.store.fs.protocol import Disk

CHUNK: Final = 1024 * 1024
_ZEROS: Final = bytes(CHUNK)
_crc32: Final = isal_zlib.crc32


class CopyingDisk(Disk, Protocol):
    """A copying disk also copies and links whole files. All methods raise OSError with `filename` set."""

    def copy_file(self, source: Path, target: Path, *, length: int, size: int) -> int:
        """Make `target` of the first `length` bytes of `source` and zeros up to `size`; holes stay holes.

        On return the content is durable; the name is durable once its directory was synced. Returns the CRC-32 of all
        `size` bytes. Raises FileExistsError; EIO when the source is shorter than `length`.
        """

    def link_file(self, source: Path, target: Path) -> None:
        """Give the file another name, durable once the directory was synced.

        Raises FileExistsError, and OSError where the file system cannot (EXDEV: another file system, EPERM, EMLINK).
        """

    def is_plain_file(self, path: Path) -> bool:
        """Return whether the path itself is a file: neither a link to one, nor anything else."""

    def is_link(self, path: Path) -> bool:
        """Return whether the path itself is a symbolic link."""

    def is_same_file(self, path: Path, other: Path) -> bool:
        """Return whether both are names of one file; False also when one of them does not exist."""

    def file_size(self, path: Path) -> int: ...

    def checksum(self, path: Path) -> int:
        """Return the CRC-32 of the whole file."""

    def rename(self, source: Path, target: Path) -> None:
        """Move a file or directory within the file system, durably. `target` must not exist."""

    def remove_tree(self, path: Path) -> None:
        """Remove a directory with all it holds. A missing directory is no error; a crash leaves a part."""


class PosixCopyingDisk(PosixDisk):
    """The class implements `CopyingDisk` on POSIX."""

    def copy_file(self, source: Path, target: Path, *, length: int, size: int) -> int:
        with (
            open(source, "rb", buffering=0, opener=_itself) as reading,
            open(target, "xb", buffering=0, opener=_private) as writing,
        ):
            crc = 0
            for at, data in _chunks(reading.fileno(), length, source):
                crc = _crc32(data, crc)
                if data is not _ZEROS and data.count(0) < len(data):
                    _write_all(writing.fileno(), data, at)
            for at in range(length, size, CHUNK):
                crc = _crc32(_ZEROS[: size - at], crc)
            os.ftruncate(writing.fileno(), size)
            os.fsync(writing.fileno())
        return int(crc)

    def link_file(self, source: Path, target: Path) -> None:
        os.link(source, target, follow_symlinks=False)

    def is_plain_file(self, path: Path) -> bool:
        try:
            return stat.S_ISREG(path.lstat().st_mode)
        except FileNotFoundError:
            return False

    def is_link(self, path: Path) -> bool:
        return path.is_symlink()

    def is_same_file(self, path: Path, other: Path) -> bool:
        try:
            return path.samefile(other)
        except FileNotFoundError:
            return False

    def file_size(self, path: Path) -> int:
        return path.stat().st_size

    def checksum(self, path: Path) -> int:
        crc = 0
        with open(path, "rb", buffering=0, opener=_itself) as reading:
            for _, data in _chunks(reading.fileno(), path.stat().st_size, path):
                crc = _crc32(data, crc)
        return int(crc)

    def rename(self, source: Path, target: Path) -> None:
        if target.exists():
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(target))
        source.rename(target)
        self.sync_directory(target.parent)
        self.sync_directory(source.parent)

    def remove_tree(self, path: Path) -> None:
        if path.exists():
            shutil.rmtree(path)


def _itself(path: str, flags: int) -> int:
    """Open the file itself and not what a link leads to: a checked file may have been replaced by a link since."""
    return os.open(path, flags | os.O_NOFOLLOW)


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, FILE_MODE)


def _chunks(number: int, length: int, path: Path) -> Iterator[tuple[int, bytes]]:
    """Yield the first `length` bytes with their positions; a chunk of a hole is `_ZEROS` itself, unread."""
    at = 0
    data_begin = data_end = 0
    while at < length:
        if at >= data_end:
            data_begin, data_end = _next_data(number, at, length)
        if at < data_begin:
            step = min(CHUNK, data_begin - at)
            yield at, _ZEROS if step == CHUNK else bytes(step)
        else:
            data = os.pread(number, min(CHUNK, data_end - at), at)
            if not data:
                raise OSError(errno.EIO, f"the file ends at {at}; {length} bytes were expected", str(path))
            step = len(data)
            yield at, data
        at += step


def _next_data(number: int, at: int, length: int) -> tuple[int, int]:
    """Return begin and end of the next bytes from `at` on that are no hole; both are `length` when there are none."""
    if os.fstat(number).st_size < length:
        return at, length  # reading finds where the file ends
    try:
        begin = os.lseek(number, at, os.SEEK_DATA)
    except OSError as error:
        if error.errno == errno.ENXIO:
            return length, length
        raise
    return min(begin, length), min(os.lseek(number, begin, os.SEEK_HOLE), length)


def _write_all(number: int, data: bytes, at: int) -> None:
    written = 0
    while written < len(data):
        written += os.pwrite(number, data[written:], at + written)
