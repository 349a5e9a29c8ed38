"""Measures the cost of reading consume queue entries, with few queues and with very many.

Single entries at random (a receive of a light queue) and ranges of 32 (a receive of a busy one) are read from a
database that was flushed, closed and opened again; without the native part, and with it. The peer is rocksdict itself
on the same open database: bare gets and bare iteration of the same keys, whose bytes are not decoded. The ratio says
what is left after bounds, decoding and the check of every short scan for damage.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from random import Random
from typing import Any, Final

from bench.harness import Case, Options, Sample, Scale, alternate, measure
from bench.peers.queue_store import read_ahead
from quarry_mq.kv.rocks import RocksEngine
from quarry_mq.store.consumequeue import RocksConsumeQueues, open_consume_queue_engine
from quarry_mq.store.consumequeue.rocks_layout import ENTRIES_FAMILY, entry_key
from quarry_mq.store.message import DispatchRequest, PhysicalOffset, QueueId, QueueOffset
from quarry_mq.store.native import NATIVE, Native

QUESTION: Final = "How fast are consume queue entries read, from a thousand queues and from a hundred thousand?"
RANGE: Final = 32
QUEUES_PER_TOPIC: Final = 8
ENTRIES_PER_PUT: Final = 512
_RECORD_SIZE: Final = 1280
_STORED_AT_MS: Final = 1_700_000_000_000


@dataclass(frozen=True, slots=True)
class Shape:
    """The distribution of the entries."""

    queues: int
    entries_per_queue: int


@dataclass(frozen=True, slots=True)
class Sizes:
    shapes: tuple[Shape, ...]
    reads: int
    rounds: int


SIZES: Final = {
    Scale.FULL: Sizes((Shape(1_000, 256), Shape(100_000, 4)), reads=10_000, rounds=5),
    Scale.QUICK: Sizes((Shape(1_000, 64), Shape(20_000, 4)), reads=3_000, rounds=3),
    Scale.TINY: Sizes((Shape(8, 40), Shape(32, 4)), reads=20, rounds=1),
}

Place = tuple[QueueId, QueueOffset]


def run(options: Options) -> list[Case]:
    sizes = SIZES[options.scale]
    random = Random(options.seed)
    cases: list[Case] = []
    for shape in sizes.shapes:
        directory = options.scratch / f"{shape.queues}-queues"
        _write(directory, shape)
        with _open(directory) as engine:
            for native in (None,) if NATIVE is None else (None, NATIVE):
                cases += [_case(engine, shape, random, limit=limit, sizes=sizes, native=native) for limit in (1, RANGE)]
    return cases


def _case(
    engine: RocksEngine, shape: Shape, random: Random, *, limit: int, sizes: Sizes, native: Native | None
) -> Case:
    expected = min(limit, shape.entries_per_queue)
    queues = RocksConsumeQueues(engine, minimum_physical_offset=PhysicalOffset(0))
    if native is not None:
        queues.use(native)
        read_ahead(queues.warm)
    bare = engine.family(ENTRIES_FAMILY).native()

    def ours() -> Sample:
        places = places_of(random, shape, limit, sizes.reads)
        return measure(lambda: _checked(read_places(queues, places, limit), sizes.reads * expected))

    def peer() -> Sample:
        keys = [entry_key(*place) for place in places_of(random, shape, limit, sizes.reads)]
        read: Callable[[], int] = (lambda: _get(bare, keys)) if limit == 1 else (lambda: _iterate(bare, keys, expected))
        return measure(lambda: _checked(read(), sizes.reads * expected))

    samples = alternate(sizes.rounds, ours, peer)
    return Case(
        name=f"{shape.queues:,} queues, "
        + ("single entries" if limit == 1 else f"ranges of {expected}")
        + ("" if native is None else ", native part"),
        unit="entries",
        peer="rocksdict get" if limit == 1 else "rocksdict items",
        ours=samples[0],
        theirs=samples[1],
        details={
            "queues": shape.queues,
            "entries_per_queue": shape.entries_per_queue,
            "entries_per_read": expected,
            "reads_per_run": sizes.reads,
        },
    )


def places_of(random: Random, shape: Shape, limit: int, count: int) -> list[Place]:
    """Choose where to read: any queue, and any offset that is followed by as many entries as the queue can give."""
    starts = shape.entries_per_queue - min(limit, shape.entries_per_queue) + 1
    return [(queue_of(random.randrange(shape.queues)), QueueOffset(random.randrange(starts))) for _ in range(count)]


def read_places(queues: RocksConsumeQueues, places: Sequence[Place], limit: int) -> int:
    """Read up to `limit` entries from each place on; return how many were read."""
    entries = queues.entries
    return sum(len(entries(queue, offset, limit)) for queue, offset in places)


def _get(bare: Any, keys: Sequence[bytes]) -> int:
    get = bare.get
    return sum(get(key) is not None for key in keys)


def _iterate(bare: Any, keys: Sequence[bytes], limit: int) -> int:
    items = bare.items
    return sum(len(list(islice(items(from_key=key), limit))) for key in keys)


def _checked(found: int, expected: int) -> int:
    """Check that entries were read: a benchmark that reads nothing is fast."""
    if found != expected:
        raise RuntimeError(f"{found} entries were read, {expected} were written there")
    return found


# -- the database


def queue_of(number: int) -> QueueId:
    """Return a queue by its number, from 0 on."""
    topic, queue_number = divmod(number, QUEUES_PER_TOPIC)
    return QueueId(f"bench-topic-{topic:06d}", queue_number)


def requests_of(shape: Shape, turns: Iterable[int] | None = None) -> Iterator[DispatchRequest]:
    """Yield one message after the other in each queue in turn, as many producers at once would send them.

    `turns` are the numbers of the queues in the order in which they have their turns.
    """
    order = list(range(shape.queues) if turns is None else turns)
    at = 0
    for offset in range(shape.entries_per_queue):
        for number in order:
            topic, queue_number = queue_of(number)
            tags_code = number % 1_000
            yield DispatchRequest(
                topic,
                queue_number,
                QueueOffset(offset),
                PhysicalOffset(at),
                _RECORD_SIZE,
                tags_code,
                _STORED_AT_MS + at // 1_000,
                0,
                {},
                (),
            )
            at += _RECORD_SIZE


def _write(directory: Path, shape: Shape) -> None:
    with _open(directory) as engine:
        queues = RocksConsumeQueues(engine, minimum_physical_offset=PhysicalOffset(0))
        requests = requests_of(shape)
        while portion := list(islice(requests, ENTRIES_PER_PUT)):
            last = portion[-1]
            queues.put(portion, PhysicalOffset(last.physical_offset + last.size))
        queues.flush()


@contextmanager
def _open(directory: Path) -> Iterator[RocksEngine]:
    engine = open_consume_queue_engine(directory, create=not directory.exists())
    try:
        yield engine
    finally:
        engine.close()
