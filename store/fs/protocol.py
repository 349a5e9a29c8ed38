"""The contract of the disk.

`PosixDisk` is the real one; `tests.faults.disk.FaultyDisk` keeps everything in memory, forgets what was not
synced and fails where told. `tests/contracts/test_disk.py` runs on both.

All methods raise OSError as the system gives it, with `filename` set; deciding what it means is the caller's.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple, Protocol


class DirectoryEntry(NamedTuple):
    name: str
    size: int
    is_directory: bool
    is_plain: bool = True
    """A file or a directory itself: neither a link to one, nor a pipe, a socket or a device."""


class DiskSpace(NamedTuple):
    """How full a file system is, as `df` counts: what only root may use is neither used nor available."""

    used_bytes: int
    available_bytes: int

    @property
    def total_bytes(self) -> int:
        return self.used_bytes + self.available_bytes

    @property
    def used_percent(self) -> int:
        """Rounded up: 100 as soon as the last byte is gone, never sooner."""
        return -(-100 * self.used_bytes // self.total_bytes)


class DiskLock(Protocol):
    def release(self) -> None:
        """Give the lock up. Repeatable."""


class Descriptor(Protocol):
    """Open as long as somebody refers to it."""

    def fileno(self) -> int: ...


class SegmentFile(Protocol):
    """A preallocated file of fixed size, read through a mapping.

    Mapping and descriptors are given back when the last reference to the segment and its views is gone;
    `close()` only lets go of the segment's own.
    """

    @property
    def path(self) -> Path: ...

    @property
    def size(self) -> int: ...

    def view(self) -> memoryview:
        """A read-only view of the whole file. Stays valid after `close()`, until its last slice is gone."""

    def write(self, position: int, data: bytes | bytearray | memoryview) -> None:
        """Put bytes into the page cache: they survive the process, not the machine.

        Raises IndexError when they do not fit into the file, TypeError when it was opened read-only.
        """

    def flush(self) -> None:
        """Make every byte written so far durable (fdatasync), whoever wrote it. Releases the GIL.

        May run beside `write`, and beside `close`, which does not cut a running flush short.
        """

    def descriptor(self) -> Descriptor | None:
        """What else an fdatasync may be asked for, in place of `flush`; None: nothing, as for one that is read-only."""

    def close(self) -> None:
        """Let go of mapping and descriptor. Repeatable. Every other method raises ValueError afterwards."""


class SparseFile(Protocol):
    """A file of fixed size with holes, read and written by position: no mapping, so a full disk is an error."""

    def read(self, position: int, length: int) -> bytes:
        """At most `length` bytes, fewer only at the file's end. A hole reads as zeros."""

    def write(self, position: int, data: bytes) -> None:
        """Put bytes into the page cache: they survive the process, not the machine."""

    def flush(self) -> None:
        """Make every byte written so far durable, whoever wrote it; the file's name is not meant."""

    def close(self) -> None:
        """Give the descriptor back. Repeatable. Every other method raises ValueError afterwards."""


class Disk(Protocol):
    def create_segment(self, path: Path, size: int) -> SegmentFile:
        """Make a file of `size` zero bytes with all blocks allocated; durable with its directory entry.

        Allocation first: storing into a hole of a full disk through a mapping is SIGBUS, not an error. A
        crash leaves no file, an empty one or a whole one, never another length. Raises FileExistsError;
        after any other error no file is left.
        """

    def open_segment(self, path: Path, *, writable: bool) -> SegmentFile:
        """Map an existing file. Writable fills its holes with blocks first. An empty file is EINVAL."""

    def open_sparse(self, path: Path, size: int | None = None) -> SparseFile:
        """Open for reading and writing; with `size`, make a file that is missing, of one hole.

        A file made is durable only when it was flushed and its directory synced. A crash before may leave a shorter
        one; with `size` it gets its length.
        """

    def sync_directory(self, path: Path) -> None:
        """Make the names in the directory durable."""

    def sync_file_system(self, directory: Path) -> None:
        """Make durable what anybody has written so far, names too, on the file system of the directory.

        What is read after this call is what the device holds, as far as nobody writes meanwhile: a process that died
        may have changed files that it had no time to flush.
        """

    def make_directory(self, path: Path) -> None:
        """Make one directory, durable when its parent was synced. One that exists is no error."""

    def remove_directory(self, path: Path) -> None:
        """Remove an empty directory, durably; one that is not there is no error."""

    def data_end(self, path: Path) -> int:
        """A position behind which the file holds only zeros, found without reading them.

        It may lie well behind the last byte that is not zero (a block, or all of the file).
        """

    def drop_cached(self, path: Path) -> None:
        """Write dirty pages out and forget all that is cached of the file. Nothing may have it mapped.

        After a failed flush the cache shows bytes that never reached the device and counts them as clean, to the
        next process too. What is read after this call is what the device holds.
        """

    def fetch(self, path: Path, begin: int, end: int) -> None:
        """Bring the bytes of [begin, end) into the cache. May run beside mappings and releases the GIL.

        What cannot be read is an OSError here; through a mapping it would be SIGBUS.
        """

    def zero_from(self, path: Path, position: int) -> None:
        """Turn all bytes from `position` to the end into zeros, size and allocation kept, durably.

        The file keeps its length at every moment: a crash leaves some of the bytes, never a short file, and
        mappings of it stay valid.
        """

    def free_bytes(self, directory: Path) -> int | None:
        """Room for new files on the file system of the directory; None when it does not tell its size."""

    def space(self, directory: Path) -> DiskSpace | None:
        """How full the file system of the directory is; None when it does not tell its size."""

    def list_directory(self, path: Path) -> list[DirectoryEntry]:
        """Entries sorted by name; empty when the directory does not exist."""

    def exists(self, path: Path) -> bool: ...

    def allocated_bytes(self, path: Path) -> int:
        """What the blocks of the file take: less than its length where it has holes. 0 for one that is not there."""

    def read(self, path: Path) -> bytes: ...

    def read_range(self, path: Path, position: int, size: int) -> bytes:
        """These bytes of a file, fewer only at its end. May run beside mappings and releases the GIL."""

    def replace_atomically(self, path: Path, data: bytes | memoryview) -> None:
        """After a crash the file holds the old or the new bytes, nothing else.

        Temporary file, fsync, rename, fsync of the directory.
        """

    def remove(self, path: Path) -> None:
        """Remove one file, durably; a file that is not there is no error."""

    def move(self, path: Path, target: Path) -> None:
        """Give a file or a directory another name on the same file system, durably: a crash leaves one of the two.

        A directory takes with it all that it holds.
        """

    def truncate(self, path: Path, size: int) -> None:
        """Cut the file to `size` bytes. Not durable.

        For a file that is about to be removed: nothing may have it mapped (reading a page behind the new end is
        SIGBUS), and it must have no other name (`name_count`), under which somebody keeps it whole.
        """

    def name_count(self, path: Path) -> int:
        """How many names (hard links) the file has."""

    def is_mapped(self, path: Path) -> bool:
        """Whether this process has the file mapped anywhere: a segment that is not closed, or a view of one."""

    def make_directories(self, path: Path) -> None:
        """Make the directory and its missing parents, durably. One that exists is no error."""

    def lock(self, path: Path) -> DiskLock:
        """Take the exclusive lock on byte 0 of the file, making the file if needed.

        It excludes RocketMQ's record lock (docs/formats/store-directory.md), other processes, and a second
        taker in this one. Raises BlockingIOError when it is held.
        """

    def lock_shared(self, path: Path) -> DiskLock:
        """Share the lock of an existing file with others who only read what it guards; opens it for reading.

        Nothing is written, so it also works on a read-only file system. Raises BlockingIOError when `lock`
        holds it, and makes `lock` raise as long as it is held.
        """
