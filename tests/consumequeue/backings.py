"""Kinds of storage for consume queues, for tests that run on all of them. Another kind: one more line in `BACKINGS`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Final, Protocol

from quarry_mq.kv import KeyValueEngine
from quarry_mq.kv.memory import MemoryEngine
from quarry_mq.store.consumequeue import (
    ConsumeQueueStore,
    DoubleWriteConsumeQueues,
    FileConsumeQueues,
    RocksConsumeQueues,
    entries_in_files,
    open_consume_queue_engine,
)
from quarry_mq.store.consumequeue.rocks_layout import ENTRIES_FAMILY, OFFSET_FAMILY
from quarry_mq.store.fs import Disk, PosixDisk
from quarry_mq.store.message import PhysicalOffset
from quarry_mq.store.native import NATIVE
from tests.consumequeue.samples import warm

UNITS_PER_FILE: Final = 7
"""Small, so that tests reach the next file."""


class Backing(Protocol):
    """One place where queues are kept."""

    def open(self, minimum: int = 0, cached: int = 100) -> ConsumeQueueStore:
        """The queues as a store that opens now finds them, after a clean stop of the one before."""

    def close(self) -> None: ...


class EngineBacking:
    def __init__(self, engine: KeyValueEngine) -> None:
        self.engine = engine

    def open(self, minimum: int = 0, cached: int = 100) -> RocksConsumeQueues:
        return RocksConsumeQueues(
            self.engine, minimum_physical_offset=PhysicalOffset(minimum), cached_queues_max=cached
        )

    def close(self) -> None:
        self.engine.close()


class RememberedBacking(EngineBacking):
    """With the native part, which remembers what is stored; hardly anything else does."""

    def open(self, minimum: int = 0, cached: int = 100) -> RocksConsumeQueues:
        queues = super().open(minimum, cached=2)
        assert NATIVE is not None
        queues.use(NATIVE)
        return queues


class WarmedBacking(RememberedBacking):
    """The same, after all has been read into it that was there when it was opened."""

    def open(self, minimum: int = 0, cached: int = 100) -> RocksConsumeQueues:
        queues = super().open(minimum, cached)
        warm(queues)
        return queues


class FileBacking:
    def __init__(self, directory: Path, disk: Disk | None = None, saved: PhysicalOffset | None = None) -> None:
        self.directory = directory
        self.disk = PosixDisk() if disk is None else disk
        self.saved = saved
        self.after_crash = False
        self.units_per_file = entries_in_files(self.disk, directory) or UNITS_PER_FILE
        self._queues: FileConsumeQueues | None = None

    def open(self, minimum: int = 0, cached: int = 100) -> FileConsumeQueues:
        if self._queues is not None:
            self._queues.flush()
        self._queues = self.open_as_it_is(minimum, cached)
        return self._queues

    def open_as_it_is(self, minimum: int = 0, cached: int = 100) -> FileConsumeQueues:
        """As after a crash: only what the last flush saved is known to be complete."""
        return FileConsumeQueues(
            self.disk,
            self.directory,
            minimum_physical_offset=PhysicalOffset(minimum),
            dispatched_up_to=self.saved,
            save_dispatched=self._save,
            after_crash=self.after_crash,
            units_per_file=self.units_per_file,
            cached_queues_max=cached,
            open_files_max=3,
        )

    def close(self) -> None:
        if self._queues is not None:
            self._queues.close()

    def _save(self, dispatched_up_to: PhysicalOffset, *, emptied: bool) -> None:
        self.saved = dispatched_up_to


class DoubleBacking:
    """Both, and one of them is read."""

    def __init__(self, directory: Path, *, read_rocks: bool) -> None:
        self.files = FileBacking(directory / "consumequeue")
        self.rocks = EngineBacking(MemoryEngine([ENTRIES_FAMILY, OFFSET_FAMILY]))
        self._read_rocks = read_rocks

    def open(self, minimum: int = 0, cached: int = 100) -> DoubleWriteConsumeQueues:
        files, rocks = self.files.open(minimum, cached), self.rocks.open(minimum, cached)
        return DoubleWriteConsumeQueues(files, rocks, read_rocks=self._read_rocks, assign_rocks=self._read_rocks)

    def close(self) -> None:
        self.files.close()
        self.rocks.close()


def files_of(queues: DoubleWriteConsumeQueues) -> FileConsumeQueues:
    assert queues.files is not None
    return queues.files


def rocks_of(queues: DoubleWriteConsumeQueues) -> RocksConsumeQueues:
    assert queues.rocks is not None
    return queues.rocks


BACKINGS: Final[dict[str, Callable[[Path], Backing]]] = {
    "memory": lambda _: EngineBacking(MemoryEngine([ENTRIES_FAMILY, OFFSET_FAMILY])),
    "rocks": lambda directory: EngineBacking(open_consume_queue_engine(directory / "db", create=True)),
    "files": lambda directory: FileBacking(directory / "consumequeue"),
    "both, files read": lambda directory: DoubleBacking(directory, read_rocks=False),
    "both, RocksDB read": lambda directory: DoubleBacking(directory, read_rocks=True),
}
if NATIVE is not None:
    BACKINGS["memory, remembered"] = lambda _: RememberedBacking(MemoryEngine([ENTRIES_FAMILY, OFFSET_FAMILY]))
    BACKINGS["memory, warmed"] = lambda _: WarmedBacking(MemoryEngine([ENTRIES_FAMILY, OFFSET_FAMILY]))
