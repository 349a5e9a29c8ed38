"""Measures the cost of a send before a broker processes it: the front, and reading and writing protobuf.

The official Java client loads two brokers with nothing behind their fronts, one on `h2` and one on `grpcio`, in turns.
Client and server share the cores, and on `h2` one client takes more of them than the server, so the rate is the
client's as much as the server's. The CPU time per message is the server's alone.
"""

from __future__ import annotations

from contextlib import closing
from typing import Final

from bench.harness import Case, Options, Scale
from bench.java_load import TITLES, JavaLoad, Modes, Sizes
from bench.peers import load as load_generator
from bench.peers.bare_broker import BareBroker
from bench.peers.load import LoadGenerator
from bench.peers.maven import class_path

QUESTION: Final = "What does a send of the official Java client cost on our front, and what on grpcio?"
TOPIC: Final = "bench-front"
BODY_SIZE: Final = 256

MODES: Final[Modes] = {
    "pipeline": {"in_flight": 256, "body": BODY_SIZE},
    "send": {"threads": 32, "body": BODY_SIZE},
}

CPU_RATIO_TARGET: Final = 0.1
RATE_TARGET: Final = 8.0
"""Target rate of the front, as a multiple of grpcio's, at a tenth of grpcio's CPU time."""


SIZES: Final = {
    Scale.FULL: Sizes(sample_s=4, rounds=5, warm_s=15),
    Scale.QUICK: Sizes(sample_s=1.5, rounds=1, warm_s=3),
    Scale.TINY: Sizes(sample_s=0.5, rounds=1, warm_s=0.5),
}


def run(options: Options) -> list[Case]:
    class_path(load_generator.PROJECT)  # before anything is started
    sizes = SIZES[options.scale]
    with (
        closing(BareBroker("h2")) as ours,
        closing(BareBroker("grpcio")) as peer,
        closing(LoadGenerator(options.scratch / "load")) as load,
    ):
        aimed = JavaLoad(load, MODES, topic=TOPIC, sample_s=sizes.sample_s, seed=options.seed)
        for server in (ours, peer):
            aimed.wait_until_served(server)
            aimed.warm(server, sizes.warm_s)
        return [_case(aimed, mode, sizes.rounds, ours, peer) for mode in MODES]


def _case(aimed: JavaLoad, mode: str, rounds: int, ours: BareBroker, peer: BareBroker) -> Case:
    samples, peer_samples, details = aimed.compare(mode, rounds, ours, peer)
    return Case(
        name=TITLES[mode],
        unit="messages",
        peer="front grpcio",
        ours=samples,
        theirs=peer_samples,
        details={**details, "target_server_cpu_ratio": CPU_RATIO_TARGET, "target_ratio": RATE_TARGET},
    )
