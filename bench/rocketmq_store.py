"""Compares Quarry's store without a broker with RocketMQ's: appends, reads and starts, with few queues and many.

Two stores run in their own processes, Quarry's and that of RocketMQ 5.5.0, both with queues in RocksDB and with 1 KiB
messages; with few queues also RocketMQ's with queue files. Both take the same messages in the same order, in which
consecutive queues lie far apart; both flush in the background, as their brokers do under asynchronous flush. Then
tables are compacted and the queues' files measured, the stores are started again and again, each time in a new process,
and entries and records are read, with a warm page cache. Work that is done once per message is timed alone: messages
and positions are made before. Everything is sampled in turns. Appends begin when both stores are idle, in memory that
is full of pages of another file (`bench.page_cache`).
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, closing, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Final

from bench.harness import (
    BYTES_PER_MESSAGE,
    Case,
    Options,
    Sample,
    Scale,
    private_bytes_of,
    require_room,
    resident_bytes_of,
    wait_until_at_rest,
)
from bench.many_queues import disk_usage, prepare_for_stores
from bench.page_cache import full_page_cache
from bench.peers.store_process import StoreKind, StoreProcess
from quarry_mq.kv.options import MIB

QUESTION: Final = "How fast does a store append, read and start beside RocketMQ's own, with few queues and a million?"
OURS: Final = StoreKind.QUARRY_ROCKSDB
BODY_SIZE: Final = 1024

WARM_QUEUES: Final = 800
WARM_PORTIONS_IN_VAIN: Final = 3
"""Portions in a row that are no faster than before, after which appends count as warm."""
WARM_PORTIONS_MAX: Final = 12
WARM_STEP: Final = 1.03
RESTING_CPU_SHARE: Final = 0.2
"""Share of a core below which a store counts as idle: threads of RocketMQ look for work all the time."""
WARM_ROUNDS: Final = 2
"""Rounds of reads that are not counted: a virtual machine compiles code that runs often."""

MB: Final = 1_000_000


@dataclass(frozen=True, slots=True)
class Shape:
    """A number of queues with a number of messages each, the peers, and the required ratios."""

    queues: int
    entries: int
    peers: Sequence[StoreKind]
    appends: int
    """Number of samples in which the messages are appended."""
    targets: Mapping[str, float] = field(default_factory=dict)


BOTH: Final = (StoreKind.ROCKETMQ_ROCKSDB, StoreKind.ROCKETMQ_FILE)
ROCKSDB: Final = (StoreKind.ROCKETMQ_ROCKSDB,)
APPEND: Final = "append and dispatch"
UNITS: Final = "single entries"
RANGES: Final = "entries of whole queues"
RECORDS: Final = "records of whole queues"
DECODED: Final = "records of whole queues, decoded by both"
START: Final = "start"
READS: Final[Mapping[str, tuple[str, Mapping[str, int]]]] = {
    UNITS: ("units", {}),
    RANGES: ("ranges", {}),
    RECORDS: ("records", {"decoded": 0}),
    DECODED: ("records", {"decoded": 1}),
}
MEMORY: Final = "memory"
AS_FAST: Final = {APPEND: 1.0, **dict.fromkeys(READS, 1.0)}


@dataclass(frozen=True, slots=True)
class Sizes:
    """Sizes by scale. `reads` are entries per sample."""

    shapes: tuple[Shape, ...]
    warm_appends: int
    reads: int
    rounds: int
    fills_page_cache: bool = False


SIZES: Final = {
    Scale.FULL: Sizes(
        (
            Shape(1_000, 1_500, BOTH, appends=5, targets=AS_FAST),
            Shape(100_000, 15, ROCKSDB, appends=5, targets={**AS_FAST, START: 5.0}),
            # six samples: in the first two every message creates a queue
            Shape(1_000_000, 3, ROCKSDB, appends=6, targets={**AS_FAST, APPEND: 1.5, START: 5.0, MEMORY: 1 / 8}),
        ),
        warm_appends=150_000,
        reads=100_000,
        rounds=5,
        fills_page_cache=True,
    ),
    Scale.QUICK: Sizes(
        (Shape(1_000, 100, BOTH, appends=3), Shape(50_000, 3, ROCKSDB, appends=3)),
        warm_appends=50_000,
        reads=10_000,
        rounds=3,
    ),
    Scale.TINY: Sizes((Shape(80, 4, BOTH, appends=1),), warm_appends=100, reads=40, rounds=1),
}


@dataclass(slots=True)
class Measured:
    """The results of one kind of store with a number of queues."""

    samples: dict[str, list[Sample]] = field(default_factory=dict)
    facts: dict[str, float] = field(default_factory=dict)
    opened_s: list[float] = field(default_factory=list)
    """Seconds of each start that the store itself took."""

    def add(self, what: str, sample: Sample) -> None:
        self.samples.setdefault(what, []).append(sample)

    def start_times(self, prefix: str) -> dict[str, float]:
        """Return the time from the begin of the process, and the store's part of it."""
        times = {"ready_s": [sample.wall_s for sample in self.samples[START]], "opened_s": self.opened_s}
        return {prefix + name: round(median(each), 3) for name, each in times.items()}

    def look_at_memory(self, when: str, process: StoreProcess) -> None:
        self.facts[f"resident_mb_after_{when}"] = round(resident_bytes_of(process.pid) / MB, 1)
        self.facts[f"private_mb_after_{when}"] = round(private_bytes_of(process.pid) / MB, 1)


def run(options: Options) -> list[Case]:
    prepare_for_stores(options, "rocketmq_store")
    sizes = SIZES[options.scale]
    require_room(options.scratch, max(_needed_bytes(sizes, shape) for shape in sizes.shapes))
    return [case for shape in sizes.shapes for case in _Comparison(options, sizes, shape).cases()]


def _needed_bytes(sizes: Sizes, shape: Shape) -> int:
    """Return the bytes for all stores, and for the store of the warm-up beside each."""
    messages = shape.queues * shape.entries + WARM_PORTIONS_MAX * sizes.warm_appends
    return (1 + len(shape.peers)) * (messages * BYTES_PER_MESSAGE + 1024 * MIB)


class _Comparison:
    """The kinds of stores with the same number of queues."""

    def __init__(self, options: Options, sizes: Sizes, shape: Shape) -> None:
        self._directory = options.scratch / str(shape.queues)
        self._seed = options.seed
        self._sizes = sizes
        self._shape = shape
        self._measured = {kind: Measured() for kind in (OURS, *shape.peers)}
        self._filled = 0

    def cases(self) -> list[Case]:
        self._directory.mkdir()
        try:
            self._append()
            for kind, measured in self._measured.items():
                units = self._shape.queues * self._shape.entries
                lengths, allocated = disk_usage(self._root(kind))
                measured.facts["bytes_per_entry"] = round(lengths / units, 2)
                measured.facts["allocated_bytes_per_entry"] = round(allocated / units, 2)
            self._start()
            self._read()
        finally:
            shutil.rmtree(self._directory, ignore_errors=True)
        return [self._case(what, peer) for peer in self._shape.peers for what in (APPEND, START, *READS)]

    def _append(self) -> None:
        shape = self._shape
        total = shape.queues * shape.entries
        with ExitStack() as ending:
            processes = {kind: ending.enter_context(closing(self._process(kind))) for kind in self._measured}
            for kind, process in processes.items():
                self._warm(kind, process)
                self._open(kind, process)
                process.run("settle")
            self._filled = ending.enter_context(self._full_memory())
            for number in range(shape.appends):
                first, end = total * number // shape.appends, total * (number + 1) // shape.appends
                for kind, process in processes.items():
                    _let_rest(processes.values())
                    self._measured[kind].add(APPEND, process.run("append", first=first, count=end - first))
            for kind, process in processes.items():
                self._measured[kind].look_at_memory("appends", process)
                process.run("compact")
                process.run("close")

    def _start(self) -> None:
        """Measure the time from the begin of the process to a store that is ready, after a clean stop."""
        for _ in range(self._sizes.rounds):
            for kind, measured in self._measured.items():
                begin_s = time.perf_counter()
                with closing(self._process(kind)) as process:
                    opened = self._open(kind, process)
                    measured.add(START, Sample(1, time.perf_counter() - begin_s, process.cpu_s))
                    measured.opened_s.append(opened.wall_s)
                    measured.look_at_memory("start", process)
                    process.run("close")

    def _read(self) -> None:
        sizes, shape = self._sizes, self._shape
        with ExitStack() as ending:
            processes = {kind: ending.enter_context(closing(self._process(kind))) for kind in self._measured}
            for kind, process in processes.items():
                self._open(kind, process)
                process.run("settle")
            for what, (command, words) in READS.items():
                for number in range(WARM_ROUNDS + sizes.rounds):
                    count = sizes.reads if what == UNITS else sizes.reads // shape.entries
                    place = {"seed": self._seed + number} if what == UNITS else {"first": number * count}
                    for kind, process in processes.items():
                        sample = process.run(command, count=count, **place, **words)
                        if number >= WARM_ROUNDS:
                            self._measured[kind].add(what, sample)
            for kind, process in processes.items():
                self._measured[kind].look_at_memory("reads", process)
                process.run("close")

    def _full_memory(self) -> AbstractContextManager[int]:
        """Fill the memory with pages of a file, including the memory that earlier stores have left free."""
        if not self._sizes.fills_page_cache:
            return nullcontext(0)
        return full_page_cache(self._directory, kept_free_on_disk=2 * _needed_bytes(self._sizes, self._shape))

    def _process(self, kind: StoreKind) -> StoreProcess:
        return StoreProcess(kind, self._directory / kind.name / "home")

    def _root(self, kind: StoreKind) -> Path:
        return self._directory / kind.name / "store"

    def _open(self, kind: StoreKind, process: StoreProcess) -> Sample:
        shape = self._shape
        return process.run("open", root=self._root(kind), queues=shape.queues, entries=shape.entries, body=BODY_SIZE)

    def _warm(self, kind: StoreKind, process: StoreProcess) -> None:
        """Warm up on a store that is thrown away, until it gets no faster: RocketMQ is compiled while it runs."""
        scratch, count = self._directory / kind.name / "warm", self._sizes.warm_appends
        process.run("open", root=scratch, queues=WARM_QUEUES, entries=1, body=BODY_SIZE)
        fastest, number, fastest_at = 0.0, 0, 0
        while number - fastest_at < WARM_PORTIONS_IN_VAIN and number < WARM_PORTIONS_MAX:
            sample = process.run("append", first=number * count, count=count)
            number += 1
            if sample.done / sample.wall_s > fastest * WARM_STEP:
                fastest, fastest_at = sample.done / sample.wall_s, number
        process.run("close")
        shutil.rmtree(scratch)

    def _case(self, what: str, peer: StoreKind) -> Case:
        shape, ours, theirs = self._shape, self._measured[OURS], self._measured[peer]
        details: dict[str, object] = {"queues": shape.queues, "entries": shape.entries}
        if what in shape.targets:
            details["target"] = shape.targets[what]
        if what == START:
            details |= {**ours.start_times(""), **theirs.start_times("peer_")}
        if what == APPEND:
            details["page_cache_filled_mb"] = self._filled // MB
            details |= {"facts": ours.facts, "peer_facts": theirs.facts, "facts_ratio": _ratios(ours, theirs)}
            if MEMORY in shape.targets:
                details["memory_target"] = shape.targets[MEMORY]
        return Case(
            name=f"{shape.queues:,} queues: {what}",
            unit={APPEND: "messages", START: "starts"}.get(what, "entries"),
            peer=peer.value,
            ours=ours.samples[what],
            theirs=theirs.samples[what],
            details={**details, "load_1m": round(os.getloadavg()[0], 1)},
        )


def _let_rest(processes: Iterable[StoreProcess]) -> None:
    """Wait until both stores are idle, so that the next sample does not pay for pending compactions and writes."""
    wait_until_at_rest([each.pid for each in processes], look_s=0.25, cpu_share=RESTING_CPU_SHARE, timeout_s=60.0)


def _ratios(ours: Measured, theirs: Measured) -> dict[str, float]:
    """Return the ratios of the facts; less is better."""
    return {name: round(fact / theirs.facts[name], 4) for name, fact in ours.facts.items()}
