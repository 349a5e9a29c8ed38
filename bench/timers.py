"""Measures what a million delayed messages cost while they wait, and how late they are delivered.

A store has very many delayed messages that are due hours later, and some that are due at a steady rate soon after the
broker's start. The memory of a broker on it is compared with that of a broker on an empty store. When all of the early
messages are delivered, the broker stops, and the store is read: each copy has the time at which it was stored and the
time at which it was due. The peer is the rate at which they were due: a ratio of 1 means no backlog.

The targets: a timer takes no memory, and messages come in the order of their times, at most 200 ms late at 5,000 per
second.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from random import Random
from typing import Final

from bench.harness import Case, Options, Sample, Scale, cpu_s_of, private_bytes_of, require_room
from bench.peers.quarry import Quarry
from bench.scratch_store import QUEUES, SEGMENT_SIZE, TOPIC, make_messages
from bench.send_load import stats
from quarry_mq.kv.options import MIB
from quarry_mq.protocol.clock import SystemClock
from quarry_mq.protocol.messages.property_names import DELIVER_AT_MS
from quarry_mq.server.pending.copies import scheduled
from quarry_mq.store.fs import PosixDisk
from quarry_mq.store.message import Message, QueueId
from quarry_mq.store.metadata import Topic, TopicType
from quarry_mq.store.opening.open_store import OpenStore, open_store
from quarry_mq.store.settings import Durability, StoreSettings

QUESTION: Final = "What do a million delayed messages cost while they wait, and how late are they at 5,000 per second?"
BODY_SIZE: Final = 128
MESSAGES_PER_CALL: Final = 64
FAR_MS: Final = 10 * 3_600_000
LATE_COUNT: Final = "quarry_delayed_message_late_seconds_count"
GIVE_UP_S: Final = 120.0
DISK_BYTES_EACH: Final = 2048


@dataclass(frozen=True, slots=True)
class Sizes:
    """Sizes by scale: `waiting` are due hours later; `due` at `per_second`, from `ahead_s` after the last was stored.

    A broker's memory is measured `settle_s` after its start.
    """

    waiting: int
    due: int
    per_second: int
    ahead_s: float
    settle_s: float = 3.0


SIZES: Final = {
    Scale.FULL: Sizes(waiting=1_000_000, due=150_000, per_second=5_000, ahead_s=30),
    Scale.QUICK: Sizes(waiting=100_000, due=25_000, per_second=5_000, ahead_s=15),
    Scale.TINY: Sizes(waiting=2_000, due=500, per_second=500, ahead_s=6, settle_s=0.2),
}


def run(options: Options) -> list[Case]:
    sizes = SIZES[options.scale]
    needed = (sizes.waiting + 2 * sizes.due) * DISK_BYTES_EACH + 2 * SEGMENT_SIZE
    require_room(options.scratch, needed)
    empty_bytes = _private_bytes_of_an_empty_broker(options.scratch / "empty", sizes.settle_s)
    with closing(Quarry(options.scratch / "quarry", Durability.ASYNC)) as broker:
        first_due_ms = _fill(broker.store, Random(options.seed), sizes)
        broker.start()
        time.sleep(sizes.settle_s)
        waiting_bytes = private_bytes_of(broker.pid)
        sample = _deliver(broker, first_due_ms, sizes)
    late_ms, in_order = _look(broker.store, sizes)
    case = Case(
        name=f"{sizes.due} due at {sizes.per_second} per second, {sizes.waiting} wait",
        unit="messages",
        peer="the rate at which they are due",
        ours=[sample],
        theirs=[Sample(sizes.due, sizes.due / sizes.per_second, sample.cpu_s)],
        details={
            "waiting": sizes.waiting,
            "private_mib_more_than_empty": round((waiting_bytes - empty_bytes) / MIB, 1),
            "bytes_each": round((waiting_bytes - empty_bytes) / sizes.waiting, 1),
            "late_p50_ms": late_ms[len(late_ms) // 2],
            "late_p99_ms": late_ms[int(len(late_ms) * 0.99)],
            "late_max_ms": late_ms[-1],
            "in_order": in_order,
        },
    )
    return [case]


def _private_bytes_of_an_empty_broker(directory: Path, settle_s: float) -> int:
    with closing(Quarry(directory, Durability.ASYNC)) as broker:
        broker.start()
        time.sleep(settle_s)
        return private_bytes_of(broker.pid)


def _fill(root: Path, random: Random, sizes: Sizes) -> int:
    """Store all messages as sends would; return when the first is due."""
    settings = StoreSettings(root=root, durability=Durability.ASYNC, segment_size=SEGMENT_SIZE)
    store = open_store(settings, disk=PosixDisk(), clock=SystemClock(), report=lambda _: None)
    store.topics.create(Topic(TOPIC, TopicType.DELAY, QUEUES, QUEUES))
    [template, *_] = make_messages(random, 1, body_sizes=range(BODY_SIZE, BODY_SIZE + 1))
    now_ms = time.time_ns() // 1_000_000
    far = (now_ms + FAR_MS + random.randrange(FAR_MS) for _ in range(sizes.waiting))
    _append(store, template, far)
    first_due_ms = time.time_ns() // 1_000_000 + int(sizes.ahead_s * 1000)
    soon = [first_due_ms + number * 1000 // sizes.per_second for number in range(sizes.due)]
    random.shuffle(soon)
    _append(store, template, iter(soon))
    store.messages.dispatch(store.messages.flush())
    store.close()
    return first_due_ms


def _append(store: OpenStore, template: Message, times_ms: Iterator[int]) -> None:
    number = 0
    while some := list(islice(times_ms, MESSAGES_PER_CALL)):
        messages = []
        for due_ms in some:
            number += 1
            properties = {**template.properties, "UNIQ_KEY": f"{due_ms:016X}{number:018X}", DELIVER_AT_MS: str(due_ms)}
            message = template._replace(queue_number=number % QUEUES, properties=properties)
            messages.append(scheduled(message, due_ms))
        store.messages.append(messages)


def _deliver(broker: Quarry, first_due_ms: int, sizes: Sizes) -> Sample:
    """Measure from the time when the first is due until all are delivered."""
    if time.time_ns() // 1_000_000 > first_due_ms:
        raise RuntimeError("the first was due before the broker was ready")
    time.sleep(max(0.0, first_due_ms / 1000 - time.time()))
    began_s, cpu_s = time.perf_counter(), cpu_s_of(broker.pid)
    while stats(broker)[LATE_COUNT] < sizes.due:
        if time.perf_counter() - began_s > sizes.due / sizes.per_second + GIVE_UP_S:
            raise RuntimeError(f"{stats(broker)[LATE_COUNT]:.0f} of {sizes.due} were delivered")
        time.sleep(0.05)
    return Sample(sizes.due, time.perf_counter() - began_s, cpu_s_of(broker.pid) - cpu_s)


def _look(root: Path, sizes: Sizes) -> tuple[list[int], bool]:
    """Return how late each was stored in its topic, ascending, and whether all queues have them in the order of times.

    Raises RuntimeError when one is missing, came twice or came early.
    """
    settings = StoreSettings(root=root, durability=Durability.ASYNC, segment_size=SEGMENT_SIZE)
    store = open_store(settings, disk=PosixDisk(), clock=SystemClock(), report=lambda _: None)
    late_ms: list[int] = []
    ids: set[str] = set()
    in_order = True
    for number in range(QUEUES):
        queue = QueueId(TOPIC, number)
        bounds = store.messages.bounds(queue)
        before_ms = 0
        for entry in store.messages.entries(queue, bounds.minimum, bounds.maximum):
            record = store.messages.read(entry)
            due_ms = int(record.properties[DELIVER_AT_MS])
            late_ms.append(record.store_timestamp_ms - due_ms)
            ids.add(record.properties["UNIQ_KEY"])
            in_order &= due_ms >= before_ms
            before_ms = due_ms
    store.close()
    if not len(ids) == len(late_ms) == sizes.due:
        raise RuntimeError(f"{len(late_ms)} copies of {len(ids)} messages were delivered, {sizes.due} were due")
    if min(late_ms) < 0:
        raise RuntimeError(f"one came {-min(late_ms)} ms early")
    return sorted(late_ms), in_order
