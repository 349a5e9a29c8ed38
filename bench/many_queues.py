"""Compares the cost of consume queues, from a thousand to a million, in RocksDB and in files, in Quarry and RocketMQ.

Four stores run in their own processes, without a broker or a network: Quarry's and that of RocketMQ 5.5.0, each with
its queues in RocksDB and in files. All get the same messages (200 B bodies, a tag, a key; ordinary topics of eight
queues) in the same order, in which consecutive queues lie far apart, without waiting for the disk. Then tables are
compacted and the queues' files measured; each store is opened in a new process, and single messages are read at random
positions of all queues, with a warm page cache. Puts and reads are sampled in turns.

RocketMQ keeps a descriptor and a mapping per queue file, so with files it is measured up to the limit of descriptors.
"""

from __future__ import annotations

import os
import resource
import shutil
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from bench.harness import CannotRun, Case, Options, Sample, Scale, median_cpu_us, median_rate, require_room
from bench.peers.maven import class_path
from bench.peers.store_process import ROCKETMQ_PROJECT, StoreKind, StoreProcess
from quarry_mq.kv.options import MIB

QUESTION: Final = "What does a consume queue cost in RocksDB and in files, here and in RocketMQ?"
QUEUE_FOLDERS: Final = ("consumequeue", "consumequeue_rocksdb")
ROCKSDB_LOG: Final = "LOG"
WARM_QUEUES: Final = 800
WARM_ENTRIES: Final = 10
SPARE_DESCRIPTORS: Final = 1_000
"""Descriptors that a store needs beside one for each queue."""

BYTES_PER_MESSAGE: Final = 450
BYTES_PER_FILE_QUEUE: Final = 16 * 1024
MB: Final = 1_000_000


@dataclass(frozen=True, slots=True)
class Shape:
    """A number of queues with a number of messages each, and the kinds of stores that are measured with them."""

    queues: int
    entries: int
    kinds: Sequence[StoreKind]


ALL: Final = tuple(StoreKind)
NOT_ROCKETMQ_FILE: Final = (StoreKind.QUARRY_ROCKSDB, StoreKind.QUARRY_FILE, StoreKind.ROCKETMQ_ROCKSDB)
ROCKSDB: Final = (StoreKind.QUARRY_ROCKSDB, StoreKind.ROCKETMQ_ROCKSDB)


@dataclass(frozen=True, slots=True)
class Sizes:
    """Sizes by scale. `warm_puts` and `gets` are numbers of messages, the latter per sample."""

    shapes: tuple[Shape, ...]
    warm_puts: int
    gets: int
    rounds: int


SIZES: Final = {
    Scale.FULL: Sizes(
        (
            Shape(1_000, 200, ALL),
            Shape(20_000, 10, ALL),
            Shape(100_000, 10, NOT_ROCKETMQ_FILE),
            Shape(1_000_000, 5, ROCKSDB),
        ),
        warm_puts=100_000,
        gets=30_000,
        rounds=5,
    ),
    Scale.QUICK: Sizes((Shape(1_000, 50, ALL), Shape(50_000, 4, ROCKSDB)), warm_puts=20_000, gets=5_000, rounds=2),
    Scale.TINY: Sizes((Shape(80, 4, ALL),), warm_puts=100, gets=20, rounds=1),
}


@dataclass(slots=True)
class Measured:
    """The results of one kind of store with a number of queues."""

    queues: int
    puts: list[Sample]
    gets: list[Sample]
    put_mb: float = 0.0
    start_s: float = 0.0
    start_cpu_s: float = 0.0
    start_mb: float = 0.0
    get_mb: float = 0.0
    apparent_bytes: int = 0
    allocated_bytes: int = 0

    def facts(self, entries: int) -> dict[str, object]:
        """Return the results. Memory is the private memory in MB; bytes are those of the queues on disk."""
        units = self.queues * entries
        return {
            "queues": self.queues,
            "put_per_second": round(median_rate(self.puts)),
            "put_cpu_us": round(median_cpu_us(self.puts), 2),
            "get_per_second": round(median_rate(self.gets)),
            "get_cpu_us": round(median_cpu_us(self.gets), 2),
            "apparent_bytes_per_entry": round(self.apparent_bytes / units, 1),
            "allocated_bytes_per_entry": round(self.allocated_bytes / units, 1),
            "start_s": round(self.start_s, 2),
            "start_cpu_s": round(self.start_cpu_s, 2),
            "memory_mb_after_puts": round(self.put_mb),
            "memory_mb_after_start": round(self.start_mb),
            "memory_mb_after_gets": round(self.get_mb),
        }


def run(options: Options) -> list[Case]:
    prepare_for_stores(options, "many_queues")
    sizes = SIZES[options.scale]
    return [case for shape in sizes.shapes for case in _Comparison(options, sizes, shape).cases()]


class _Comparison:
    """The kinds of stores with the same number of queues."""

    def __init__(self, options: Options, sizes: Sizes, shape: Shape) -> None:
        self._directory = options.scratch / str(shape.queues)
        self._seed = options.seed
        self._sizes = sizes
        self._shape = shape
        self._measured = {kind: Measured(_queues_of(kind, shape.queues), [], []) for kind in shape.kinds}

    def cases(self) -> list[Case]:
        self._require_room()
        try:
            self._put()
            for kind, measured in self._measured.items():
                measured.apparent_bytes, measured.allocated_bytes = disk_usage(self._root(kind))
            self._get()
        finally:
            shutil.rmtree(self._directory, ignore_errors=True)
        return [self._case("put", lambda each: each.puts), self._case("get", lambda each: each.gets)]

    def _put(self) -> None:
        shape, rounds = self._shape, self._sizes.rounds
        with ExitStack() as ending:
            processes = {kind: ending.enter_context(closing(self._process(kind))) for kind in self._measured}
            for kind, process in processes.items():
                self._warm(kind, process)
                self._open(kind, process)
            for number in range(rounds):
                for kind, process in processes.items():
                    total = self._measured[kind].queues * shape.entries
                    first, end = total * number // rounds, total * (number + 1) // rounds
                    self._measured[kind].puts.append(process.run("put", first=first, count=end - first))
            for kind, process in processes.items():
                self._measured[kind].put_mb = process.private_bytes / MB
                process.run("compact")
                process.run("close")

    def _get(self) -> None:
        with ExitStack() as ending:
            processes = {kind: ending.enter_context(closing(self._process(kind))) for kind in self._measured}
            for kind, process in processes.items():
                measured, start = self._measured[kind], self._open(kind, process)
                measured.start_s, measured.start_cpu_s = start.wall_s, start.cpu_s
                measured.start_mb = process.private_bytes / MB
            for number in range(self._sizes.rounds + 1):
                for kind, process in processes.items():
                    sample = process.run("get", seed=self._seed + number, count=self._sizes.gets)
                    if number:  # the first one warms up
                        self._measured[kind].gets.append(sample)
            for kind, process in processes.items():
                self._measured[kind].get_mb = process.private_bytes / MB
                process.run("close")

    def _process(self, kind: StoreKind) -> StoreProcess:
        return StoreProcess(kind, self._directory / kind.name / "home")

    def _root(self, kind: StoreKind) -> Path:
        return self._directory / kind.name / "store"

    def _open(self, kind: StoreKind, process: StoreProcess) -> Sample:
        return process.run(
            "open", root=self._root(kind), queues=self._measured[kind].queues, entries=self._shape.entries
        )

    def _warm(self, kind: StoreKind, process: StoreProcess) -> None:
        """Warm up on a store that is thrown away: a virtual machine compiles code that runs often."""
        scratch = self._directory / kind.name / "warm"
        process.run("open", root=scratch, queues=WARM_QUEUES, entries=WARM_ENTRIES)
        process.run("put", first=0, count=self._sizes.warm_puts)
        process.run("close")
        shutil.rmtree(scratch)

    def _case(self, what: str, samples: Callable[[Measured], list[Sample]]) -> Case:
        measured = self._measured
        stores = {kind.value: each.facts(self._shape.entries) for kind, each in measured.items()}
        details: Mapping[str, object] = {
            "queues": self._shape.queues,
            "entries": self._shape.entries,
            "stores": stores,
            "load_1m": round(os.getloadavg()[0], 1),
        }
        return Case(
            name=f"{self._shape.queues:,} queues: {what}",
            unit="messages",
            peer=StoreKind.ROCKETMQ_ROCKSDB.value,
            ours=samples(measured[StoreKind.QUARRY_ROCKSDB]),
            theirs=samples(measured[StoreKind.ROCKETMQ_ROCKSDB]),
            details=details,
        )

    def _require_room(self) -> None:
        entries = self._shape.queues * self._shape.entries
        needed = 2048 * MIB
        for kind in self._measured:
            needed += entries * BYTES_PER_MESSAGE + kind.is_in_files * self._shape.queues * BYTES_PER_FILE_QUEUE
        self._directory.mkdir()
        require_room(self._directory, needed)


def _queues_of(kind: StoreKind, queues: int) -> int:
    """Return the requested number of queues, or fewer if descriptors limit it."""
    if kind is not StoreKind.ROCKETMQ_FILE:
        return queues
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return min(queues, (limit - SPARE_DESCRIPTORS) // 1_000 * 1_000) if limit > 2 * SPARE_DESCRIPTORS else queues


def prepare_for_stores(options: Options, name: str) -> None:
    """Prepare what the benchmark of this name needs before anything is started. Raises CannotRun."""
    if options.scale is not Scale.FULL and not options.named:
        raise CannotRun(f"RocketMQ takes minutes; `python -m bench {name}` asks for it by name")
    class_path(ROCKETMQ_PROJECT)
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def disk_usage(root: Path) -> tuple[int, int]:
    """Return the lengths and allocated bytes of everything in the folders of consume queues, folders included.

    RocksDB's own logs are left out, which RocketMQ lets it write elsewhere.
    """
    apparent = allocated = 0
    for name in QUEUE_FOLDERS:
        for folder, _, files in os.walk(root / name):
            for path in (folder, *(f"{folder}/{file}" for file in files if not file.startswith(ROCKSDB_LOG))):
                status = os.stat(path)
                apparent += status.st_size
                allocated += status.st_blocks * 512
    return apparent, allocated
