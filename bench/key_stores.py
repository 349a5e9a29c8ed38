"""Compares the cost of keys in the tiered index, in RocketMQ's index files and in RocksDB.

Four stores, each in its own process (`bench.peers.key_stores`), take the same items (`bench.key_items`) in ten parts,
in turns; after each part the work that is otherwise done in the background is waited for. Then each is opened in a new
process and asked, in turns, typical questions: for a message by its id, with or without the time when it was sent, for
an order's sixteen messages, a customer's newest, and missing keys. An answer has positions of records; no record is
read. Page caches are warm, but for `cold`: there the kernel has dropped what it had cached of the files.

Last, the oldest tenth expires. The files of the tiered index are then uploaded to an object store on this machine, and
read there.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any, Final

from bench.harness import Case, Options, Sample, Scale, median_cpu_us, median_rate, require_room
from bench.key_items import ALL, BEGIN_MS, KeyColumns, KeyKind, Lookups
from bench.peers.key_stores import KeyStoreKind, KeyStoreProcess, KeyStoreSetup
from bench.peers.object_server import ObjectServer
from quarry_mq.kv.options import MIB
from quarry_mq.store.index.message_index import TIME_MAX_MS

QUESTION: Final = "What do keys cost in the tiered index, in RocketMQ's index files and in RocksDB?"
PARTS: Final = 10
ITEMS_PER_SLOT: Final = 4
"""Items per slot: the default of both kinds of files."""
COLD_PART: Final = 3
COLD_ROUND: Final = 1_000
"""Round number of the cold lookups, which ask for keys that were not asked for before."""
DISK_BYTES_EACH: Final = 250
MB: Final = 1_000_000


@dataclass(frozen=True, slots=True)
class Question:
    """A question for keys of `kind`, for the newest `limit`.

    With `with_time` it names the tenth that holds the message.
    """

    kind: KeyKind
    limit: int
    with_time: bool = False


QUESTIONS: Final = {
    "an id and its time": Question(KeyKind.ID, ALL, with_time=True),
    "an id": Question(KeyKind.ID, 1),
    "an order, newest 32": Question(KeyKind.ORDER, 32),
    "a customer, newest 32": Question(KeyKind.CUSTOMER, 32),
    "no such key": Question(KeyKind.MISSING, 1),
}
COLD: Final = ("an id and its time", "no such key")


@dataclass(frozen=True, slots=True)
class Sizes:
    """Sizes by scale: `lookups` per question and round, `cold` in all.

    The two sizes of RocksDB grow with the items, as its data does.
    """

    items: int
    lookups: int
    rounds: int
    cold: int
    cache_bytes: int
    memtable_bytes: int


SIZES: Final = {
    Scale.FULL: Sizes(20_000_000, lookups=300, rounds=5, cold=100, cache_bytes=64 * MIB, memtable_bytes=32 * MIB),
    Scale.QUICK: Sizes(1_000_000, lookups=100, rounds=3, cold=20, cache_bytes=4 * MIB, memtable_bytes=2 * MIB),
    Scale.TINY: Sizes(10_000, lookups=5, rounds=1, cold=2, cache_bytes=MIB, memtable_bytes=MIB),
}


@dataclass(slots=True)
class Measured:
    """The results of one kind of store. Memory, in MB, is the private memory that the store takes."""

    puts: list[Sample] = field(default_factory=list)
    all_work: list[Sample] = field(default_factory=list)
    """The samples of `puts` with the work that is done in the background."""
    found: dict[str, list[Lookups]] = field(default_factory=lambda: {name: [] for name in QUESTIONS})
    facts: dict[str, Any] = field(default_factory=dict)

    def all_facts(self) -> dict[str, Any]:
        return {
            "put_per_second": round(median_rate(self.puts)),
            "all_work_per_second": round(median_rate(self.all_work)),
            "all_work_cpu_us": round(median_cpu_us(self.all_work), 2),
            "lookups": {name: Lookups.joined(some).facts() for name, some in self.found.items()},
            **self.facts,
        }


def run(options: Options) -> list[Case]:
    return _Comparison(options).cases()


class _Comparison:
    def __init__(self, options: Options) -> None:
        self._sizes = sizes = SIZES[options.scale]
        self._scratch = options.scratch
        self._seed = options.seed
        require_room(options.scratch, sizes.items * DISK_BYTES_EACH)
        self._path = options.scratch / "messages.npy"
        self._columns = KeyColumns.make(self._path, options.seed, sizes.items)
        self._span_ms = self._columns.times_ms(sizes.items // PARTS, sizes.items)[0] - BEGIN_MS
        self._measured = {kind: Measured() for kind in KeyStoreKind}

    def cases(self) -> list[Case]:
        self._put()
        self._look_up()
        remote = self._look_up_uploaded()
        ours = self._measured[KeyStoreKind.TIERED]
        details: Mapping[str, object] = {
            "items": self._sizes.items,
            "stores": {kind.value: each.all_facts() for kind, each in self._measured.items()},
            "uploaded": remote,
            "load_1m": round(os.getloadavg()[0], 1),
        }
        cases = []
        for kind, theirs in self._measured.items():
            if kind is KeyStoreKind.TIERED:
                continue
            cases.append(
                Case(
                    name="put, and what follows in the background",
                    unit="items",
                    peer=kind.value,
                    ours=ours.all_work,
                    theirs=theirs.all_work,
                    details=details,
                )
            )
            for name in QUESTIONS:
                samples, peers = ([each.sample for each in store.found[name]] for store in (ours, theirs))
                cases.append(Case(name=f"find {name}", unit="lookups", peer=kind.value, ours=samples, theirs=peers))
            details = {}  # once is enough
        return cases

    def _put(self) -> None:
        part = self._sizes.items // PARTS
        with ExitStack() as ending:
            processes = {kind: ending.enter_context(closing(self._process(kind))) for kind in self._measured}
            for number in range(PARTS):
                for kind, process in processes.items():
                    put: Sample = process.run("put", number * part, (number + 1) * part)
                    finish: Sample = process.run("finish")
                    self._measured[kind].puts.append(put)
                    all_work = Sample(put.done, put.wall_s + finish.wall_s, put.cpu_s + finish.cpu_s)
                    self._measured[kind].all_work.append(all_work)
            for kind, process in processes.items():
                facts = self._measured[kind].facts
                facts["memory_mb_after_puts"] = round(process.run("private_bytes") / MB, 1)
                process.run("give_back")
        for kind, measured in self._measured.items():
            lengths, allocated = _disk_usage(self._scratch / kind.name)
            measured.facts["bytes_per_item"] = round(lengths / self._sizes.items, 2)
            measured.facts["allocated_bytes_per_item"] = round(allocated / self._sizes.items, 2)

    def _look_up(self) -> None:
        """Look up keys, and let the oldest tenth expire."""
        with ExitStack() as ending:
            processes = {kind: ending.enter_context(closing(self._process(kind))) for kind in self._measured}
            for number in range(self._sizes.rounds + 1):
                for name in QUESTIONS:
                    self._ask_all(processes, name, number)
            for kind, process in processes.items():
                facts = self._measured[kind].facts
                facts["memory_mb_after_lookups"] = round(process.run("private_bytes") / MB, 1)
                facts["cold"] = {name: self._ask(process, name, COLD_ROUND, COLD_PART, cold=True) for name in COLD}
                facts["expire_s"], facts["give_back_s"] = self._expire(process)
                lengths, _ = _disk_usage(self._scratch / kind.name)
                facts["bytes_per_item_after_expiry"] = round(lengths / self._sizes.items, 2)

    def _ask_all(self, processes: Mapping[KeyStoreKind, KeyStoreProcess], name: str, number: int) -> None:
        """Ask all stores one question; the first round warms up."""
        part = PARTS - 1 - number % PARTS
        found = {kind: self._ask(process, name, number, part) for kind, process in processes.items()}
        if len({lookups.items for lookups in found.values()}) > 1 and not QUESTIONS[name].with_time:
            raise RuntimeError(f"{name}: {[(kind.value, lookups.items) for kind, lookups in found.items()]}")
        for kind, lookups in found.items() if number else ():
            self._measured[kind].found[name].append(lookups)

    def _expire(self, process: KeyStoreProcess) -> tuple[float, float]:
        """Return how long it takes until the oldest tenth is not found any more, and then until its space is free."""
        expired: Sample = process.run("expire", self._sizes.items // PARTS)
        gone: Sample = process.run("give_back")
        return round(expired.wall_s, 4), round(gone.wall_s, 4)

    def _look_up_uploaded(self) -> dict[str, object]:
        """Look up keys in the tiered index with all files but the newest in the object store."""
        with (
            closing(ObjectServer(self._scratch / "objects")) as server,
            closing(self._process(KeyStoreKind.TIERED, server)) as process,
        ):
            process.run("finish")
            asked = {name: self._ask(process, name, COLD_ROUND, COLD_PART) for name in QUESTIONS}
            return {name: lookups.facts() for name, lookups in asked.items()}

    def _ask(self, process: KeyStoreProcess, name: str, round_number: int, part: int, *, cold: bool = False) -> Any:
        """Ask about keys of one part; a question without time is about all parts."""
        asked, size = QUESTIONS[name], self._sizes.items // PARTS
        begin, end = (part * size, (part + 1) * size) if asked.with_time else (size, self._sizes.items)
        times_ms = self._columns.times_ms(begin, end) if asked.with_time else (0, TIME_MAX_MS)
        count = self._sizes.cold if cold else self._sizes.lookups
        texts = self._columns.some(asked.kind, begin, end, count, Random(f"{self._seed} {round_number}"))
        return process.run("look_up_cold" if cold else "look_up", texts, *times_ms, asked.limit)

    def _process(self, kind: KeyStoreKind, server: ObjectServer | None = None) -> KeyStoreProcess:
        sizes = self._sizes
        setup = KeyStoreSetup(
            root=self._scratch / kind.name,
            columns=self._path,
            slots=sizes.items // PARTS // ITEMS_PER_SLOT,
            items_per_file=sizes.items // PARTS,
            span_ms=self._span_ms,
            cache_bytes=sizes.cache_bytes,
            memtable_bytes=sizes.memtable_bytes,
            objects_url=None if server is None else server.url,
            objects_options=() if server is None else tuple(server.options.items()),
        )
        return KeyStoreProcess(kind, setup)


def _disk_usage(root: Path) -> tuple[int, int]:
    """Return the lengths and allocated bytes of all files."""
    statuses = [path.stat() for path in root.rglob("*") if path.is_file()]
    return sum(each.st_size for each in statuses), sum(each.st_blocks * 512 for each in statuses)
