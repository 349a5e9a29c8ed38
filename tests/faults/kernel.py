"""A kernel and its disk in memory, underneath the real `PosixDisk`: it stops at any single system call.

`FaultyDisk` replaces the disk of the store. This one lets the real one run, so that its own order of calls
(temporary file, fsync, rename, fsync of the directory) is put to the test as well. After a power cut

- each 4 KiB page of a file that was not synced is lost, kept, or torn between sectors, in any combination,
  whether it was written through a descriptor or through a mapping; the kernel may have written back an earlier
  state of it at any time before,
- a length that was not synced is the old or the new one,
- of the names made, renamed and removed in a directory since its last fsync, the first few took place: how many,
  each directory decides by itself (stricter than ext4, whose journal keeps them in order).

The death of the process alone leaves everything as programs saw it.
"""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
import stat
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path, PurePosixPath
from random import Random
from types import CodeType, ModuleType, SimpleNamespace
from typing import Any, ClassVar, Final, cast

import quarry_mq.store.fs.posix
from quarry_mq.store.fs.protocol import Disk
from tests.faults.disk import PAGE, PowerCut
from tests.faults.inodes import Directory, Inode, Pages

FIRST_DESCRIPTOR: Final = 1 << 24
"""Above every real one: a descriptor that gets into the wrong hands must not close a file of the test run."""
WRITE_BACK_ONE_IN: Final = 8
"""The number of writes of which one makes the kernel write back some page by itself."""


UNMAPPED_REFERENCES: Final = 2
"""To the pages of a file that nobody has mapped: its own, and that of the call that counts."""


class KernelPath(PurePosixPath):
    """A path of the simulated file system, with those methods of `pathlib.Path` that `PosixDisk` calls."""

    kernel: ClassVar[Kernel]

    def is_dir(self) -> bool:
        return isinstance(self.kernel.find(self), Directory)

    def exists(self) -> bool:
        return self.kernel.find(self) is not None

    def read_bytes(self) -> bytes:
        return bytes(self.kernel.file(self).live)

    def mkdir(self, _mode: int = 0o777, *, exist_ok: bool) -> None:
        if not self.exists():
            self.kernel.mkdir(self)

    def rmdir(self) -> None:
        self.kernel.rmdir(self)

    def unlink(self) -> None:
        self.kernel.unlink(self)

    def rename(self, target: KernelPath) -> None:
        self.kernel.rename(self, target)

    def resolve(self) -> KernelPath:
        return self

    def stat(self) -> Any:
        inode = self.kernel.file(self)
        live = bytes(inode.live)
        pages = sum(any(live[begin : begin + PAGE]) for begin in range(0, len(live), PAGE))
        return SimpleNamespace(st_nlink=1, st_ino=inode.number, st_blocks=pages * PAGE // 512)

    def replace(self, target: KernelPath) -> None:
        self.kernel.rename(self, target)


class _Open:
    """An open file description."""

    def __init__(self, path: KernelPath, node: Inode | Directory) -> None:
        self.path = path
        self.node = node
        self.position = 0


@cache
def _posix_code() -> CodeType:
    """Compiled once: each of some hundred thousand machines has a module of its own."""
    file = quarry_mq.store.fs.posix.__file__
    return compile(Path(file).read_bytes(), file, "exec")


class Kernel:
    """One machine. `crash_at` numbers the step, from 1, at which its power goes; that step is done by half.

    `step` may be called by others too, for things that take place on the same machine. `log` names the steps.
    """

    def __init__(self, chance: Random) -> None:
        self.steps = 0
        self.crash_at: int | None = None
        self.log: list[str] = []
        self.chance = chance
        self.root = Directory()
        self.path_type = type("KernelPath", (KernelPath,), {"kernel": self})
        self._open: dict[int, _Open] = {}
        self._locks: dict[int, int] = {}
        self._next_descriptor = FIRST_DESCRIPTOR
        self._powered = True
        self.at_cut: Callable[[], None] = lambda: None
        """Called once at the moment of each cut."""

    def path(self, text: str) -> Path:
        return cast(Path, self.path_type(text))

    def disk(self) -> Disk:
        """The real `PosixDisk`, in a copy of its module that knows this kernel instead of the system."""
        module = ModuleType("posix_on_a_simulated_kernel")
        exec(_posix_code(), module.__dict__)
        module.os = System(self)  # type: ignore[attr-defined]
        module.MAPPINGS = SimpleNamespace(open=self.mappings)  # type: ignore[attr-defined]
        module.mmap = SimpleNamespace(  # type: ignore[attr-defined]
            mmap=self.map, PAGESIZE=PAGE, ACCESS_READ=mmap.ACCESS_READ, ACCESS_WRITE=mmap.ACCESS_WRITE
        )
        module.fcntl = SimpleNamespace(  # type: ignore[attr-defined]
            fcntl=self.lock, F_OFD_SETLK=fcntl.F_OFD_SETLK, F_RDLCK=fcntl.F_RDLCK, F_WRLCK=fcntl.F_WRLCK
        )
        module._sync_file_system = self.sync_all  # type: ignore[attr-defined]
        module._cached_pages = lambda number, begin, size: None  # type: ignore[attr-defined]
        module._populate = lambda mapping, position, size: None  # type: ignore[attr-defined]
        return cast(Disk, module.PosixDisk())

    # -- the end of it

    def cut(self) -> None:
        """The machine, or the process, stops here: nothing goes on until one of the next two is called."""
        if self._powered:
            self._powered = False
            self.at_cut()

    def power_loss(self) -> None:
        """Come back with what is on the platter."""
        self.root.settle_some(self.chance)
        self.root.power_loss(self.chance)
        self.process_death()

    def process_death(self) -> None:
        """Come back with everything that was written."""
        self._open.clear()
        self._locks.clear()
        self._powered = True
        self.crash_at = None

    def step(self, name: str) -> bool:
        """Count one step that changes something. True: the power goes in the middle of it.

        Whoever calls does half of it then and raises PowerCut.
        """
        self._check_power()
        self.steps += 1
        self.log.append(name)
        if self.steps == self.crash_at:
            self.cut()
            return True
        return False

    @contextmanager
    def whole_step(self, name: str) -> Iterator[None]:
        """A step that cannot be done by half: when the power goes, it was just done, or just not."""
        going = self.step(name)
        if going and self.chance.random() < 0.5:
            raise PowerCut(name)
        yield
        if going:
            raise PowerCut(name)

    def _check_power(self) -> None:
        if not self._powered:
            raise PowerCut

    # -- files

    def find(self, path: PurePosixPath | str) -> Inode | Directory | None:
        self._check_power()
        node: Inode | Directory | None = self.root
        parts = path.parts if isinstance(path, PurePosixPath) else PurePosixPath(path).parts
        for part in parts[1:]:
            if not isinstance(node, Directory):
                return None
            node = node.live.get(part)
        return node

    def node(self, path: PurePosixPath | str) -> Inode | Directory:
        node = self.find(path)
        if node is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))
        return node

    def file(self, path: PurePosixPath | str) -> Inode:
        node = self.node(path)
        if isinstance(node, Directory):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
        return node

    def directory(self, path: PurePosixPath | str) -> Directory:
        node = self.node(path)
        if not isinstance(node, Directory):
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(path))
        return node

    def store(self, inode: Inode, position: int, data: bytes) -> None:
        cut = self.step(f"store {len(data)} bytes in {inode.name}")
        inode.change(position, data[: self.chance.randrange(len(data) + 1)] if cut else data)
        if cut:
            raise PowerCut
        if inode.dirty and self.chance.randrange(WRITE_BACK_ONE_IN) == 0:
            page = self.chance.choice(sorted(inode.dirty))
            here = slice(page * PAGE, (page + 1) * PAGE)
            inode.durable = b"".join(
                (inode.durable[: here.start].ljust(here.start, b"\0"), inode.live[here], inode.durable[here.stop :])
            )[: len(inode.live)]

    def sync(self, inode: Inode) -> None:
        going = self.step(f"fsync {inode.name}")
        inode.sync(self.chance if going else None)
        if going:
            raise PowerCut

    def sync_all(self, number: Any) -> None:
        """`syncfs`: there is one file system."""
        self.opened(number)
        going = self.step("syncfs")
        self.root.sync(self.chance if going else None)
        if going:
            raise PowerCut

    def mkdir(self, path: KernelPath) -> None:
        with self.whole_step(f"mkdir {path.name}"):
            made = Directory()
            self.directory(path.parent).change(lambda names: names.__setitem__(path.name, made))

    def rmdir(self, path: KernelPath) -> None:
        if self.directory(path).live:
            raise OSError(errno.ENOTEMPTY, os.strerror(errno.ENOTEMPTY), str(path))
        with self.whole_step(f"rmdir {path.name}"):
            self.directory(path.parent).change(lambda names: names.__delitem__(path.name))

    def unlink(self, path: KernelPath) -> None:
        self.file(path)
        with self.whole_step(f"unlink {path.name}"):
            self.directory(path.parent).change(lambda names: names.__delitem__(path.name))

    def rename(self, path: KernelPath, target: KernelPath) -> None:
        node, source, goal = self.node(path), self.directory(path.parent), self.directory(target.parent)

        def take(names: dict[str, Inode | Directory]) -> None:
            names.pop(path.name, None)

        def give(names: dict[str, Inode | Directory]) -> None:
            if source is goal:
                take(names)
            names[target.name] = node

        def move_durably(_: dict[str, Inode | Directory]) -> None:
            if source.durable.get(path.name) is node:
                take(source.durable)
                give(goal.durable)

        with self.whole_step(f"rename to {target.name}"):
            if source is goal:
                goal.change(give)
                return
            # one transaction: whichever directory it reaches the platter with, it is done in both
            source.settle()
            goal.settle()
            take(source.live)
            give(goal.live)
            source.pending.append(move_durably)
            goal.pending.append(move_durably)

    # -- descriptors

    def open(self, path: KernelPath, flags: int, mode: int) -> int:
        node = self.find(path)
        if node is None and not flags & os.O_CREAT:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))
        if node is not None and flags & os.O_EXCL:
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(path))
        if node is None:
            parent = self.directory(path.parent)
            with self.whole_step(f"create {path.name}"):
                node = made = Inode(self, path.name)
                parent.change(lambda names: names.__setitem__(path.name, made))
        if flags & os.O_TRUNC and isinstance(node, Inode) and node.live:
            with self.whole_step(f"truncate {path.name}"):
                node.resize(0)
                node.dirty = set()
        self._next_descriptor += 1
        self._open[self._next_descriptor] = _Open(path, node)
        return self._next_descriptor

    def close(self, number: int) -> None:
        """Never fails: objects from before a crash close their descriptors whenever Python gets to it."""
        self._open.pop(number, None)
        self._locks.pop(number, None)

    def opened(self, number: int | Any) -> _Open:
        self._check_power()
        return self._open[number if isinstance(number, int) else number.fileno()]

    def inode(self, number: int | Any) -> Inode:
        node = self.opened(number).node
        assert isinstance(node, Inode)
        return node

    def map(self, number: int, size: int, *, access: int) -> Pages | memoryview:
        live = self.inode(number).live
        return live if access == mmap.ACCESS_WRITE else memoryview(live).toreadonly()

    @contextmanager
    def mappings(self) -> Iterator[list[str]]:
        """`/proc/self/maps`, of which only the file counts."""
        yield list(self._mapped(self.root, PurePosixPath("/")))

    def _mapped(self, directory: Directory, path: PurePosixPath) -> Iterator[str]:
        for name, node in list(directory.live.items()):  # another thread may make a file meanwhile
            if isinstance(node, Directory):
                yield from self._mapped(node, path / name)
            elif sys.getrefcount(node.live) > UNMAPPED_REFERENCES:
                yield f"0-1 rw-s 0 00:00 {node.number} {path / name}\n"

    def lock(self, number: int, command: int, wanted: bytes) -> None:
        kind = int.from_bytes(wanted[:2], "little")
        node = self.opened(number).node
        locks = [
            other
            for descriptor, other in self._locks.items()
            if descriptor != number and self._open[descriptor].node is node
        ]
        if locks and fcntl.F_WRLCK in (kind, *locks):
            raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))
        self._locks[number] = kind


class System:
    """The functions of the `os` module that `PosixDisk` uses. Another one is an AttributeError: add it here."""

    _CONSTANTS: Final = ("O_", "SEEK_", "POSIX_FADV_", "RWF_")

    def __init__(self, kernel: Kernel) -> None:
        self._kernel = kernel
        self.open = kernel.open
        self.close = kernel.close
        self.fspath = os.fspath
        self.geteuid = os.geteuid

    def __getattr__(self, name: str) -> Any:
        if name.startswith(self._CONSTANTS):
            return getattr(os, name)
        raise AttributeError(f"the simulated kernel has no os.{name}")

    def fsync(self, number: Any) -> None:
        node = self._kernel.opened(number).node
        if isinstance(node, Inode):
            self._kernel.sync(node)
            return
        with self._kernel.whole_step(f"fsync of the directory {self._kernel.opened(number).path.name}"):
            node.settle()

    fdatasync = fsync

    def fstat(self, number: int) -> Any:
        return SimpleNamespace(st_size=len(self._kernel.inode(number).live))

    def truncate(self, path: KernelPath, size: int) -> None:
        inode = self._kernel.file(path)
        with self._kernel.whole_step(f"truncate {inode.name}"):
            inode.resize(size)
            inode.dirty = {page for page in inode.dirty if page * PAGE < size}

    def ftruncate(self, number: int, size: int) -> None:
        with self._kernel.whole_step(f"ftruncate {self._kernel.inode(number).name}"):
            self._kernel.inode(number).resize(size)

    def posix_fallocate(self, number: int, position: int, length: int) -> None:
        with self._kernel.whole_step(f"fallocate {self._kernel.inode(number).name}"):
            assert position + length <= len(self._kernel.inode(number).live), "the file would grow"

    def posix_fadvise(self, number: int, position: int, length: int, advice: int) -> None:
        inode = self._kernel.inode(number)
        if advice == os.POSIX_FADV_DONTNEED and not inode.dirty:
            bytearray.__setitem__(inode.live, slice(None), inode.durable)

    def write(self, number: int, data: bytes | memoryview) -> int:
        opened = self._kernel.opened(number)
        self._kernel.store(self._kernel.inode(number), opened.position, bytes(data))
        opened.position += len(data)
        return len(data)

    def pwrite(self, number: int, data: bytes, position: int) -> int:
        self._kernel.store(self._kernel.inode(number), position, data)
        return len(data)

    def pread(self, number: int, length: int, position: int) -> bytes:
        return bytes(self._kernel.inode(number).live[position : position + length])

    def preadv(self, number: int, buffers: list[memoryview], position: int, flags: int = 0) -> int:
        if flags & os.RWF_NOWAIT:
            raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))
        count = 0
        for buffer in buffers:
            data = self.pread(number, len(buffer), position + count)
            buffer[: len(data)] = data
            count += len(data)
        return count

    def lseek(self, number: int, position: int, how: int) -> int:
        """Holes are the pages that hold only zeros: more of them than a real file has."""
        live = self._kernel.inode(number).live
        page = position // PAGE
        while page * PAGE < len(live):
            is_data = live[page * PAGE : (page + 1) * PAGE].strip(b"\0") != b""
            if is_data == (how == os.SEEK_DATA):
                return max(position, page * PAGE)
            page += 1
        if how == os.SEEK_DATA:
            raise OSError(errno.ENXIO, os.strerror(errno.ENXIO))
        return len(live)

    def statvfs(self, path: KernelPath) -> Any:
        self._kernel.directory(path)
        return SimpleNamespace(f_bfree=0, f_bavail=0, f_frsize=PAGE, f_blocks=0)

    @contextmanager
    def scandir(self, path: KernelPath) -> Iterator[Iterator[Any]]:
        names = self._kernel.directory(path).live
        yield iter([_Entry(name, node) for name, node in names.items()])


class _Entry:
    def __init__(self, name: str, node: Inode | Directory) -> None:
        self.name = name
        self._node = node

    def is_dir(self) -> bool:
        return isinstance(self._node, Directory)

    def is_symlink(self) -> bool:
        return False

    def stat(self) -> Any:
        is_file = isinstance(self._node, Inode)
        size = len(self._node.live) if isinstance(self._node, Inode) else PAGE
        return SimpleNamespace(st_size=size, st_mode=stat.S_IFREG if is_file else stat.S_IFDIR)
