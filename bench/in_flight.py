"""Measures what very many messages in flight cost their group.

The group receives and does not acknowledge, until that many are in flight: rows in RocksDB and nothing in memory. From
then on its receives and acknowledgements are compared with those of a group that has none in flight. Then delivery is
opened again, as after a restart.

A group with a million messages in flight has to work, and to restart.
"""

from __future__ import annotations

import gc
import os
import time
from contextlib import closing
from dataclasses import dataclass
from random import Random
from typing import Final

from bench.delivering import HandLoopedDelivery, fill, request_of
from bench.harness import Case, Options, Sample, Scale, measure, private_bytes_of
from bench.scratch_store import QUEUES, scratch_store
from quarry_mq.kv.options import MIB
from quarry_mq.server.delivery import Delivered
from quarry_mq.store.opening.open_store import OpenStore
from quarry_mq.store.settings import Durability

QUESTION: Final = (
    "What do a million messages in flight cost their group: memory, receives, acknowledgements, a restart?"
)
BATCH: Final = 32
INVISIBLE_MS: Final = 12 * 3_600_000
BODY_SIZE: Final = 32
LOADED: Final = "loaded"
PEER: Final = "a group with none in flight"
KEPT_MAX: Final = 100_000
"""Deliveries that are kept, so that they can be acknowledged."""


@dataclass(frozen=True, slots=True)
class Sizes:
    """Sizes by scale:

    `in_flight` before anything is measured; `messages` are received, then acknowledged, per sample.
    """

    in_flight: int
    messages: int
    rounds: int


SIZES: Final = {
    Scale.FULL: Sizes(in_flight=1_000_000, messages=256 * BATCH, rounds=7),
    Scale.QUICK: Sizes(in_flight=100_000, messages=64 * BATCH, rounds=3),
    Scale.TINY: Sizes(in_flight=2_000, messages=2 * BATCH, rounds=1),
}


def run(options: Options) -> list[Case]:
    sizes = SIZES[options.scale]
    with scratch_store(options.scratch / "store", Durability.ASYNC) as store:
        # each count is reached with a whole batch
        messages = sizes.in_flight + sizes.rounds * sizes.messages + (sizes.rounds + 1) * BATCH
        fill(store, Random(options.seed), messages, body_size=BODY_SIZE)
        with closing(HandLoopedDelivery(store)) as delivery:
            bytes_before = _private_bytes()
            began_s = time.perf_counter()
            _receive(delivery, LOADED, sizes.in_flight)
            filled_s = time.perf_counter() - began_s
            private_bytes = _private_bytes() - bytes_before
            receives, acknowledgements = _compare(delivery, sizes)
        details = {
            "in_flight": sizes.in_flight,
            "filled_per_second": round(sizes.in_flight / filled_s),
            "private_mib": round(private_bytes / MIB, 1),
            "bytes_each": round(private_bytes / sizes.in_flight, 1),
            **_open_again(store),
        }
    return [
        Case(
            name=f"receive {BATCH}", unit="messages", peer=PEER, ours=receives[0], theirs=receives[1], details=details
        ),
        Case(name="acknowledge", unit="messages", peer=PEER, ours=acknowledgements[0], theirs=acknowledgements[1]),
    ]


Samples = tuple[list[Sample], list[Sample]]


def _compare(delivery: HandLoopedDelivery, sizes: Sizes) -> tuple[Samples, Samples]:
    """Measure receives, then acknowledgements of these messages, in turns with a group that is new each time."""
    taken: dict[str, list[Delivered]] = {}
    groups = [f"bare-{number}" for number in range(sizes.rounds)]

    def receive(group: str) -> Sample:
        def work() -> int:
            taken[group] = _receive(delivery, group, sizes.messages)
            return len(taken[group])

        return measure(work)

    def acknowledge(group: str) -> Sample:
        def work() -> int:
            delivered = taken.pop(group)
            for at in range(0, len(delivered), BATCH):
                delivery.acknowledge(group, delivered[at : at + BATCH])
            return len(delivered)

        return measure(work)

    receives: Samples = ([], [])
    acknowledgements: Samples = ([], [])
    for group in groups:
        for samples, work in ((receives, receive), (acknowledgements, acknowledge)):
            for own, name in zip(samples, (LOADED, group), strict=True):
                own.append(work(name))
    return receives, acknowledgements


def _receive(delivery: HandLoopedDelivery, group: str, messages: int) -> list[Delivered]:
    """Receive that many messages. Raises RuntimeError when there are fewer."""
    request = request_of(group, QUEUES, BATCH, INVISIBLE_MS)
    taken: list[Delivered] = []
    count = 0
    while count < messages:
        delivered = delivery.receive(request)
        if not delivered:
            raise RuntimeError(f"{count} messages were handed out, not {messages}")
        count += len(delivered)
        if messages < KEPT_MAX:
            taken += delivered
    return taken


def _open_again(store: OpenStore) -> dict[str, float]:
    """Measure how long delivery takes to open as after a restart, and then until the group has its first answer."""
    began_s = time.perf_counter()
    with closing(HandLoopedDelivery(store)) as delivery:
        opened_s = time.perf_counter()
        delivery.receive(request_of(LOADED, QUEUES, BATCH, INVISIBLE_MS))
        answered_s = time.perf_counter()
    return {"open_s": round(opened_s - began_s, 3), "first_receive_s": round(answered_s - opened_s, 3)}


def _private_bytes() -> int:
    gc.collect()
    return private_bytes_of(os.getpid())
