"""Measures whether sends are delayed while half of all consume queue entries leave RocksDB.

A broker in its own process runs on a store with very many light queues of ten entries each, of which the first five
belong to messages past their retention. Connections send 1 KiB messages, one call at a time on each. After a quiet
stretch the old segments expire on request; the measured stretch lasts until the queues are clean and the tables
rewritten. Another quiet stretch follows. Then the store is opened and every entry is checked.

The target is at most 60 s on two cores, at most twice the 99th percentile, and at least 45 % fewer bytes in tables.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from typing import Final

from bench.harness import Case, Options, Scale, require_room
from bench.peers.quarry import Quarry
from bench.scratch_store import TOPIC, make_messages
from bench.send_load import (
    await_stats,
    disturbed,
    expire_segments,
    percentiles,
    stats,
)
from quarry_mq.kv import KeyRange
from quarry_mq.kv.options import MIB
from quarry_mq.protocol.clock import ManualClock
from quarry_mq.protocol.messages.property_names import LIGHT_QUEUES
from quarry_mq.store.consumequeue import open_consume_queue_engine
from quarry_mq.store.consumequeue.rocks_layout import ENTRIES_FAMILY, parse_entry_key, topic_range
from quarry_mq.store.fs import PosixDisk
from quarry_mq.store.message import Message
from quarry_mq.store.opening.open_store import OpenStore, open_store
from quarry_mq.store.settings import Durability, StoreSettings

QUESTION: Final = "How much longer do sends take while half of the entries of a million queues leave RocksDB?"
CLIENTS: Final = 64
DAYS_AGO_MS: Final = 10 * 86_400_000
NAMES_PER_MESSAGE: Final = 1_000
"""Light queues that one message goes to: more do not fit into its properties."""

LIGHT: Final = "%LMQ%"
ENTRIES: Final = 10
"""Entries of each queue; the first half expires."""

FILLER_BODY: Final = 256 * 1024
TABLE_BYTES: Final = 'quarry_rocksdb_table_bytes{database="queues",family="default"}'
ALL: Final = KeyRange(b"", None)


@dataclass(frozen=True, slots=True)
class Sizes:
    """Sizes by scale.

    `quiet_s` is the length of a stretch without a sweep, `requests` the most sends of one connection.
    """

    queues: int
    segment_size: int
    quiet_s: float
    requests: int


SIZES: Final = {
    Scale.FULL: Sizes(queues=1_000_000, segment_size=64 * MIB, quiet_s=20, requests=40_000),
    Scale.QUICK: Sizes(queues=100_000, segment_size=16 * MIB, quiet_s=5, requests=10_000),
    Scale.TINY: Sizes(queues=2_000, segment_size=4 * MIB, quiet_s=0.5, requests=3_000),
}


def run(options: Options) -> list[Case]:
    sizes = SIZES[options.scale]
    require_room(options.scratch, sizes.queues * 8192)
    with closing(Quarry(options.scratch / "quarry", Durability.SYNC)) as broker:
        _fill(broker.store, Random(options.seed), sizes)
        broker.start()
        case = _case(broker, Random(options.seed), sizes)
    bytes_before, bytes_after = case.details["table_bytes_before"], _check(broker.store, sizes)
    assert isinstance(bytes_before, int)
    fewer = {"table_bytes_after": bytes_after, "fewer_bytes": round(1 - bytes_after / bytes_before, 3)}
    return [replace(case, details={**case.details, **fewer})]


def _fill(root: Path, random: Random, sizes: Sizes) -> None:
    """Write the old half, up to a little beyond the end of a segment, then the new half, all in few tables."""
    clock = ManualClock(time.time_ns() // 1_000_000 - DAYS_AGO_MS)
    settings = StoreSettings(root=root, segment_size=sizes.segment_size, cached_queues_max=4 * sizes.queues)
    store = open_store(settings, disk=PosixDisk(), clock=clock, report=lambda _: None)
    template = make_messages(random, 1)[0]._replace(topic="lights", body=b"")
    for number in range(ENTRIES):
        if number == ENTRIES // 2:
            beyond = (store.messages.appended_up_to // sizes.segment_size + 1) * sizes.segment_size
            while store.messages.appended_up_to <= beyond:
                _append(store, [template._replace(topic="filler", body=bytes(FILLER_BODY))])
            clock.advance(DAYS_AGO_MS / 1000)
        for message in _to_all_queues(template, sizes.queues, random):
            _append(store, [message])
    engine = store.queues.engine
    assert engine is not None
    store.messages.flush_queues()
    engine.compact(engine.family(ENTRIES_FAMILY), ALL)
    store.close()


def _append(store: OpenStore, messages: list[Message]) -> None:
    store.messages.append(messages)
    store.messages.dispatch(store.messages.appended_up_to)


def _to_all_queues(template: Message, queues: int, random: Random) -> Iterator[Message]:
    """Yield messages with one entry for each queue, shuffled: neighbouring queues seldom get the same message."""
    numbers = list(range(queues))
    random.shuffle(numbers)
    for begin in range(0, queues, NAMES_PER_MESSAGE):
        names = ",".join(f"{LIGHT}{number:08d}" for number in numbers[begin : begin + NAMES_PER_MESSAGE])
        yield template._replace(properties={**template.properties, LIGHT_QUEUES: names})


def _case(broker: Quarry, random: Random, sizes: Sizes) -> Case:
    bytes_before: list[float] = []

    def expire() -> None:
        bytes_before.append(stats(broker)[TABLE_BYTES])
        _expire(broker)

    load = disturbed(broker, random, expire, clients=CLIENTS, requests=sizes.requests, quiet_s=sizes.quiet_s)
    seen = stats(broker)
    rewrite = {when: seen[f'quarry_queue_table_rewrite_bytes{{when="{when}"}}'] for when in ("before", "after")}
    return Case(
        name=f"{ENTRIES // 2} of {ENTRIES} entries of {sizes.queues} queues go, {CLIENTS} clients send",
        unit="messages",
        peer="the same load without a round",
        ours=load.ours,
        theirs=load.theirs,
        details={
            "total_s": round(load.during.sample.wall_s, 2),
            "round_s": round(seen["quarry_queue_cleaning_seconds_sum"], 2),
            "rewrite_s": round(seen["quarry_queue_table_rewrite_seconds_sum"], 2),
            "entries_gone": int(seen["quarry_queue_entries_removed_total"]),
            "table_bytes_before": int(bytes_before[0]),
            "table_bytes_with_deletions": int(rewrite["before"]),
            "table_bytes_after_with_sends": int(rewrite["after"]),
            **percentiles(quiet=load.quiet, round=load.during),
            "p99_ratio": load.p99_ratio,
            "load_1m_after": round(os.getloadavg()[0], 1),
        },
    )


def _expire(broker: Quarry) -> None:
    """Let the old segments expire, and wait until the queues are clean and the tables rewritten.

    The rewrite is requested, because a fast broker may have stored so much meanwhile that the expired share is too
    small.
    """
    if not expire_segments(broker, rewrite_queues=True):
        raise RuntimeError("no segment expired")
    await_stats(broker, lambda seen: seen["quarry_queue_table_rewrite_seconds_count"] > 0)


def _check(root: Path, sizes: Sizes) -> int:
    """Check that exactly the new half is left, and every other entry is gone. Returns the bytes of its tables."""
    engine = open_consume_queue_engine(root / "consumequeue_rocksdb", create=False)
    left = [0] * sizes.queues
    for key, _ in engine.family(ENTRIES_FAMILY).iterate(ALL):
        queue, offset = parse_entry_key(key)
        if not queue.topic.startswith(LIGHT):
            continue
        if offset < ENTRIES // 2:
            raise RuntimeError(f"entry {offset} of {queue.topic} is still there")
        left[int(queue.topic.removeprefix(LIGHT))] += 1
    wrong = sum(count != ENTRIES - ENTRIES // 2 for count in left)
    if wrong:
        raise RuntimeError(f"{wrong} queues have lost entries")
    batch = engine.batch()
    batch.delete_range(engine.family(ENTRIES_FAMILY), topic_range(TOPIC))  # what the load has added meanwhile
    engine.write(batch)
    engine.compact(engine.family(ENTRIES_FAMILY), ALL)
    table_bytes = engine.statistics()[f"{ENTRIES_FAMILY}.table_bytes"]
    engine.close()
    return table_bytes
