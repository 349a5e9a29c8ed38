"""The disk of a POSIX system: this is the only module that opens, maps, syncs and locks files.

File descriptors are reserved for the store.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import mmap
import os
import stat
import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final, TypeVar

from quarry_mq.store.fs.protocol import DirectoryEntry, DiskSpace

RESERVE_SIZE: Final = 8

STARVED: Final = {errno.EMFILE, errno.ENFILE}
"""Errors of a call that found no free file descriptor."""

_Opened = TypeVar("_Opened")


class Reserve:
    """The reserve holds descriptors for the moment when the process, or the machine, has no others.

    Connections may use up the last one. A file that the store then opens, say for a checkpoint, uses one of the
    reserved descriptors.
    """

    def __init__(self) -> None:
        self._size = 0
        self._spares: list[int] = []

    def hold(self, size: int) -> None:
        """Hold this number of descriptors from now on. Raises OSError."""
        self._size = size
        while len(self._spares) < size:
            self._spares.append(_spare())

    def release(self) -> None:
        """Release all reserved descriptors."""
        self.hold(0)
        while self._spares:
            os.close(self._spares.pop())

    def opened(self, open_it: Callable[[], _Opened]) -> _Opened:
        """Return what `open_it` returns; it may be called more than once. Raises its OSError."""
        while True:
            try:
                opened = open_it()
            except OSError as error:
                if error.errno not in STARVED:
                    raise
                try:
                    os.close(self._spares.pop())
                except IndexError:
                    raise error from None
            else:
                self._fill()
                return opened

    def _fill(self) -> None:
        if len(self._spares) < self._size:
            with suppress(OSError):
                self._spares.append(_spare())


def _spare() -> int:
    return os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)


RESERVE: Final = Reserve()


def hold_descriptors() -> None:
    """Reserve some descriptors, so that the store can open files when all others are in use."""
    RESERVE.hold(RESERVE_SIZE)


FILE_MODE: Final = 0o600
DIRECTORY_MODE: Final = 0o700
OTHERS: Final = 0o077
"""The permission bits that new files and folders deny to all but the broker's user; existing ones keep their mode."""


def keep_from_others() -> None:
    """Restrict whatever this process creates from now on to its own user: databases, the audit, files of libraries."""
    os.umask(os.umask(OTHERS) | OTHERS)


LOCK_CONTENT: Final = b"lock"
"""The bytes that RocketMQ writes into its lock file."""

ZEROS: Final = bytes(1024 * 1024)
STAT_BLOCK_BYTES: Final = 512  # the unit of st_blocks, whatever the file system uses
FETCH_BYTES: Final = 1024 * 1024
READ_ONCE_BYTES: Final = 128 * 1024
"""`read_once` reads aligned parts of this size: of one that is cached in part, all pages may leave the cache."""
CACHESTAT_NUMBER: Final = 451
"""The number of the system call `cachestat`, on every architecture. The C library has no name for it yet."""
CACHESTAT_RANGE: Final = struct.Struct("QQ")
CACHESTAT: Final = struct.Struct("5Q")
"""Pages: cached, dirty, written back, evicted, recently evicted."""
MADV_POPULATE_READ: Final = 22
"""The advice of Linux 5.14 to read pages now; Python 3.11 has no name for it."""
UNREADABLE_PAGE: Final = {errno.EFAULT, 133}
"""Errors of that advice for pages that the device does not give, or whose memory is damaged (EHWPOISON, which has no
name in Python).
"""
FLOCK: Final = struct.Struct("hhqqi4x")
"""The struct is `struct flock` of 64-bit Linux: type, whence, start, length, pid."""


MAPPINGS: Final = Path("/proc/self/maps")

_LIBRARY: Final = ctypes.CDLL(None, use_errno=True)
"""The handle of the C library. Its functions are called without the GIL."""


class _Descriptor:
    """A descriptor closes when its last user releases it.

    A flush in one thread keeps the number valid while another thread closes the segment; if it were closed earlier, the
    number could already name another file.
    """

    __slots__ = ("_number",)

    def __init__(self, path: Path, flags: int) -> None:
        self._number: int | None = None
        self._number = RESERVE.opened(lambda: os.open(path, flags | os.O_CLOEXEC, FILE_MODE))

    def fileno(self) -> int:
        if self._number is None:
            raise ValueError("the descriptor was never opened")
        return self._number

    def __del__(self) -> None:
        if self._number is not None:
            os.close(self._number)


def _read_part_once(number: int, part: memoryview, position: int) -> int:
    """Fill the buffer from the cache, or else from the device, and drop what came from there. Returns 0 at the end."""
    begin = position - position % mmap.PAGESIZE  # pages that the range covers in part would stay
    end = min(position + len(part), os.fstat(number).st_size)
    pages = -(-(end - begin) // mmap.PAGESIZE)
    known = _cached_pages(number, begin, end - begin)
    if known is None:
        # a read that must not wait starts the device; if that is done before the read looks, the part stays
        try:
            return os.preadv(number, [part], position, os.RWF_NOWAIT)
        except OSError as error:
            if error.errno not in (errno.EAGAIN, errno.EOPNOTSUPP):
                raise
    count = os.preadv(number, [part], position)
    if known is None or known < pages:
        os.posix_fadvise(number, begin, pages * mmap.PAGESIZE, os.POSIX_FADV_DONTNEED)
    return count


def _cached_pages(number: int, begin: int, size: int) -> int | None:
    """Return how many pages of a part of a file are in the page cache; None on a system before Linux 6.5."""
    if size <= 0:
        return 0
    asked, told = CACHESTAT_RANGE.pack(begin, size), ctypes.create_string_buffer(CACHESTAT.size)
    if _LIBRARY.syscall(CACHESTAT_NUMBER, number, asked, told, 0) != 0:
        return None
    pages: int = CACHESTAT.unpack(told.raw)[0]
    return pages


@contextmanager
def _naming(path: Path) -> Iterator[None]:
    """Add the file's name to errors of calls that know only a descriptor."""
    try:
        yield
    except OSError as error:
        if error.filename is None:
            error.filename = os.fspath(path)
        raise


def _sync_directory(path: Path) -> None:
    """Sync a directory: a new, renamed or removed name is durable only when its directory is."""
    with _naming(path):
        os.fsync(_Descriptor(path, os.O_RDONLY | os.O_DIRECTORY))


def _sync_file_system(descriptor: _Descriptor) -> None:
    """Call `syncfs`, which the `os` module lacks. Unlike `os.sync` it reports writes that failed (Linux 5.8)."""
    if _LIBRARY.syncfs(descriptor.fileno()) != 0:
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error))


def _write_all(number: int, data: bytes | memoryview) -> None:
    rest = memoryview(data).cast("B")
    while rest:
        rest = rest[os.write(number, rest) :]


def _write_at(number: int, position: int, data: bytes | bytearray | memoryview) -> None:
    written = os.pwrite(number, data, position)
    while written < len(data):  # a disk that fills up first accepts a part
        written += os.pwrite(number, memoryview(data)[written:], position + written)


def _write_zeros(number: int, begin: int, end: int) -> None:
    while begin < end:
        zeros = ZEROS[: end - begin]
        # Comparing first costs a tenth of writing, and a segment that was warmed up is zero throughout.
        if os.pread(number, len(zeros), begin) == zeros:
            begin += len(zeros)
        else:
            begin += os.pwrite(number, zeros, begin)


def _populate(mapping: mmap.mmap, position: int, size: int) -> None:
    """Read the pages of a part of a mapping into memory. Raises OSError."""
    if size > 0:
        begin = position - position % mmap.PAGESIZE
        mapping.madvise(MADV_POPULATE_READ, begin, position + size - begin)


def _data_extents(number: int, start: int, end: int) -> list[tuple[int, int]]:
    """Return the ranges of the file that may hold other bytes than zero, ascending; holes are left out.

    This is a list and no generator, because bytes that are read from a hole count as data from then on, and the kernel
    reads ahead.
    """
    extents = []
    position = start
    while position < end:
        try:
            begin = os.lseek(number, position, os.SEEK_DATA)
        except OSError as error:
            if error.errno == errno.ENXIO:
                break
            raise
        position = os.lseek(number, begin, os.SEEK_HOLE)
        extents.append((begin, min(position, end)))
    return extents


def _maps(line: str, inode: int, name: str) -> bool:
    """Return whether the line of /proc/self/maps (range, access, offset, device, inode, path) is about the file.

    Inode or path has to match: on stacked file systems one of them may be another file's. For that reason the device is
    not compared; at worst a file counts as mapped because another file with the same inode number is.
    """
    fields = line.rstrip("\n").split(maxsplit=5)
    return len(fields) == 6 and (fields[4] == str(inode) or fields[5] == name)


def _take_lock(descriptor: _Descriptor, kind: int) -> None:
    """Lock byte 0 without waiting, exclusively (F_WRLCK) or shared (F_RDLCK).

    An open-file-description lock conflicts with the classic record lock that RocketMQ takes, but belongs to this
    descriptor: a second locker in this process is refused too, and closing another descriptor of the file (a backup
    that reads it) does not release it.
    """
    fcntl.fcntl(descriptor.fileno(), fcntl.F_OFD_SETLK, FLOCK.pack(kind, os.SEEK_SET, 0, 1, 0))


class PosixSegment:
    """A segment is one file, mapped for reading. A read-only one costs one descriptor (the mapping's), a writable one
    two.

    Nothing is stored through the mapping: after each flush the kernel would have to catch the first store into every
    page, and each flush would have to revoke the right to store from all cores (ADR 44).
    """

    __slots__ = ("_descriptor", "_map", "_path", "_size")

    def __init__(self, path: Path, descriptor: _Descriptor, size: int, *, writable: bool) -> None:
        self._path = path
        self._size = size
        self._map: mmap.mmap | None = RESERVE.opened(
            lambda: mmap.mmap(descriptor.fileno(), size, access=mmap.ACCESS_READ)
        )
        self._descriptor: _Descriptor | None = descriptor if writable else None

    @property
    def path(self) -> Path:
        return self._path

    @property
    def size(self) -> int:
        return self._size

    def view(self) -> memoryview:
        return memoryview(self._mapping()).toreadonly()

    def fetch(self, position: int, size: int) -> None:
        try:
            _populate(self._mapping(), position, size)
        except OSError as error:
            if error.errno in UNREADABLE_PAGE:
                raise OSError(errno.EIO, os.strerror(errno.EIO), os.fspath(self._path)) from error
            if error.errno != errno.EINVAL:  # EINVAL: the kernel does not know this advice
                raise

    def write(self, position: int, data: bytes | bytearray | memoryview) -> None:
        mapping, descriptor = self._map, self._descriptor
        if mapping is None:
            raise self._closed()
        if descriptor is None:
            raise TypeError(f"segment {self._path} was opened read-only")
        if not 0 <= position <= self._size - len(data):
            raise IndexError(f"{len(data)} bytes at {position} do not fit into segment {self._path}")
        with _naming(self._path):
            _write_at(descriptor.fileno(), position, data)

    def flush(self) -> None:
        descriptor = self._descriptor
        # fdatasync writes all dirty pages of the file, also those dirtied through mappings. Unlike mmap.flush it lets
        # other threads run meanwhile.
        with _naming(self._path):
            if descriptor is None:
                self._mapping()
                descriptor = _Descriptor(self._path, os.O_RDONLY)
            os.fdatasync(descriptor)

    def descriptor(self) -> _Descriptor | None:
        return self._descriptor

    def close(self) -> None:
        # mmap.close() raises BufferError while views exist; without references it unmaps by itself.
        self._map = None
        self._descriptor = None

    def _mapping(self) -> mmap.mmap:
        if self._map is None:
            raise self._closed()
        return self._map

    def _closed(self) -> ValueError:
        return ValueError(f"segment {self._path} is closed")


class PosixSparseFile:
    """A sparse file is one open file. It costs one descriptor."""

    __slots__ = ("_descriptor", "_path")

    def __init__(self, path: Path, descriptor: _Descriptor) -> None:
        self._path = path
        self._descriptor: _Descriptor | None = descriptor

    def read(self, position: int, length: int) -> bytes:
        with _naming(self._path):
            return os.pread(self._number(), length, position)

    def write(self, position: int, data: bytes) -> None:
        with _naming(self._path):
            _write_at(self._number(), position, data)

    def flush(self) -> None:
        with _naming(self._path):
            os.fdatasync(self._number())

    def close(self) -> None:
        self._descriptor = None

    def _number(self) -> int:
        if self._descriptor is None:
            raise ValueError(f"file {self._path} is closed")
        return self._descriptor.fileno()


class PosixLock:
    """The lock is held as long as its descriptor is open."""

    def __init__(self, descriptor: _Descriptor) -> None:
        self._descriptor: _Descriptor | None = descriptor

    def release(self) -> None:
        self._descriptor = None


class PosixDisk:
    """The disk gives access to the files of the machine this process runs on."""

    def create_segment(self, path: Path, size: int) -> PosixSegment:
        free_bytes = self.free_bytes(path.parent)
        if free_bytes is not None and free_bytes < size:
            # A failed allocation takes the last block for a moment, and databases need some blocks at any time.
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), os.fspath(path))
        with _naming(path):
            descriptor = _Descriptor(path, os.O_RDWR | os.O_CREAT | os.O_EXCL)
            number = descriptor.fileno()
            try:
                # Set the length first and in one step, allocate the blocks after it: allocation grows a file piece by
                # piece, and a crash would leave a length that start-up has to refuse.
                os.ftruncate(number, size)
                os.posix_fallocate(number, 0, size)
                os.fsync(number)
                segment = PosixSegment(path, descriptor, size, writable=True)
                _sync_directory(path.parent)
            except OSError:
                with suppress(OSError):
                    path.unlink()
                raise
        return segment

    def open_segment(self, path: Path, *, writable: bool) -> PosixSegment:
        with _naming(path):
            descriptor = _Descriptor(path, os.O_RDWR if writable else os.O_RDONLY)
            size = os.fstat(descriptor.fileno()).st_size
            if size == 0:
                raise OSError(errno.EINVAL, "an empty file cannot be mapped", os.fspath(path))
            if writable:
                # RocketMQ leaves the unwritten rest of a segment as a hole. This call costs 20 µs where there is none.
                os.posix_fallocate(descriptor.fileno(), 0, size)
            return PosixSegment(path, descriptor, size, writable=writable)

    def open_sparse(self, path: Path, size: int | None = None) -> PosixSparseFile:
        with _naming(path):
            descriptor = _Descriptor(path, os.O_RDWR if size is None else os.O_RDWR | os.O_CREAT)
            if size is not None and os.fstat(descriptor.fileno()).st_size < size:
                os.ftruncate(descriptor.fileno(), size)
            return PosixSparseFile(path, descriptor)

    def sync_directory(self, path: Path) -> None:
        _sync_directory(path)

    def sync_file_system(self, directory: Path) -> None:
        with _naming(directory):
            _sync_file_system(_Descriptor(directory, os.O_RDONLY | os.O_DIRECTORY))

    def make_directory(self, path: Path) -> None:
        path.mkdir(DIRECTORY_MODE, exist_ok=True)

    def remove_directory(self, path: Path) -> None:
        with suppress(FileNotFoundError):
            path.rmdir()
            _sync_directory(path.parent)

    def data_end(self, path: Path) -> int:
        with _naming(path):
            descriptor = _Descriptor(path, os.O_RDONLY)
            size = os.fstat(descriptor.fileno()).st_size
            return max((end for _, end in _data_extents(descriptor.fileno(), 0, size)), default=0)

    def drop_cached(self, path: Path) -> None:
        with _naming(path):
            descriptor = _Descriptor(path, os.O_RDONLY)
            os.fdatasync(descriptor)
            os.posix_fadvise(descriptor.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)

    def fetch(self, path: Path, begin: int, end: int) -> None:
        with _naming(path):
            descriptor = _Descriptor(path, os.O_RDONLY)
            number = descriptor.fileno()
            if os.fstat(number).st_size < end:
                raise OSError(errno.EIO, f"the file ends before position {end}", os.fspath(path))
            buffer = bytearray(FETCH_BYTES)
            for data_begin, data_end in _data_extents(number, begin, end):
                for at in range(data_begin, data_end, FETCH_BYTES):
                    os.preadv(number, [memoryview(buffer)[: data_end - at]], at)

    def read_range(self, path: Path, position: int, size: int) -> bytes:
        with _naming(path):
            descriptor = _Descriptor(path, os.O_RDONLY)
            return os.pread(descriptor.fileno(), size, position)

    def read_once(self, path: Path, position: int, size: int) -> bytes:
        buffer = bytearray(size)
        filled = 0
        with _naming(path):
            descriptor = _Descriptor(path, os.O_RDONLY)
            number = descriptor.fileno()
            # without this advice the system reads ahead, and what nobody asked for would stay in the cache
            os.posix_fadvise(number, 0, 0, os.POSIX_FADV_RANDOM)
            while filled < size:
                at = position + filled
                part = memoryview(buffer)[filled : filled + READ_ONCE_BYTES - at % READ_ONCE_BYTES]
                count = _read_part_once(number, part, at)
                if not count:
                    break
                filled += count
        return bytes(buffer) if filled == size else bytes(buffer[:filled])

    def zero_from(self, path: Path, position: int) -> None:
        with _naming(path):
            descriptor = _Descriptor(path, os.O_RDWR)
            number = descriptor.fileno()
            size = os.fstat(number).st_size
            for begin, end in _data_extents(number, position, size):
                _write_zeros(number, begin, end)
            os.posix_fallocate(number, 0, size)
            os.fsync(number)

    def free_bytes(self, directory: Path) -> int | None:
        with _naming(directory):
            system = os.statvfs(directory)
        # Some network and user space file systems do not tell their size. A part is often reserved for root.
        blocks = system.f_bfree if os.geteuid() == 0 else system.f_bavail
        return blocks * system.f_frsize if system.f_blocks else None

    def space(self, directory: Path) -> DiskSpace | None:
        with _naming(directory):
            system = os.statvfs(directory)
        if not system.f_blocks:
            return None
        used = (system.f_blocks - system.f_bfree) * system.f_frsize
        return DiskSpace(used, system.f_bavail * system.f_frsize)

    def list_directory(self, path: Path) -> list[DirectoryEntry]:
        entries = []
        try:
            with RESERVE.opened(lambda: os.scandir(path)) as found:
                for entry in found:
                    with suppress(FileNotFoundError):  # removed since the directory was read
                        status = entry.stat()
                        is_directory = stat.S_ISDIR(status.st_mode)
                        is_plain = (is_directory or stat.S_ISREG(status.st_mode)) and not entry.is_symlink()
                        entries.append(DirectoryEntry(entry.name, status.st_size, is_directory, is_plain))
        except FileNotFoundError:
            return []
        return sorted(entries)

    def exists(self, path: Path) -> bool:
        return path.exists()

    def allocated_bytes(self, path: Path) -> int:
        try:
            return path.stat().st_blocks * STAT_BLOCK_BYTES
        except FileNotFoundError:
            return 0

    def read(self, path: Path) -> bytes:
        return RESERVE.opened(path.read_bytes)

    def replace_atomically(self, path: Path, data: bytes | memoryview) -> None:
        temporary = path.with_name(path.name + ".tmp")
        try:
            with _naming(temporary):
                descriptor = _Descriptor(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
                _write_all(descriptor.fileno(), data)
                os.fsync(descriptor)
            temporary.replace(path)
        except OSError:
            with suppress(OSError):
                temporary.unlink()
            raise
        _sync_directory(path.parent)

    def remove(self, path: Path) -> None:
        with suppress(FileNotFoundError):
            path.unlink()
            _sync_directory(path.parent)

    def move(self, path: Path, target: Path) -> None:
        path.rename(target)
        _sync_directory(target.parent)
        _sync_directory(path.parent)

    def truncate(self, path: Path, size: int) -> None:
        os.truncate(path, size)

    def name_count(self, path: Path) -> int:
        return path.stat().st_nlink

    def is_mapped(self, path: Path) -> bool:
        inode, name = path.stat().st_ino, os.fspath(path.resolve())
        with MAPPINGS.open() as mappings:
            return any(_maps(line, inode, name) for line in mappings)

    def make_directories(self, path: Path) -> None:
        if path.is_dir():
            # a process that died right after making the directory has not made its name durable
            with suppress(PermissionError):
                _sync_directory(path.parent)
            return
        self.make_directories(path.parent)
        path.mkdir(DIRECTORY_MODE, exist_ok=True)
        _sync_directory(path.parent)

    def lock(self, path: Path) -> PosixLock:
        with _naming(path):
            descriptor = _Descriptor(path, os.O_RDWR | os.O_CREAT)
            _take_lock(descriptor, fcntl.F_WRLCK)
            if os.fstat(descriptor.fileno()).st_size == 0:
                os.write(descriptor.fileno(), LOCK_CONTENT)
            return PosixLock(descriptor)

    def lock_shared(self, path: Path) -> PosixLock:
        with _naming(path):
            descriptor = _Descriptor(path, os.O_RDONLY)
            _take_lock(descriptor, fcntl.F_RDLCK)
            return PosixLock(descriptor)
