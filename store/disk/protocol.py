"""The contract of the disk.

`PosixDisk` is the real one; `tests.faults.disk.FaultyDisk` keeps everything in memory, forgets what was not
synced and fails where told. `tests/contracts/test_disk.py` runs on both.

All methods raise OSError as the system gives it (with `filename` set); deciding what it means is the caller's.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple, Protocol


class DirectoryEntry(NamedTuple):
    name: str
    size: int
    is_directory: bool


class DiskLock(Protocol):
    def release(self) -> None:
        """Give the lock up. Repeatable."""


class SegmentFile(Protocol):
    """A preallocated file of fixed size, read through a mapping."""

    @property
    def path(self) -> Path: ...

    @property
    def size(self) -> int: ...

    def view(self) -> memoryview:
        """A read-only view of the whole file. Stays valid after `close()`, until its last slice is gone."""

    def write(self, position: int, data: bytes | bytearray | memoryview) -> None:
        """Put bytes into the page cache: they survive the process, not the machine."""

    def prefault(self, position: int, length: int) -> None:
        """Make the pages of the range writable ahead of time; a hint that may do nothing."""

    def flush(self) -> None:
        """Make every byte written so far durable (fdatasync). Releases the GIL. May run beside `write`."""

    def close(self) -> None:
        """Give the mapping and the descriptor back as soon as no view is left. Repeatable."""


class Disk(Protocol):
    def create_segment(self, path: Path, size: int) -> SegmentFile:
        """Make a file of `size` zero bytes with all blocks allocated; durable with its directory entry.

        Allocation first: storing into a hole of a full disk through a mapping is SIGBUS, not an error.
        """

    def open_segment(self, path: Path, *, writable: bool) -> SegmentFile: ...

    def zero_from(self, path: Path, position: int) -> None:
        """Turn all bytes from `position` to the end into zeros, size and allocation kept, durably."""

    def list_directory(self, path: Path) -> list[DirectoryEntry]:
        """Entries sorted by name; empty when the directory does not exist."""

    def exists(self, path: Path) -> bool: ...

    def read(self, path: Path) -> bytes: ...

    def replace_atomically(self, path: Path, data: bytes) -> None:
        """After a crash the file holds the old or the new bytes, nothing else (temporary, fsync, rename, fsync)."""

    def remove(self, path: Path) -> None:
        """Remove one file; a file that is not there is no error."""

    def make_directories(self, path: Path) -> None: ...

    def lock(self, path: Path) -> DiskLock:
        """Take the exclusive POSIX record lock on byte 0 of the file, making the file if needed.

        The same lock as RocketMQ's (formats §1.1 `lock`). Raises BlockingIOError when another process holds it.
        """
