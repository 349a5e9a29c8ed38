"""Measures whether sends are delayed while old segments are removed.

A broker in its own process, `sync`, runs on a store whose log holds twenty segments of 1 GiB that are past their
retention. Sixty-four connections send 1 KiB messages, one call at a time on each (`bench.raw_client`, which costs
little). After a quiet stretch the segments expire on request, all at once; the purge lasts until the last of their
files is gone, and another quiet stretch follows.

rmq#7799: the purge at four in the morning stalled the sends of all producers.
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
from bench.scratch_store import make_messages
from bench.send_load import (
    await_stats,
    disturbed,
    expire_segments,
    percentiles,
)
from quarry_mq.kv.options import MIB
from quarry_mq.protocol.clock import ManualClock
from quarry_mq.store.fs import PosixDisk
from quarry_mq.store.opening.open_store import open_store
from quarry_mq.store.settings import Durability, StoreSettings

QUESTION: Final = "How much longer do sends take while twenty old segments are removed?"
CLIENTS: Final = 64
DAYS_AGO_MS: Final = 10 * 86_400_000
FILLER_BODY: Final = 4 * MIB
"""Bytes of a body in old segments: their content does not matter, and small messages take minutes to write."""


@dataclass(frozen=True, slots=True)
class Sizes:
    """Sizes by scale.

    `quiet_s` is the length of a stretch without a purge, `requests` the most sends of one connection.
    """

    segment_size: int
    segments: int
    quiet_s: float
    requests: int


SIZES: Final = {
    Scale.FULL: Sizes(segment_size=1024 * MIB, segments=20, quiet_s=15, requests=20_000),
    Scale.QUICK: Sizes(segment_size=128 * MIB, segments=20, quiet_s=5, requests=10_000),
    Scale.TINY: Sizes(segment_size=16 * MIB, segments=3, quiet_s=0.5, requests=3_000),
}


def run(options: Options) -> list[Case]:
    sizes = SIZES[options.scale]
    needed = (sizes.segments + 3) * sizes.segment_size
    require_room(options.scratch, needed + needed // 2)
    with closing(Quarry(options.scratch / "quarry", Durability.SYNC)) as broker:
        _write_old_segments(broker.store, Random(options.seed), sizes)
        broker.start()
        return [_case(broker, Random(options.seed), sizes)]


def _write_old_segments(root: Path, random: Random, sizes: Sizes) -> None:
    clock = ManualClock(time.time_ns() // 1_000_000 - DAYS_AGO_MS)
    settings = StoreSettings(root=root, segment_size=sizes.segment_size)
    store = open_store(settings, disk=PosixDisk(), clock=clock, report=lambda _: None)
    body = random.randbytes(min(FILLER_BODY, sizes.segment_size // 8))
    filler = make_messages(random, 1)[0]._replace(topic="filler", body=body)
    while store.messages.appended_up_to <= sizes.segments * sizes.segment_size:
        store.messages.append([filler])
        if store.messages.appended_up_to - store.messages.flushed_up_to > 256 * MIB:
            store.messages.dispatch(store.messages.flush())
    store.close()


def _case(broker: Quarry, random: Random, sizes: Sizes) -> Case:
    load = disturbed(
        broker, random, partial(_purge, broker, sizes), clients=CLIENTS, requests=sizes.requests, quiet_s=sizes.quiet_s
    )
    return Case(
        name=f"{sizes.segments} segments of {sizes.segment_size // MIB} MiB go, {CLIENTS} clients send",
        unit="messages",
        peer="the same load without a purge",
        ours=load.ours,
        theirs=load.theirs,
        details={
            "purge_s": round(load.during.sample.wall_s, 2),
            "sends_per_flush": round(load.quiet.sends_per_flush, 1),
            "purge_sends_per_flush": round(load.during.sends_per_flush, 1),
            **percentiles(quiet=load.quiet, purge=load.during),
            "p99_ratio": load.p99_ratio,
        },
    )


def _purge(broker: Quarry, sizes: Sizes) -> None:
    """Let the old segments expire, and wait until the last of their files is gone."""
    expired = expire_segments(broker)
    if expired != sizes.segments:
        raise RuntimeError(f"{expired} segments expired instead of {sizes.segments}")
    await_stats(broker, lambda seen: seen["quarry_expired_bytes"] == 0)
