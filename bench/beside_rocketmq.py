"""Starts a broker and RocketMQ, and warms both under load from the official Java client."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import mkdtemp
from types import MappingProxyType
from typing import Final, NamedTuple

from bench.harness import CannotRun, Options, Scale
from bench.java_load import GROUP, JavaLoad, Modes
from bench.peers import load as load_generator
from bench.peers import rocketmq as rocketmq_server
from bench.peers.load import LoadGenerator
from bench.peers.maven import class_path
from bench.peers.quarry import Quarry
from bench.peers.rocketmq import RocketMQ
from bench.scratch_store import TOPIC
from quarry_mq.store.settings import Durability

PEER: Final = "RocketMQ 5.5.0"
QUEUES: Final = 8
"""Queues of a topic: Quarry's default for a topic that a client asks for."""


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
"""Sizes by scale. RocketMQ needs about a minute of load to reach its full speed."""


class Pair(NamedTuple):
    """Hold both servers, and the load generator for either."""

    quarry: Quarry
    rocketmq: RocketMQ
    load: JavaLoad


def require_peer(options: Options, name: str) -> None:
    """Raise CannotRun if Java or RocketMQ is not available, or would take too long for the requested scale."""
    if options.scale is not Scale.FULL and not options.named:
        raise CannotRun(f"RocketMQ takes minutes; `python -m bench {name}` asks for it by name")
    for project in (load_generator.PROJECT, rocketmq_server.PROJECT):
        class_path(project)  # before anything is started


@contextmanager
def warm_pair(
    options: Options, durability: Durability, modes: Modes, settings: Mapping[str, str] = MappingProxyType({})
) -> Iterator[Pair]:
    """Start both servers with one topic, and load them in all modes for as long as `SIZES` says.

    `settings` are those of our broker, by the names of their environment variables.
    """
    sizes = SIZES[options.scale]
    scratch = Path(mkdtemp(dir=options.scratch))
    with (
        closing(Quarry(scratch / "quarry", durability, settings)) as quarry,
        closing(RocketMQ(scratch / "rocketmq", durability, topic=TOPIC, queues=QUEUES, groups=[GROUP])) as rocketmq,
        closing(LoadGenerator(scratch / "load")) as load,
    ):
        quarry.start()
        rocketmq.start()
        aimed = JavaLoad(load, modes, topic=TOPIC, sample_s=sizes.sample_s, seed=options.seed)
        for server in (quarry, rocketmq):
            aimed.wait_until_served(server)
        aimed.warm(rocketmq, sizes.warm_rocketmq_s)
        aimed.warm(quarry, sizes.warm_quarry_s)
        yield Pair(quarry, rocketmq, aimed)
