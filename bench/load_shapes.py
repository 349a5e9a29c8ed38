"""Compares Quarry with RocketMQ under loads of other shapes: other sizes, more clients, batches, both directions.

Both servers answer at once (`async`, ASYNC_FLUSH) and are loaded in turns. The official Java client makes the loads
that it can: messages of other sizes with a number in flight (above 4 KiB it compresses them, which takes most of its
time), and sends and receives beside each other. It has no batches, and a thousand clients would be a benchmark of
Java's threads: these loads come from the client that only counts answers, with one call in flight on each of its
connections.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from random import Random
from statistics import median
from typing import Final

from bench.beside_rocketmq import PEER, SIZES, Pair, Sizes, require_peer, warm_pair
from bench.harness import Case, Options, Sample, alternate
from bench.java_load import GROUP
from bench.queue_load import send_body
from bench.scratch_store import TOPIC
from bench.waiting_sends import SendSampler, percentile_ms
from quarry_mq.store.settings import Durability

QUESTION: Final = "Does Quarry stay ahead of RocketMQ with other sizes, more clients, batches, and both ways at once?"
BODY_SIZES: Final = {100: 256, 1_024: 256, 4_096: 128, 65_536: 16, 1_048_576: 4}
"""Maps body sizes in bytes to numbers in flight."""

CLIENTS: Final = (1, 32, 256, 1_000)
BATCH: Final = 32
BATCH_BODY: Final = 256
"""Bytes of each body of a batch: a send of `BATCH` messages fits into one frame."""

BATCH_CLIENTS: Final = 32
MODES: Final[Mapping[str, Mapping[str, object]]] = {
    "pipeline": {"in_flight": 256, "body": 1024},
    "mixed": {"threads": 16, "receivers": 8, "batch": 32, "group": GROUP, "body": 1024},
}


def run(options: Options) -> list[Case]:
    require_peer(options, "load_shapes")
    with warm_pair(options, Durability.ASYNC, MODES) as pair:
        return _Comparison(pair, SIZES[options.scale], Random(options.seed)).cases()


class _Comparison:
    def __init__(self, pair: Pair, sizes: Sizes, random: Random) -> None:
        self._pair = pair
        self._sizes = sizes
        self._random = random

    def cases(self) -> list[Case]:
        """Return all cases. The mixed load comes first, because it leaves fewer messages than it finds."""
        mixed = self._by_java("16 threads send, 8 receive and acknowledge", "mixed", {})
        sizes = [
            self._by_java(
                f"sends of {size:,} bytes, {flying} in flight", "pipeline", {"body": size, "in_flight": flying}
            )
            for size, flying in BODY_SIZES.items()
        ]
        one = send_body(TOPIC, self._random.randbytes(1024))
        clients = [
            self._by_counting("a client that waits" if count == 1 else f"{count:,} clients that wait", count, one, 1)
            for count in CLIENTS
        ]
        many = send_body(TOPIC, self._random.randbytes(BATCH_BODY), messages=BATCH)
        batch = self._by_counting(f"{BATCH_CLIENTS} clients that send {BATCH} at once", BATCH_CLIENTS, many, BATCH)
        return [mixed, *sizes, *clients, batch]

    def _by_java(self, name: str, mode: str, words: Mapping[str, object]) -> Case:
        quarry, rocketmq, load = self._pair
        ours, theirs, details = load.compare(mode, self._sizes.rounds, quarry, rocketmq, **words)
        return _case(name, ours, theirs, details)

    def _by_counting(self, name: str, clients: int, body: bytes, messages: int) -> Case:
        latencies: tuple[list[float], list[float]] = ([], [])
        sends, seconds = SendSampler(self._random, clients, body, messages=messages), self._sizes.sample_s
        ours, theirs = alternate(
            self._sizes.rounds,
            lambda: sends.sample(self._pair.quarry, seconds, latencies[0]),
            lambda: sends.sample(self._pair.rocketmq, seconds, latencies[1]),
        )
        details: dict[str, object] = {"clients": clients, "messages_per_send": messages}
        for prefix, each in zip(("", "peer_"), latencies, strict=True):
            for name_of, share in (("p50", 0.5), ("p99", 0.99)):
                details[f"{prefix}{name_of}_ms"] = round(percentile_ms(each, share), 2)
        return _case(name, ours, theirs, details)


def _case(name: str, ours: Sequence[Sample], theirs: Sequence[Sample], details: Mapping[str, object]) -> Case:
    cpu_ratio = round(median(a.cpu_us / b.cpu_us for a, b in zip(ours, theirs, strict=True)), 4)
    return Case(
        name=name,
        unit="messages",
        peer=PEER,
        ours=ours,
        theirs=theirs,
        details={"server_cpu_ratio": cpu_ratio, **details},
    )
