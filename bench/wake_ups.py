"""Measures how soon a message reaches an official client that waits for it, in Quarry and in RocketMQ.

The official Java client sends at a fixed rate and receives with long polls, in one process, so that one clock times
both ends: from the call of the send to the message at a receiver. Both servers answer sends at once (`async`,
ASYNC_FLUSH) and are loaded in turns. The rate is far below what either can do, because the question is how long an
unhindered message takes. So `ratio`, which compares rates, says nothing, and the ratios of latencies say all.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from bench.beside_rocketmq import PEER, SIZES, require_peer, warm_pair
from bench.harness import Case, Options
from bench.java_load import GROUP
from quarry_mq.store.settings import Durability

QUESTION: Final = "How soon does a message reach an official client that waits for it, beside RocketMQ?"
RATES: Final = (100, 1_000)
RECEIVERS: Final = 8
MODES: Final[Mapping[str, Mapping[str, object]]] = {
    "wake": {"rate": RATES[-1], "receivers": RECEIVERS, "batch": 32, "group": GROUP, "body": 1024}
}


def run(options: Options) -> list[Case]:
    require_peer(options, "wake_ups")
    with warm_pair(options, Durability.ASYNC, MODES) as pair:
        cases = []
        for rate in RATES:
            rounds = SIZES[options.scale].rounds
            ours, theirs, details = pair.load.compare("wake", rounds, pair.quarry, pair.rocketmq, rate=rate)
            name = f"{rate:,} messages a second, {RECEIVERS} receivers that wait"
            cases.append(
                Case(name=name, unit="messages", peer=PEER, ours=ours, theirs=theirs, details={"rate": rate, **details})
            )
        return cases
