"""Loads over many queues find nothing of what the last message left in the processor's caches or in a block."""

from pathlib import Path

import pytest

from bench.scattered import STEP, scattered

JAVA = Path(__file__).parents[2] / "bench/peers/rocketmq-store/src/main/java/quarry/bench/QueueStore.java"


@pytest.mark.parametrize("count", [10, 80, 125, 400, 1_000, 12_500, 100_000, 125_000, 1_000_000])
def test_each_place_is_visited_once(count: int) -> None:
    assert sorted(scattered(number, count) for number in range(count)) == list(range(count))


@pytest.mark.parametrize("count", [125, 1_000, 12_500, 100_000, 125_000, 1_000_000])
@pytest.mark.parametrize("visits", [1, 2, 3, 4, 5])
def test_places_visited_one_after_the_other_lie_apart(count: int, visits: int) -> None:
    step = scattered(visits, count)
    assert min(step, count - step) >= count / 100


def test_rocketmq_gets_the_same_order() -> None:
    text = JAVA.read_text()
    assert f"STEP = {STEP:_};" in text
    assert f"(i * {STEP}) mod N" in text
