"""Measures the cost of delivering a message and taking its acknowledgement, without any network.

A receive of 32 messages, written at the end of its loop iteration; then 32 acknowledgements, written at the end of
theirs: the least a broker does per message with one busy consumer. Every round is a new group that reads the same
messages. The peer does only the storage work: one range read of the entries, the records copied out of the mapped log,
and in-flight rows of the same size written and deleted in the same kind of database.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from random import Random
from typing import Final

from bench.delivering import CLIENT, HandLoopedDelivery, fill, request_of
from bench.harness import Case, Options, Sample, Scale, alternate, measure
from bench.scratch_store import BODY_SIZE, QUEUES, TOPIC, scratch_store
from quarry_mq.kv import KeyRange, KeyValueEngine
from quarry_mq.store.consumequeue.rocks_layout import ENTRIES_FAMILY, ENTRY, entry_key
from quarry_mq.store.fs import PosixDisk
from quarry_mq.store.layout.paths import StorePaths, segment_name
from quarry_mq.store.message import PhysicalOffset, QueueId, QueueOffset
from quarry_mq.store.opening.open_store import OpenStore
from quarry_mq.store.settings import Durability
from quarry_mq.store.state.identity import INFLIGHT, OFFSETS, open_state_engine

QUESTION: Final = "How fast are stored 1 KiB messages handed out 32 at a time and acknowledged, without network?"
BATCH: Final = 32
INVISIBLE_MS: Final = 60_000


@dataclass(frozen=True, slots=True)
class Sizes:
    """Sizes by scale. `messages` are delivered and acknowledged per sample: whole batches of every queue."""

    messages: int
    rounds: int


SIZES: Final = {
    Scale.FULL: Sizes(messages=64 * BATCH * QUEUES, rounds=7),
    Scale.QUICK: Sizes(messages=16 * BATCH * QUEUES, rounds=3),
    Scale.TINY: Sizes(messages=BATCH * QUEUES, rounds=1),
}


def run(options: Options) -> list[Case]:
    sizes = SIZES[options.scale]
    root = options.scratch / "store"
    with scratch_store(root, Durability.ASYNC) as store:
        assert store.queues.engine is not None, "a new store keeps its queues in RocksDB"
        fill(store, Random(options.seed), sizes.messages, body_size=BODY_SIZE)
        with (
            closing(_Consumer(store)) as consumer,
            closing(_BareStorage(root, store.queues.engine, options.scratch / "bare")) as bare,
        ):
            ours, theirs = alternate(
                sizes.rounds,
                lambda: _sample(consumer.drain, sizes.messages),
                lambda: _sample(lambda: bare.drain(sizes.messages), sizes.messages),
            )
    case = Case(
        name=f"receive {BATCH}, acknowledge each",
        unit="messages",
        peer="same reads and rows, no rules",
        ours=ours,
        theirs=theirs,
        details={"messages_per_receive": BATCH, "messages_per_run": sizes.messages},
    )
    return [case]


def _sample(drain: Callable[[], int], expected: int) -> Sample:
    sample = measure(drain)
    if sample.done != expected:
        raise RuntimeError(f"{sample.done} messages were handed out, {expected} were stored")
    return sample


class _Consumer:
    """Receives and acknowledges as a new group each time."""

    def __init__(self, store: OpenStore) -> None:
        self._delivery = HandLoopedDelivery(store)
        self._groups = count()

    def drain(self) -> int:
        """Receive and acknowledge until no message is left; return how many there were."""
        group = f"bench-group-{next(self._groups)}"
        request = request_of(group, QUEUES, BATCH, INVISIBLE_MS)
        total = 0
        while delivered := self._delivery.receive(request):
            self._delivery.acknowledge(group, delivered)
            total += len(delivered)
        return total

    def close(self) -> None:
        self._delivery.close()


class _BareStorage:
    """The reads and writes of a drain, with no decision in between."""

    def __init__(self, root: Path, queue_engine: KeyValueEngine, directory: Path) -> None:
        segment = StorePaths(root).commit_log / segment_name(PhysicalOffset(0))
        self._log = PosixDisk().open_segment(segment, writable=False).view()
        self._entries = queue_engine.family(ENTRIES_FAMILY)
        self._engine = open_state_engine(directory, create=True)
        self._row = bytes(28) + CLIENT.encode()

    def drain(self, messages: int) -> int:
        total = 0
        for number in range(QUEUES):
            queue = QueueId(TOPIC, number)
            for start in range(0, messages // QUEUES, BATCH):
                total += self._batch(queue, start)
        return total

    def close(self) -> None:
        self._engine.close()

    def _batch(self, queue: QueueId, start: int) -> int:
        engine, log, row = self._engine, self._log, self._row
        inflight = engine.family(INFLIGHT)
        first, end = entry_key(queue, QueueOffset(start)), entry_key(queue, QueueOffset(start + BATCH))
        pairs = self._entries.scan(KeyRange(first, end), limit=BATCH)
        handed_out, done = engine.batch(), engine.batch()
        handed_out.put_all(inflight, [(key, row) for key, _ in pairs])
        for key, value in pairs:
            at, size, _, _ = ENTRY.unpack(value)
            bytes(log[at : at + size])
            done.delete(inflight, key)
        handed_out.put(engine.family(OFFSETS), first, bytes(8))
        engine.write(handed_out)
        engine.write(done)
        return len(pairs)
