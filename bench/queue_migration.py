"""Measures whether sends are delayed while a store goes from queue files to RocksDB.

A broker in its own process, `sync`, runs on a store that keeps its consume queues in files. Sixty-four connections send
1 KiB messages, one call at a time on each. Between quiet stretches an operator takes the steps of a migration. Measured
are the backfill of all earlier messages, at the default rate, and the comparison of every entry.
"""

from __future__ import annotations

import time
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from random import Random
from typing import Final

from bench.harness import Case, Options, Scale, require_room
from bench.peers.quarry import Quarry
from bench.raw_client import RawClient, make_requests
from bench.scratch_store import make_messages
from bench.send_load import SendLoad, admin_channel, beside, percentiles, send_body
from bench.waiting_sends import PATH, after
from quarry_mq.kv.options import MIB
from quarry_mq.protocol.clock import SystemClock
from quarry_mq.protocol.proto.quarry.admin.v1 import migration_pb2 as pb
from quarry_mq.protocol.proto.quarry.admin.v1.migration_pb2_grpc import MigrationServiceStub
from quarry_mq.store.fs import PosixDisk
from quarry_mq.store.layout.queue_phase import QueueMode
from quarry_mq.store.opening.open_store import open_store
from quarry_mq.store.settings import Durability, StoreSettings

QUESTION: Final = "How much longer do sends take while a store goes from queue files to RocksDB?"
CLIENTS: Final = 64
QUEUES_PER_TOPIC: Final = 8
MESSAGES_PER_APPEND: Final = 256
STEP_TIMEOUT_S: Final = 1_800.0
LOOK_INTERVAL_S: Final = 0.1


@dataclass(frozen=True, slots=True)
class Sizes:
    """Sizes by scale. `quiet_s` is the length of each quiet stretch, `requests` the most sends of one connection."""

    topics: int
    messages: int
    quiet_s: float
    requests: int


SIZES: Final = {
    Scale.FULL: Sizes(topics=250, messages=2_000_000, quiet_s=20, requests=120_000),
    Scale.QUICK: Sizes(topics=50, messages=200_000, quiet_s=5, requests=20_000),
    Scale.TINY: Sizes(topics=2, messages=2_000, quiet_s=0.5, requests=3_000),
}


def run(options: Options) -> list[Case]:
    sizes = SIZES[options.scale]
    require_room(options.scratch, 4 * sizes.messages * 1024)
    with closing(Quarry(options.scratch / "quarry", Durability.SYNC)) as broker:
        _fill(broker.store, Random(options.seed), sizes)
        broker.start()
        return [_case(broker, Random(options.seed), sizes)]


def _fill(root: Path, random: Random, sizes: Sizes) -> None:
    settings = StoreSettings(root=root, queue_mode=QueueMode.FILE, segment_size=256 * MIB)
    store = open_store(settings, disk=PosixDisk(), clock=SystemClock(), report=lambda _: None)
    templates = make_messages(random, QUEUES_PER_TOPIC)
    for begin in range(0, sizes.messages, MESSAGES_PER_APPEND):
        numbers = range(begin, min(begin + MESSAGES_PER_APPEND, sizes.messages))
        store.messages.append(
            [
                templates[number % QUEUES_PER_TOPIC]._replace(
                    topic=f"history-{number // QUEUES_PER_TOPIC % sizes.topics}"
                )
                for number in numbers
            ]
        )
        store.messages.dispatch(store.messages.appended_up_to)
    store.close()


def _case(broker: Quarry, random: Random, sizes: Sizes) -> Case:
    with closing(RawClient(broker.endpoint, CLIENTS)) as client:
        load = SendLoad(broker, client, make_requests(random, PATH, send_body(random), 0, sizes.requests))
        load.until(after(sizes.quiet_s / 3))  # topic and files are made, code is warm
        in_files = load.until(after(sizes.quiet_s))
        with beside(partial(_advance, broker, "double_write")) as is_over:
            load.until(is_over)
        in_both = load.until(after(sizes.quiet_s))
        with beside(partial(_advance, broker, "backfilling")) as is_over:
            backfill = load.until(is_over)
        with beside(partial(_advance, broker, "verified")) as is_over:
            comparison = load.until(is_over)
        in_both_after = load.until(after(sizes.quiet_s))
        load.check()
    quiet = in_both.joined(in_both_after)
    return Case(
        name=f"{sizes.messages} messages of {sizes.topics * QUEUES_PER_TOPIC} queues go over, {CLIENTS} clients send",
        unit="messages",
        peer="the same load with nothing to bring over",
        ours=[backfill.sample, comparison.sample],
        theirs=[in_both.sample, in_both_after.sample],
        details={
            "backfill_s": round(backfill.sample.wall_s, 2),
            "comparison_s": round(comparison.sample.wall_s, 2),
            "double_write_rate_ratio": round(quiet.sample.per_second / in_files.sample.per_second, 3),
            **percentiles(files=in_files, quiet=quiet, backfill=backfill, comparison=comparison),
            "backfill_p99_ratio": round(backfill.percentile_ms(0.99) / quiet.percentile_ms(0.99), 2),
            "comparison_p99_ratio": round(comparison.percentile_ms(0.99) / quiet.percentile_ms(0.99), 2),
        },
    )


def _advance(broker: Quarry, phase: str) -> None:
    """Take the step to a phase, and wait until it is reached and its work is done."""
    give_up_s = time.monotonic() + STEP_TIMEOUT_S
    with admin_channel(broker) as channel:
        stub = MigrationServiceStub(channel)
        stub.AdvanceMigration(pb.AdvanceMigrationRequest(asked_by="bench"))
        while time.monotonic() < give_up_s:
            seen = stub.GetMigration(pb.GetMigrationRequest())
            if any(seen.report.differences.values()):
                raise RuntimeError(f"files and RocksDB differ: {dict(seen.report.differences)}")
            if seen.phase == phase and seen.HasField("advance_to") and not seen.HasField("comparing"):
                return
            time.sleep(LOOK_INTERVAL_S)
    raise RuntimeError(f"the phase {phase} is not reached: {seen}")
