"""The databases of a store on a simulated machine: their steps count with those of the disk, and crash with it."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from quarry_mq.kv import FamilyOptions, KeyValueEngine
from quarry_mq.kv.engine import WriteBatch
from quarry_mq.kv.memory import MemoryEngine
from quarry_mq.kv.rocks import RocksEngine
from quarry_mq.store.consumequeue.rocks.store import FAMILY_OPTIONS
from quarry_mq.store.consumequeue.rocks_layout import ENTRIES_FAMILY, OFFSET_FAMILY
from quarry_mq.store.fs import Disk
from quarry_mq.store.pending import FAMILY
from quarry_mq.store.state.identity import FAMILIES
from tests.faults.disk import PowerCut
from tests.faults.kernel import Kernel

PENDING_FAMILIES = (FAMILY,)
QUEUE_FAMILIES = (ENTRIES_FAMILY, OFFSET_FAMILY)
"""In the order in which RocksDB flushes them at its close."""


class MachineEngine(MemoryEngine):
    """An engine that survives the crashes of its machine. Each write, and the flush of each family, is one step."""

    def __init__(self, kernel: Kernel, name: str, families: Sequence[str], *, write_ahead_log: bool) -> None:
        super().__init__(families, write_ahead_log=write_ahead_log)
        self._kernel = kernel
        self._name = name

    def write(self, batch: WriteBatch, *, sync: bool = False) -> None:
        with self._kernel.whole_step(f"write a batch to {self._name}"):
            super().write(batch, sync=sync)

    def flush(self, names: Sequence[str]) -> None:
        for name in names:
            with self._kernel.whole_step(f"flush {name} of {self._name}"):
                super().flush([name])

    def close(self) -> None:
        if not self._closed and not self._write_ahead_log:
            self.flush(list(self._families))
        super().close()

    def reopen(self) -> None:
        self._closed = False

    def machine_crashed(self, *, power_loss: bool) -> None:
        self.crash(self._kernel.chance.randint(0, len(self._batches)), power_loss=power_loss)


class MachineEngines:
    """Implements `store.engines.StoreEngines` with one engine in memory per directory."""

    def __init__(self, kernel: Kernel, disk: Disk) -> None:
        self._kernel = kernel
        self._disk = disk
        self._engines: dict[str, MachineEngine] = {}

    def open_queues(self, directory: Path, *, create: bool) -> KeyValueEngine:
        self._mark(directory)
        return self._open(directory.name, QUEUE_FAMILIES, write_ahead_log=False)

    def open_state(self, directory: Path, *, create: bool, read_only: bool = False) -> KeyValueEngine:
        self._mark(directory)
        return self._open(directory.name, FAMILIES, write_ahead_log=True)

    def open_pending(self, directory: Path, *, create: bool) -> KeyValueEngine:
        self._mark(directory)
        return self._open(directory.name, PENDING_FAMILIES, write_ahead_log=False)

    def crash(self, *, power_loss: bool) -> None:
        for engine in self._engines.values():
            engine.machine_crashed(power_loss=power_loss)

    def release(self) -> None:
        """Give back what the engines hold of the machine the test runs on."""

    def _mark(self, directory: Path) -> None:
        """Put the file there by which a store is recognised; without it, what there was is gone.

        RocksDB makes its names durable at each opening, also such as a process left that died right after making them.
        """
        if not self._disk.exists(directory / "CURRENT"):
            self._disk.make_directories(directory)
            self._disk.replace_atomically(directory / "CURRENT", b"MANIFEST-000001\n")
            self._drop(directory.name)
        else:
            self._disk.sync_directory(directory)

    def _open(self, name: str, families: Sequence[str], *, write_ahead_log: bool) -> KeyValueEngine:
        if name not in self._engines:
            self._engines[name] = MachineEngine(self._kernel, name, families, write_ahead_log=write_ahead_log)
        self._engines[name].reopen()
        return self._engines[name]

    def _drop(self, name: str) -> None:
        self._engines.pop(name, None)


class MachineRocksEngine(RocksEngine):
    """RocksDB whose writes and flushes are steps of the machine."""

    kernel: Kernel
    name: str

    def write(self, batch: WriteBatch, *, sync: bool = False) -> None:
        with self.kernel.whole_step(f"write a batch to {self.name}"):
            super().write(batch, sync=sync)

    def flush(self, names: Sequence[str]) -> None:
        for name in names:
            with self.kernel.whole_step(f"flush {name} of {self.name}"):
                super().flush([name])


class MachineRocksEngines(MachineEngines):
    """RocksDB itself, in real directories. At each cut they are copied as they lie there, as the page cache has them.

    So a write-ahead log loses nothing, and memtables without one everything: the worst for the queues.
    """

    def __init__(self, kernel: Kernel, disk: Disk, directory: Path) -> None:
        super().__init__(kernel, disk)
        self._directory = directory
        self._opened: list[MachineRocksEngine] = []
        self._copies = 0
        kernel.at_cut = self._copy

    def crash(self, *, power_loss: bool) -> None:
        self.release()

    def release(self) -> None:
        """The engines of the life before end on what nobody looks at any more."""
        for engine in self._opened:
            with suppress(PowerCut):
                engine.close()
        self._opened = []

    def _copy(self) -> None:
        self._copies += 1
        before, copy = (self._directory / str(number) for number in (self._copies - 1, self._copies))
        before.mkdir(parents=True, exist_ok=True)
        while True:  # until no compaction has changed anything meanwhile
            files = _files(before)
            with suppress(OSError):
                shutil.copytree(before, copy)
                if _files(before) == files == _files(copy):
                    return
            shutil.rmtree(copy, ignore_errors=True)

    def _open(self, name: str, families: Sequence[str], *, write_ahead_log: bool) -> KeyValueEngine:
        options = FAMILY_OPTIONS if families is QUEUE_FAMILIES else {each: FamilyOptions() for each in families}
        path = self._directory / str(self._copies) / name
        engine = MachineRocksEngine.open(path, options, create=True, write_ahead_log=write_ahead_log)
        assert isinstance(engine, MachineRocksEngine)
        engine.kernel, engine.name = self._kernel, name
        self._opened.append(engine)
        return engine

    def _drop(self, name: str) -> None:
        shutil.rmtree(self._directory / str(self._copies) / name, ignore_errors=True)


def _files(directory: Path) -> dict[str, int]:
    """Sizes by name. RocksDB's text log grows as it likes."""
    found = {}
    for path in directory.rglob("*"):
        with suppress(FileNotFoundError):
            if path.is_file() and path.name != "LOG":
                found[str(path.relative_to(directory))] = path.stat().st_size
    return found
