"""Compares a broker with ten million light queues with one that has a thousand, as `million_queues` does.

Each of the light queues has one message. Sends name ten of them each, which were not in use since the start.
"""

from __future__ import annotations

from typing import Final

from bench.harness import Case, Options, Scale
from bench.million_queues import Kind, Sizes, compare

QUESTION: Final = "What do ten million light queues cost: memory, a start, and sends to them?"

SIZES: Final = {
    Scale.FULL: Sizes(
        10_000_000, 1_000, 1_000, sends=60_000, receives=0, killed=100_000, rounds=3, starts=2, entries=1
    ),
    Scale.QUICK: Sizes(500_000, 1_000, 200, sends=10_000, receives=0, killed=10_000, rounds=2, starts=1, entries=1),
    Scale.TINY: Sizes(400, 80, 20, sends=50, receives=0, killed=50, rounds=1, starts=1, entries=1),
}


def run(options: Options) -> list[Case]:
    return compare(options, SIZES[options.scale], [Kind.LIGHT])
