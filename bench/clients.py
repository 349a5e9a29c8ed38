"""Compares what an official client gets from Quarry and from RocketMQ, on the same machine in the same minutes.

The official Java client loads both servers in turns, once with sends answered when they are on disk (Quarry `sync`,
RocketMQ SYNC_FLUSH) and once with sends answered at once (`async`, ASYNC_FLUSH), and both with the native part, if
there is one, and in Python alone. The receiving mode reads the messages that the sending modes stored. The duration
of a send is also measured at a fixed rate, half of what the slower server reached: latencies of a saturated server
say little about normal work. Client and server share the cores, so compare not only the rates, but also the server's
CPU time per message: it says what the server could do if the client ran elsewhere.

RocketMQ needs about a minute of load to reach its full speed; the benchmark spends most of its time on that.
"""

from __future__ import annotations

from typing import Final

from bench.beside_rocketmq import PEER, SIZES, require_peer, warm_pair
from bench.harness import Case, Options, median_rate
from bench.java_load import SEND_STEADILY_TOO, TITLES
from quarry_mq.store.native import NATIVE
from quarry_mq.store.settings import Durability

QUESTION: Final = (
    "What does the official Java client get from Quarry, as a multiple of what it gets from RocketMQ 5.5.0?"
)


def run(options: Options) -> list[Case]:
    require_peer(options, "clients")
    kinds = [True, False] if NATIVE is not None else [False]
    return [
        case
        for is_native in kinds
        for durability in Durability
        for case in _cases(options, durability, is_native=is_native)
    ]


def _cases(options: Options, durability: Durability, *, is_native: bool) -> list[Case]:
    rounds, kind = SIZES[options.scale].rounds, "native part" if is_native else "Python alone"
    with warm_pair(options, durability, SEND_STEADILY_TOO, {"QUARRY_BROKER_NATIVE": str(is_native).lower()}) as pair:

        def case(mode: str, **words: object) -> Case:
            ours, theirs, details = pair.load.compare(mode, rounds, pair.quarry, pair.rocketmq, **words)
            return Case(
                name=f"{kind}, {durability.value}: {TITLES[mode]}",
                unit="messages",
                peer=PEER,
                ours=ours,
                theirs=theirs,
                details={"native": is_native, "durability": durability.value, **details, **words},
            )

        send, pipeline = case("send"), case("pipeline")
        half = round(min(median_rate(pipeline.ours), median_rate(pipeline.theirs)) / 2)
        return [send, pipeline, case("steady", rate=max(1, half)), case("receive")]
