"""The protocols of this module are the contract of the disk.

`PosixDisk` is the real one; `tests.faults.disk.FaultyDisk` keeps everything in memory, loses what was not synced and
fails where a test says so. `tests/contracts/test_disk.py` runs on both.

All methods raise OSError as the system gives it, with `filename` set; the caller decides what it means.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final, NamedTuple, Protocol

PAGE_BYTES: Final = 4096
"""The smallest part of a file that is read from the device, in bytes."""


class DirectoryEntry(NamedTuple):
    name: str
    size: int
    is_directory: bool
    is_plain: bool = True
    """True for a file or a directory itself: neither a link to one, nor a pipe, a socket or a device."""


class DiskSpace(NamedTuple):
    """The disk space says how full a file system is, as `df` counts: space for root alone is neither used nor
    available.
    """

    used_bytes: int
    available_bytes: int

    @property
    def total_bytes(self) -> int:
        return self.used_bytes + self.available_bytes

    @property
    def used_percent(self) -> int:
        """Return the used share, rounded up: 100 as soon as the last byte is used, never sooner."""
        return -(-100 * self.used_bytes // self.total_bytes)


class DiskLock(Protocol):
    def release(self) -> None:
        """Give the lock up. Repeatable."""


class Descriptor(Protocol):
    """A descriptor stays open as long as something refers to it."""

    def fileno(self) -> int: ...


class SegmentFile(Protocol):
    """A segment file is preallocated, has a fixed size and is read through a mapping.

    Mapping and descriptors are released when the last reference to the segment and its views is gone; `close()` only
    drops the segment's own references.
    """

    @property
    def path(self) -> Path: ...

    @property
    def size(self) -> int: ...

    def view(self) -> memoryview:
        """Return a read-only view of the whole file. It stays valid after `close()`, until its last slice is gone."""

    def fetch(self, position: int, size: int) -> None:
        """Bring the pages of a part of the file into memory, so that the view can be read there.

        Raises OSError with EIO when the device does not give them: reading such a page through the view ends the
        process (SIGBUS). Where the system is older than Linux 5.14, nothing is done.
        """

    def write(self, position: int, data: bytes | bytearray | memoryview) -> None:
        """Put bytes into the page cache: they survive the process, not the machine.

        Raises IndexError when they do not fit into the file, TypeError when it was opened read-only.
        """

    def flush(self) -> None:
        """Make every byte written so far durable (fdatasync), whoever wrote it. Releases the GIL.

        May run in parallel with `write`, and with `close`, which does not interrupt a running flush.
        """

    def descriptor(self) -> Descriptor | None:
        """Return a descriptor on which fdatasync does what `flush` does; None if there is none, as for a read-only
        segment.
        """

    def close(self) -> None:
        """Drop mapping and descriptor. Repeatable. Every other method raises ValueError afterwards."""


class SparseFile(Protocol):
    """A sparse file has a fixed size and holes, and is accessed by position, without a mapping: a full disk is an
    error.
    """

    def read(self, position: int, length: int) -> bytes:
        """Return at most `length` bytes, fewer only at the file's end. A hole reads as zeros."""

    def write(self, position: int, data: bytes) -> None:
        """Put bytes into the page cache: they survive the process, not the machine."""

    def flush(self) -> None:
        """Make every byte written so far durable, whoever wrote it; this does not cover the file's name."""

    def close(self) -> None:
        """Release the descriptor. Repeatable. Every other method raises ValueError afterwards."""


class Disk(Protocol):
    def create_segment(self, path: Path, size: int) -> SegmentFile:
        """Make a file of `size` zero bytes with all blocks allocated; durable with its directory entry.

        Blocks are allocated first, because storing into a hole of a full disk through a mapping is SIGBUS, not an
        error. A crash leaves no file, an empty one or a whole one, never another length. Raises FileExistsError; after
        any other error no file is left.
        """

    def open_segment(self, path: Path, *, writable: bool) -> SegmentFile:
        """Map an existing file. If `writable`, its holes are filled with blocks first. An empty file is EINVAL."""

    def open_sparse(self, path: Path, size: int | None = None) -> SparseFile:
        """Open a file for reading and writing; with `size`, a missing file is made of one hole.

        A new file is durable only when it was flushed and its directory synced. A crash before may leave a shorter
        file; opened with `size`, it gets its length.
        """

    def sync_directory(self, path: Path) -> None:
        """Make the names in the directory durable."""

    def sync_file_system(self, directory: Path) -> None:
        """Make everything durable that any process has written so far to the directory's file system, names too.

        Reads after this call see what the device holds, unless somebody writes meanwhile: a process that died may have
        changed files that it had no time to flush.
        """

    def make_directory(self, path: Path) -> None:
        """Make one directory, durable once its parent was synced. An existing directory is no error."""

    def remove_directory(self, path: Path) -> None:
        """Remove an empty directory, durably; a missing directory is no error."""

    def data_end(self, path: Path) -> int:
        """Return a position after which the file holds only zeros, found without reading them.

        It may lie well after the last byte that is not zero (by up to a block, or at the end of the file).
        """

    def drop_cached(self, path: Path) -> None:
        """Write dirty pages out and drop all cached pages of the file. Nothing may have the file mapped.

        After a failed flush the cache shows bytes that never reached the device and counts them as clean, also for the
        next process. Reads after this call see what the device holds.
        """

    def fetch(self, path: Path, begin: int, end: int) -> None:
        """Load the bytes of [begin, end) into the cache. May run in parallel with mappings and releases the GIL.

        Bytes that cannot be read raise OSError here; through a mapping they would be SIGBUS.
        """

    def zero_from(self, path: Path, position: int) -> None:
        """Turn all bytes from `position` to the end into zeros, durably. Size and allocation do not change.

        The file keeps its length at every moment: a crash leaves some of the bytes, never a short file, and mappings of
        it stay valid.
        """

    def free_bytes(self, directory: Path) -> int | None:
        """Return the bytes available for new files on the directory's file system; None when it does
        not tell its size.
        """

    def space(self, directory: Path) -> DiskSpace | None:
        """Return how full the file system of the directory is; None when it does not tell its size."""

    def list_directory(self, path: Path) -> list[DirectoryEntry]:
        """Return the entries sorted by name; empty when the directory does not exist."""

    def exists(self, path: Path) -> bool: ...

    def allocated_bytes(self, path: Path) -> int:
        """Return the bytes of the file's blocks: less than its length if it has holes. 0 for a missing file."""

    def read(self, path: Path) -> bytes: ...

    def read_range(self, path: Path, position: int, size: int) -> bytes:
        """Return these bytes of a file, fewer only at its end. May run in parallel with mappings and
        releases the GIL.
        """

    def read_once(self, path: Path, position: int, size: int) -> bytes:
        """Return these bytes as `read_range` does, for a reader that does not come again.

        What was not in the page cache before is not in it afterwards, so that what others read stays in it.
        """

    def replace_atomically(self, path: Path, data: bytes | memoryview) -> None:
        """Replace the file's content: after a crash it holds the old or the new bytes, nothing else.

        The steps are: temporary file, fsync, rename, fsync of the directory.
        """

    def remove(self, path: Path) -> None:
        """Remove one file, durably; a missing file is no error."""

    def move(self, path: Path, target: Path) -> None:
        """Give a file or a directory another name on the same file system, durably: after a crash it has one of the
        two.

        A directory keeps its content.
        """

    def truncate(self, path: Path, size: int) -> None:
        """Cut the file to `size` bytes. Not durable.

        This is for a file that is about to be removed: nothing may have it mapped (reading a page after the new end is
        SIGBUS), and it must have no other name (`name_count`) under which somebody keeps it whole.
        """

    def name_count(self, path: Path) -> int:
        """Return how many names (hard links) the file has."""

    def is_mapped(self, path: Path) -> bool:
        """Return whether this process has the file mapped anywhere: a segment that is not closed, or a view of one."""

    def make_directories(self, path: Path) -> None:
        """Make the directory and its missing parents, durably. An existing directory is no error."""

    def lock(self, path: Path) -> DiskLock:
        """Take the exclusive lock on byte 0 of the file, making the file if needed.

        It excludes RocketMQ's record lock (docs/formats/store-directory.md), other processes, and a second locker in
        this one. Raises BlockingIOError when it is held.
        """

    def lock_shared(self, path: Path) -> DiskLock:
        """Share the lock of an existing file with other readers of what it guards; opens the file for reading.

        Nothing is written, so it also works on a read-only file system. Raises BlockingIOError when the exclusive lock
        is held, and makes `lock` raise as long as the shared one is held.
        """
