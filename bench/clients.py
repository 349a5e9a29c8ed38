"""What does an official client get from Quarry, and what from RocketMQ, on the same machine in the same minutes?

The official Java client loads both servers in turns, once with sends answered when they are on disk (Quarry `sync`,
RocketMQ SYNC_FLUSH) and once with sends answered at once (`async`, ASYNC_FLUSH). What the sending modes stored is what
the receiving mode reads. How long a send takes is measured at a fixed rate, too, half of what the slower one reached: a
server that is never idle tells little about one that works. Client and server share the cores, so beside the rates look
at the CPU time that the server takes per message: it says what the server could do if the client ran elsewhere.

RocketMQ needs about a minute of load to reach its speed, which is what most of the time goes to.
"""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass
from typing import Final

from bench.harness import CannotRun, Case, Options, Scale, median_rate
from bench.java_load import GROUP, SEND_STEADILY_TOO, TITLES, JavaLoad
from bench.peers import load as load_generator
from bench.peers import rocketmq as rocketmq_server
from bench.peers.load import LoadGenerator
from bench.peers.maven import class_path
from bench.peers.quarry import Quarry
from bench.peers.rocketmq import RocketMQ
from store.settings import Durability

QUESTION: Final = (
    "What does the official Java client get from Quarry, as a multiple of what it gets from RocketMQ 5.5.0?"
)
TOPIC: Final = "bench-orders"
QUEUES: Final = 8
"""Quarry's default for a topic that a client asks for."""


@dataclass(frozen=True, slots=True)
class Sizes:
    """Seconds of each sample, and of load before the first one."""

    sample_s: float
    rounds: int
    warm_rocketmq_s: float
    warm_quarry_s: float


SIZES: Final = {
    Scale.FULL: Sizes(sample_s=4, rounds=5, warm_rocketmq_s=60, warm_quarry_s=20),
    Scale.QUICK: Sizes(sample_s=2, rounds=1, warm_rocketmq_s=10, warm_quarry_s=2),
    Scale.TINY: Sizes(sample_s=1, rounds=1, warm_rocketmq_s=1, warm_quarry_s=0.5),
}


def run(options: Options) -> list[Case]:
    if options.scale is not Scale.FULL and not options.named:
        raise CannotRun("RocketMQ takes minutes; `python -m bench clients` asks for it by name")
    for project in (load_generator.PROJECT, rocketmq_server.PROJECT):
        class_path(project)  # before anything is started
    sizes = SIZES[options.scale]
    return [case for durability in Durability for case in _cases(options, sizes, durability)]


def _cases(options: Options, sizes: Sizes, durability: Durability) -> list[Case]:
    scratch = options.scratch / durability.value
    scratch.mkdir()
    with (
        closing(Quarry(scratch / "quarry", durability)) as quarry,
        closing(RocketMQ(scratch / "rocketmq", durability, topic=TOPIC, queues=QUEUES, groups=[GROUP])) as rocketmq,
        closing(LoadGenerator(scratch / "load")) as load,
    ):
        quarry.start()
        rocketmq.start()
        aimed = JavaLoad(load, SEND_STEADILY_TOO, topic=TOPIC, sample_s=sizes.sample_s, seed=options.seed)
        for server in (quarry, rocketmq):
            aimed.wait_until_served(server)
        aimed.warm(rocketmq, sizes.warm_rocketmq_s)
        aimed.warm(quarry, sizes.warm_quarry_s)

        def case(mode: str, **words: object) -> Case:
            ours, theirs, details = aimed.compare(mode, sizes.rounds, quarry, rocketmq, **words)
            return Case(
                name=f"{durability.value}: {TITLES[mode]}",
                unit="messages",
                peer="RocketMQ 5.5.0",
                ours=ours,
                theirs=theirs,
                details={"durability": durability.value, **details, **words},
            )

        send, pipeline = case("send"), case("pipeline")
        half = round(min(median_rate(pipeline.ours), median_rate(pipeline.theirs)) / 2)
        return [send, pipeline, case("steady", rate=max(1, half)), case("receive")]
