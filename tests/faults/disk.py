"""A disk in memory that forgets what was not synced and fails where it is told to.

Every file has two contents: what the page cache shows and what the platter holds. A flush copies the dirty
pages from one to the other. `power_loss` decides for each dirty page by itself whether it got there: the kernel
writes mapped pages back whenever and in whatever order it likes.
"""

from __future__ import annotations

import errno
import os
import random
from collections import Counter, defaultdict
from pathlib import Path
from typing import Literal
from weakref import WeakSet

from quarry_mq.store.fs.protocol import DirectoryEntry, DiskSpace

PAGE = 4096
SECTOR = 512
"""Bytes that a device writes whole; a page can end up with sectors of two ages."""

Operation = Literal["create", "write", "flush", "zero", "replace", "remove", "sync", "move", "truncate"]


class PowerCut(BaseException):
    """The machine stopped here. No operation works until the disk is looked at after the loss.

    No `Exception`: nothing handles it.
    """


class FaultyFile:
    """Contents of one file: `live` as programs see it, `durable` as the platter holds it."""

    def __init__(self, content: bytes) -> None:
        self.live = bytearray(content)
        self.durable = bytearray(content)
        self.dirty: set[int] = set()
        self.openings: WeakSet[FaultySegment] = WeakSet()

    def without_mappings(self) -> FaultyFile:
        """Return the same file as the next process finds it."""
        found = FaultyFile(bytes(self.live))
        found.durable = bytearray(self.durable)
        found.dirty = set(self.dirty)
        return found

    @property
    def is_mapped(self) -> bool:
        if any(not segment.is_closed for segment in self.openings):
            return True
        try:
            # a bytearray of which there are views refuses to change its size
            self.live.append(0)
        except BufferError:
            return True
        self.live.pop()
        return False

    def cut(self, size: int) -> None:
        """Cut the file as ext4 does: the new length is in the next transaction, and un-synced pages may be missing."""
        del self.live[size:]
        del self.durable[size:]
        self.dirty = {page for page in self.dirty if page * PAGE < size}

    def change(self, position: int, data: bytes | bytearray | memoryview) -> None:
        self.live[position : position + len(data)] = data
        self.dirty.update(range(position // PAGE, -(-(position + len(data)) // PAGE)))

    def settle(self, pages: set[int]) -> None:
        """The pages reach the platter."""
        for page in pages:
            here = slice(page * PAGE, (page + 1) * PAGE)
            self.durable[here] = self.live[here]

    def after_power_loss(self, chance: random.Random) -> bytes:
        survivor = bytearray(self.durable)
        for page in sorted(self.dirty):
            fate = chance.choice(("lost", "kept", "torn"))
            for start in range(page * PAGE, min((page + 1) * PAGE, len(survivor)), SECTOR):
                if fate == "kept" or (fate == "torn" and chance.random() < 0.5):
                    survivor[start : start + SECTOR] = self.live[start : start + SECTOR]
        return bytes(survivor)


class FaultyLock:
    def __init__(self, locked: Counter[Path], path: Path) -> None:
        self._locked = locked
        self._path = path
        self._pending = True

    def release(self) -> None:
        if self._pending:
            self._locked[self._path] -= 1
            self._pending = False


class FaultySegment:
    def __init__(self, disk: FaultyDisk, path: Path, file: FaultyFile, *, writable: bool) -> None:
        self._disk = disk
        self._path = path
        self._file: FaultyFile | None = file
        self._size = len(file.live)
        self._writable = writable
        file.openings.add(self)

    @property
    def path(self) -> Path:
        return self._path

    @property
    def size(self) -> int:
        return self._size

    def view(self) -> memoryview:
        return memoryview(self._open().live).toreadonly()

    def fetch(self, position: int, size: int) -> None:
        assert 0 <= position <= position + size <= len(self._open().live), "in a process this would be ValueError"

    def write(self, position: int, data: bytes | bytearray | memoryview) -> None:
        file = self._open()
        if not self._writable:
            raise TypeError("the segment was opened read-only")
        if not 0 <= position <= position + len(data) <= self._size:
            raise IndexError("the bytes do not fit into the segment")
        if self._disk.starts("write", self._path):
            file.change(position, data[: len(data) // 2])
            raise PowerCut
        file.change(position, data)

    def flush(self) -> None:
        file = self._open()
        try:
            cut = self._disk.starts("flush", self._path)
        except OSError:
            # As Linux does: the pages count as clean from now on although they never reached the platter.
            # The next flush has nothing to write and says that all is well.
            file.dirty.clear()
            raise
        if cut:
            half = set(sorted(file.dirty)[::2])
            file.settle(half)
            file.dirty -= half
            raise PowerCut
        file.settle(file.dirty)
        file.dirty.clear()

    def descriptor(self) -> None:
        return None

    def close(self) -> None:
        self._file = None

    @property
    def is_closed(self) -> bool:
        return self._file is None

    def _open(self) -> FaultyFile:
        if self._file is None:
            raise ValueError(f"segment {self._path} is closed")
        return self._file


class FaultySparseFile:
    def __init__(self, disk: FaultyDisk, path: Path, file: FaultyFile) -> None:
        self._disk = disk
        self._path = path
        self._file: FaultyFile | None = file

    def read(self, position: int, length: int) -> bytes:
        return bytes(self._open().live[position : position + length])

    def write(self, position: int, data: bytes) -> None:
        file = self._open()
        if self._disk.starts("write", self._path):
            file.change(position, data[: len(data) // 2])
            raise PowerCut
        file.change(position, data)

    def flush(self) -> None:
        FaultySegment(self._disk, self._path, self._open(), writable=True).flush()

    def close(self) -> None:
        self._file = None

    def _open(self) -> FaultyFile:
        if self._file is None:
            raise ValueError(f"file {self._path} is closed")
        return self._file


class FaultyDisk:
    """Implements `store.fs.protocol.Disk`.

    `crash_at` numbers the operation, from 1, at which the power goes: it is done by half. `capacity` limits the
    bytes of all files together. `operations` counts what has run so far, `log` names it.
    """

    def __init__(self, *, crash_at: int | None = None, capacity: int | None = None) -> None:
        self.files: dict[Path, FaultyFile] = {}
        self.directories: set[Path] = {Path("/")}
        self.crash_at = crash_at
        self.capacity = capacity
        self.operations = 0
        self.log: list[tuple[Operation, str]] = []
        self._faults: dict[Operation, dict[int, int]] = defaultdict(dict)
        self._counts: dict[Operation, int] = defaultdict(int)
        self._locked: Counter[Path] = Counter()
        self._locked_shared: Counter[Path] = Counter()
        self._powered = True
        self._unsynced: set[Path] = set()
        """Names that a power cut may take: made, but neither they nor their directory synced."""

    def fail(self, operation: Operation, *, nth: int = 1, error: int = errno.EIO) -> None:
        """The n-th operation of this kind from now on raises an OSError with this number."""
        self._faults[operation][self._counts[operation] + nth] = error

    def power_loss(self, seed: int) -> FaultyDisk:
        """The disk as the next start finds it. `seed` decides the fate of each un-synced page."""
        chance = random.Random(seed)
        survivor = FaultyDisk(capacity=self.capacity)
        survivor.directories = set(self.directories)
        for path in sorted(self.files):
            survivor.files[path] = FaultyFile(self.files[path].after_power_loss(chance))
        for path in sorted(self._unsynced):
            if chance.random() < 0.5:
                survivor.drop(path)
        self._powered = False
        return survivor

    def drop(self, lost: Path) -> None:
        """The name is gone, with all below it."""
        for path in [each for each in self.files if each == lost or lost in each.parents]:
            del self.files[path]
        self.directories = {each for each in self.directories if each != lost and lost not in each.parents}

    def process_death(self) -> FaultyDisk:
        """The disk after the process alone died: nothing written is lost, nothing more is durable."""
        survivor = FaultyDisk(capacity=self.capacity)
        survivor.directories = set(self.directories)
        survivor.files = {path: file.without_mappings() for path, file in self.files.items()}
        self._powered = False
        return survivor

    def starts(self, operation: Operation, path: Path) -> bool:
        """Count the operation; raise what was ordered for it. True: the power goes in the middle of it."""
        self._check_power()
        self.operations += 1
        self._counts[operation] += 1
        self.log.append((operation, path.name))
        error = self._faults[operation].pop(self._counts[operation], None)
        if error is not None:
            raise OSError(error, os.strerror(error), str(path))
        if self.operations == self.crash_at:
            self._powered = False
            return True
        return False

    def create_segment(self, path: Path, size: int) -> FaultySegment:
        self._check_power()
        if path in self.files:
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(path))
        self._check_parent(path)
        cut = self.starts("create", path)
        free_bytes = self._free_bytes()
        if free_bytes is not None and size > free_bytes:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
        self.files[path] = FaultyFile(b"" if cut else bytes(size))
        if cut:
            raise PowerCut
        return FaultySegment(self, path, self.files[path], writable=True)

    def open_segment(self, path: Path, *, writable: bool) -> FaultySegment:
        file = self._file(path)
        if not file.live:
            raise OSError(errno.EINVAL, "an empty file cannot be mapped", str(path))
        return FaultySegment(self, path, file, writable=writable)

    def open_sparse(self, path: Path, size: int | None = None) -> FaultySparseFile:
        self._check_power()
        self._check_parent(path)
        known = self.files.get(path)
        if size is not None and (known is None or len(known.live) < size):
            cut = self.starts("create", path)
            content = b"" if known is None else bytes(known.live)
            self.files[path] = FaultyFile(content if cut else content.ljust(size, b"\0"))
            if cut:
                raise PowerCut
            self._unsynced.add(path)
        return FaultySparseFile(self, path, self._file(path))

    def sync_directory(self, path: Path) -> None:
        self._check_power()
        if path not in self.directories:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))
        if self.starts("sync", path):
            raise PowerCut
        self._unsynced -= {each for each in self._unsynced if each.parent == path}

    def sync_file_system(self, directory: Path) -> None:
        self._check_power()
        if directory not in self.directories:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(directory))
        if self.starts("sync", directory):
            raise PowerCut
        for file in self.files.values():
            file.settle(file.dirty)
            file.dirty.clear()
        self._unsynced.clear()

    def make_directory(self, path: Path) -> None:
        self._check_power()
        self._check_parent(path)
        if path not in self.directories:
            self.directories.add(path)
            self._unsynced.add(path)

    def remove_directory(self, path: Path) -> None:
        self._check_power()
        if path not in self.directories:
            return
        if any(each.parent == path for each in (*self.files, *self.directories)):
            raise OSError(errno.ENOTEMPTY, os.strerror(errno.ENOTEMPTY), str(path))
        if self.starts("remove", path):
            raise PowerCut
        self.directories.discard(path)

    def data_end(self, path: Path) -> int:
        live = self._file(path).live
        return min(len(live), -(-len(live.rstrip(b"\0")) // PAGE) * PAGE)

    def drop_cached(self, path: Path) -> None:
        file = self._file(path)
        FaultySegment(self, path, file, writable=False).flush()
        file.live[:] = file.durable

    def fetch(self, path: Path, begin: int, end: int) -> None:
        self._file(path)

    def read_range(self, path: Path, position: int, size: int) -> bytes:
        return bytes(self._file(path).live[position : position + size])

    def read_once(self, path: Path, position: int, size: int) -> bytes:
        return self.read_range(path, position, size)

    def zero_from(self, path: Path, position: int) -> None:
        file = self._file(path)
        cut = self.starts("zero", path)
        length = len(file.live) - position
        file.change(position, bytes(length // 2 if cut else length))
        if cut:
            raise PowerCut
        file.settle(file.dirty)
        file.dirty.clear()

    def free_bytes(self, directory: Path) -> int | None:
        self._check_power()
        if directory not in self.directories:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(directory))
        return self._free_bytes()

    def _free_bytes(self) -> int | None:
        if self.capacity is None:
            return None
        return max(0, self.capacity - sum(len(file.live) for file in self.files.values()))

    def space(self, directory: Path) -> DiskSpace | None:
        free_bytes = self.free_bytes(directory)
        if self.capacity is None or free_bytes is None:
            return None
        return DiskSpace(self.capacity - free_bytes, free_bytes)

    def list_directory(self, path: Path) -> list[DirectoryEntry]:
        self._check_power()
        found = [
            DirectoryEntry(name.name, len(file.live), is_directory=False)
            for name, file in self.files.items()
            if name.parent == path
        ]
        found += [
            DirectoryEntry(name.name, PAGE, is_directory=True)
            for name in self.directories
            if name.parent == path and name != path
        ]
        return sorted(found)

    def exists(self, path: Path) -> bool:
        self._check_power()
        return path in self.files or path in self.directories

    def allocated_bytes(self, path: Path) -> int:
        live = bytes(self.files[path].live) if path in self.files else b""
        return PAGE * sum(any(live[begin : begin + PAGE]) for begin in range(0, len(live), PAGE))

    def read(self, path: Path) -> bytes:
        return bytes(self._file(path).live)

    def replace_atomically(self, path: Path, data: bytes | memoryview) -> None:
        self._check_power()
        self._check_parent(path)
        if self.starts("replace", path):
            raise PowerCut
        self.files[path] = FaultyFile(bytes(data))

    def remove(self, path: Path) -> None:
        self._check_power()
        if path in self.files:
            if self.starts("remove", path):
                raise PowerCut
            del self.files[path]

    def move(self, path: Path, target: Path) -> None:
        if path not in self.directories:
            self._file(path)
        self._check_parent(target)
        cut = self.starts("move", path)
        if not cut or self.operations % 2:
            # a rename that was cut short has happened or has not
            self.files = {_moved(each, path, target): file for each, file in self.files.items() if each != target}
            self.directories = {_moved(each, path, target) for each in self.directories}
            self._unsynced = {_moved(each, path, target) for each in self._unsynced}
        if cut:
            raise PowerCut

    def truncate(self, path: Path, size: int) -> None:
        file = self._file(path)
        assert not file.is_mapped, f"{path} is mapped: in a process this would be SIGBUS"
        if self.starts("truncate", path):
            file.cut((len(file.live) + size) // 2)
            raise PowerCut
        file.cut(size)

    def name_count(self, path: Path) -> int:
        self._file(path)
        return 1

    def is_mapped(self, path: Path) -> bool:
        return self._file(path).is_mapped

    def make_directories(self, path: Path) -> None:
        self._check_power()
        self.directories.update((path, *path.parents))

    def lock(self, path: Path) -> FaultyLock:
        self._check_power()
        self._check_parent(path)
        if self._locked[path] or self._locked_shared[path]:
            raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN), str(path))
        self._locked[path] += 1
        if path not in self.files or not self.files[path].live:
            self.files[path] = FaultyFile(b"lock")
        return FaultyLock(self._locked, path)

    def lock_shared(self, path: Path) -> FaultyLock:
        self._file(path)
        if self._locked[path]:
            raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN), str(path))
        self._locked_shared[path] += 1
        return FaultyLock(self._locked_shared, path)

    def _file(self, path: Path) -> FaultyFile:
        self._check_power()
        if path not in self.files:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))
        return self.files[path]

    def _check_parent(self, path: Path) -> None:
        if path.parent not in self.directories:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))

    def _check_power(self) -> None:
        if not self._powered:
            raise PowerCut


def _moved(each: Path, path: Path, target: Path) -> Path:
    """Return the name of `each` after `path`, a file or a directory, was moved to `target`."""
    return target / each.relative_to(path) if each == path or path in each.parents else each
