"""Does Quarry stay ahead of RocketMQ when the load has another shape: other sizes, more clients, batches, both ways?

Both servers answer at once (`async`, ASYNC_FLUSH) and are loaded in turns. What the official Java client does, it does:
messages of other sizes with so many in flight (above 4 KiB it compresses them, which takes most of its time), and sends
and receives beside each other. It has no batches, and a thousand of them would be a benchmark of Java's threads: for
these there is the client that only counts answers, one call in flight on each of its connections.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from random import Random
from statistics import median
from typing import Final

from bench.harness import CannotRun, Case, Options, Sample, Scale, alternate
from bench.java_load import GROUP, JavaLoad, Server
from bench.peers import load as load_generator
from bench.peers import rocketmq as rocketmq_server
from bench.peers.load import LoadGenerator
from bench.peers.maven import class_path
from bench.peers.quarry import Quarry
from bench.peers.rocketmq import RocketMQ
from bench.queue_load import send_body
from bench.scratch_store import TOPIC
from bench.waiting_sends import WaitingSends, percentile_ms
from store.settings import Durability

QUESTION: Final = "Does Quarry stay ahead of RocketMQ with other sizes, more clients, batches, and both ways at once?"
QUEUES: Final = 8
BODY_SIZES: Final = {100: 256, 1_024: 256, 4_096: 128, 65_536: 16, 1_048_576: 4}
"""Bytes to how many are in flight."""

CLIENTS: Final = (1, 32, 256, 1_000)
BATCH: Final = 32
BATCH_BODY: Final = 256
"""A send of so many fits into one frame."""

BATCH_CLIENTS: Final = 32
MODES: Final[Mapping[str, Mapping[str, object]]] = {
    "pipeline": {"in_flight": 256, "body": 1024},
    "mixed": {"threads": 16, "receivers": 8, "batch": 32, "group": GROUP, "body": 1024},
}


@dataclass(frozen=True, slots=True)
class Sizes:
    """Seconds of each sample, and of load before the first one."""

    sample_s: float
    rounds: int
    warm_rocketmq_s: float
    warm_quarry_s: float


SIZES: Final = {
    Scale.FULL: Sizes(sample_s=3, rounds=5, warm_rocketmq_s=60, warm_quarry_s=20),
    Scale.QUICK: Sizes(sample_s=1, rounds=1, warm_rocketmq_s=10, warm_quarry_s=2),
    Scale.TINY: Sizes(sample_s=0.5, rounds=1, warm_rocketmq_s=1, warm_quarry_s=0.5),
}


def run(options: Options) -> list[Case]:
    if options.scale is not Scale.FULL and not options.named:
        raise CannotRun("RocketMQ takes minutes; `python -m bench load_shapes` asks for it by name")
    for project in (load_generator.PROJECT, rocketmq_server.PROJECT):
        class_path(project)  # before anything is started
    sizes = SIZES[options.scale]
    scratch = options.scratch
    with (
        closing(Quarry(scratch / "quarry", Durability.ASYNC)) as quarry,
        closing(
            RocketMQ(scratch / "rocketmq", Durability.ASYNC, topic=TOPIC, queues=QUEUES, groups=[GROUP])
        ) as rocketmq,
        closing(LoadGenerator(scratch / "load")) as load,
    ):
        quarry.start()
        rocketmq.start()
        aimed = JavaLoad(load, MODES, topic=TOPIC, sample_s=sizes.sample_s, seed=options.seed)
        for server in (quarry, rocketmq):
            aimed.wait_until_served(server)
        aimed.warm(rocketmq, sizes.warm_rocketmq_s)
        aimed.warm(quarry, sizes.warm_quarry_s)
        return _Comparison(quarry, rocketmq, aimed, sizes, Random(options.seed)).cases()


class _Comparison:
    def __init__(self, quarry: Quarry, rocketmq: RocketMQ, load: JavaLoad, sizes: Sizes, random: Random) -> None:
        self._quarry = quarry
        self._rocketmq = rocketmq
        self._load = load
        self._sizes = sizes
        self._random = random

    def cases(self) -> list[Case]:
        """The mixed load first: it leaves less behind than it finds."""
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
        ours, theirs, details = self._load.compare(mode, self._sizes.rounds, self._quarry, self._rocketmq, **words)
        return _case(name, ours, theirs, details)

    def _by_counting(self, name: str, clients: int, body: bytes, messages: int) -> Case:
        latencies: tuple[list[float], list[float]] = ([], [])

        def sample(server: Server, found: list[float]) -> Sample:
            return WaitingSends(server, self._random, clients, body).run(self._sizes.sample_s, messages, found)

        ours, theirs = alternate(
            self._sizes.rounds,
            lambda: sample(self._quarry, latencies[0]),
            lambda: sample(self._rocketmq, latencies[1]),
        )
        details: dict[str, object] = {"clients": clients, "messages_per_send": messages}
        for prefix, each in zip(("", "peer_"), latencies, strict=True):
            for name_of, share in (("p50", 0.5), ("p99", 0.99)):
                details[f"{prefix}{name_of}_ms"] = percentile_ms(each, share)
        return _case(name, ours, theirs, details)


def _case(name: str, ours: Sequence[Sample], theirs: Sequence[Sample], details: Mapping[str, object]) -> Case:
    cpu_ratio = round(median(a.cpu_us / b.cpu_us for a, b in zip(ours, theirs, strict=True)), 4)
    return Case(
        name=name,
        unit="messages",
        peer="RocketMQ 5.5.0",
        ours=ours,
        theirs=theirs,
        details={"server_cpu_ratio": cpu_ratio, **details},
    )
