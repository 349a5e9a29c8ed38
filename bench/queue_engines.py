"""Measures consume queues on another engine than RocksDB, below the same contract (`kv.engine`).

Messages are put in rounds, to queues far apart, and then read: single entries, and ranges of up to 32. Ours is the
engine on RocksDB, the peer the one on LMDB (`bench/peers/lmdb_engine.py`), both below `RocksConsumeQueues`, in turns.
Written bytes are what the process hands to the kernel, with the compactions of RocksDB.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing
from itertools import islice
from pathlib import Path
from random import Random
from typing import Final

from bench.harness import Case, Options, Sample, Scale, alternate, measure, require_room
from bench.peers.lmdb_engine import LmdbEngine
from bench.scattered import scattered
from bench.unit_reads import RANGE, Place, Shape, Sizes, places_of, read_places, requests_of
from quarry_mq.kv import KeyValueEngine
from quarry_mq.store.consumequeue import RocksConsumeQueues, open_consume_queue_engine
from quarry_mq.store.consumequeue.rocks_layout import ENTRIES_FAMILY, OFFSET_FAMILY
from quarry_mq.store.message import PhysicalOffset

QUESTION: Final = "What do consume queues cost on LMDB in place of RocksDB?"
ROUND: Final = 64

SIZES: Final = {
    Scale.FULL: Sizes((Shape(1_000, 640), Shape(100_000, 10), Shape(1_000_000, 2)), reads=5_000, rounds=5),
    Scale.QUICK: Sizes((Shape(1_000, 80), Shape(20_000, 4)), reads=2_000, rounds=4),
    Scale.TINY: Sizes((Shape(10, 40), Shape(40, 4)), reads=20, rounds=2),
}


class _Subject:
    """Consume queues on one engine, and what they wrote."""

    def __init__(self, engine: KeyValueEngine, directory: Path, shape: Shape) -> None:
        self.directory = directory
        self.written_bytes = 0
        self._engine = engine
        self._queues = RocksConsumeQueues(
            engine, minimum_physical_offset=PhysicalOffset(0), cached_queues_max=2 * shape.queues
        )
        # queues that follow each other lie far apart
        self._requests = requests_of(shape, (scattered(number, shape.queues) for number in range(shape.queues)))

    def put(self, count: int) -> int:
        """Put the next messages, and flush them as a broker does from time to time."""
        before = _written_bytes()
        put = 0
        while portion := list(islice(self._requests, min(ROUND, count - put))):
            last = portion[-1]
            self._queues.put(portion, PhysicalOffset(last.physical_offset + last.size))
            put += len(portion)
        self._queues.flush()
        self.written_bytes += _written_bytes() - before
        return put

    def read(self, places: Sequence[Place], limit: int) -> int:
        return read_places(self._queues, places, limit)

    @property
    def stored_bytes(self) -> int:
        return sum(path.stat().st_blocks * 512 for path in self.directory.iterdir())


def run(options: Options) -> list[Case]:
    sizes = SIZES[options.scale]
    cases: list[Case] = []
    for shape in sizes.shapes:
        require_room(options.scratch, shape.queues * shape.entries_per_queue * 1_024)
        with ExitStack() as opened:
            rocks, lmdb = (options.scratch / f"{shape.queues}-{name}" for name in ("rocksdb", "lmdb"))
            engines: tuple[tuple[KeyValueEngine, Path], ...] = (
                (LmdbEngine(lmdb, (ENTRIES_FAMILY, OFFSET_FAMILY)), lmdb),  # first: it may be missing
                (open_consume_queue_engine(rocks, create=True), rocks),
            )
            peer, ours = (_Subject(opened.enter_context(closing(each)), path, shape) for each, path in engines)
            cases += _cases(ours, peer, shape, sizes, Random(options.seed))
    return cases


def _cases(ours: _Subject, peer: _Subject, shape: Shape, sizes: Sizes, random: Random) -> Iterator[Case]:
    entries = shape.queues * shape.entries_per_queue
    portion = entries // sizes.rounds
    puts = _samples(ours, peer, sizes, lambda: lambda subject: subject.put(portion), portion)
    sides = (("", ours), ("peer_", peer))
    yield Case(
        name=f"{shape.queues:,} queues, put",
        unit="entries",
        peer="LMDB",
        ours=puts[0],
        theirs=puts[1],
        details={
            **{f"{side}written_bytes": round(each.written_bytes / entries, 1) for side, each in sides},
            **{f"{side}stored_bytes": round(each.stored_bytes / entries, 1) for side, each in sides},
        },
    )
    for limit in (1, min(RANGE, shape.entries_per_queue)):

        def read(limit: int = limit) -> Callable[[_Subject], int]:
            places = places_of(random, shape, limit, sizes.reads)
            return lambda subject: subject.read(places, limit)

        reads = _samples(ours, peer, sizes, read, sizes.reads * limit)
        name = "single entries" if limit == 1 else f"ranges of {limit}"
        yield Case(name=f"{shape.queues:,} queues, {name}", unit="entries", peer="LMDB", ours=reads[0], theirs=reads[1])


def _samples(
    ours: _Subject, peer: _Subject, sizes: Sizes, prepared: Callable[[], Callable[[_Subject], int]], expected: int
) -> tuple[list[Sample], list[Sample]]:
    def sample(subject: _Subject) -> Sample:
        work = prepared()
        done = measure(lambda: work(subject))
        if done.done != expected:  # a benchmark that reads nothing is fast
            raise RuntimeError(f"{done.done} entries in place of {expected}")
        return done

    return alternate(sizes.rounds, lambda: sample(ours), lambda: sample(peer))


def _written_bytes() -> int:
    for line in Path("/proc/self/io").read_text().splitlines():
        if line.startswith("wchar:"):
            return int(line.split()[1])
    return 0
