"""The power fails while a broker takes messages: on a real kernel, a real ext4 and real mapped pages.

`sync`: no acknowledged message is ever lost, and no consumer was given one that is (rmq#8239). `async`: what is lost
was acknowledged within the flush interval before the cut, and the time of one flush. In both: nothing that nobody
sent is read, the store opens again by itself, also when the power fails again while it recovers (rmq#9587, rmq#9705).
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import time
from dataclasses import dataclass
from typing import Final

import pytest

from quarry_mq.store.settings import Durability
from tests.e2e.broker import Broker, quarry
from tests.power.conftest import MakeBroker, MakeImage
from tests.power.image import Ext4Image
from tests.power.load import Ledger, everything, load

IMAGE_MIB: Final = 1024
ROUND_MIB: Final = 40
"""What senders that wait for no disk store in the longest round; the file is sparse."""
FLUSH_INTERVAL_MS: Final = 200
FLUSH_ALLOWANCE_MS: Final = 500
"""For the flush itself, which is still under way, on a machine that does other things too."""
CUT_AGAIN: Final = 0.3
SETTINGS: Final[dict[str, object]] = {
    "store.segment_size": "4MiB",
    "store.queue_flush_size": "1MiB",
    "store.flush_interval_ms": FLUSH_INTERVAL_MS,
    "limits.body_size": "256KiB",
    "topics.default_queues": 4,
    "delivery.polling_min_ms": 100,
    "delivery.polling_max_ms": 1000,
}


@dataclass
class Stats:
    """What the cuts came to."""

    durability: str
    cuts: int = 0
    cuts_of_recoveries: int = 0
    acknowledged: int = 0
    seen_by_consumers: int = 0
    lost: int = 0
    rounds_with_loss: int = 0
    oldest_lost_ms: float = 0.0

    def note_loss(self, ages_ms: list[float]) -> None:
        self.lost += len(ages_ms)
        self.rounds_with_loss += bool(ages_ms)
        self.oldest_lost_ms = round(max([self.oldest_lost_ms, *ages_ms]), 1)


class PowerCuts:
    """Rounds of load, cut, start and comparison on one store."""

    def __init__(self, image: Ext4Image, broker: Broker, durability: Durability, chance: random.Random) -> None:
        self.stats = Stats(durability.value)
        self._image = image
        self._broker = broker
        self._durability = durability
        self._chance = chance
        self.kept: set[str] = set()
        """All that a recovery has ever shown: durable from then on, whatever the mode."""

    async def run(self, rounds: int) -> None:
        self._broker.start()
        for number in range(rounds):
            ledger = Ledger(f"round-{number}", prefix=str(number))
            async with load(self._broker.endpoint, ledger, self._chance):
                await asyncio.sleep(self._chance.uniform(0.02, 0.8))
                cut_s = await asyncio.to_thread(self._image.cut)
                await asyncio.sleep(self._chance.choice((0.0, 0.05, 0.3)))
            self._broker.kill()
            self._image.cycle()
            while self._chance.random() < CUT_AGAIN:
                self._cut_a_start()
            self._broker.start()
            self._compare(ledger, await everything(self._broker.endpoint, ledger.topic), cut_s)
        self._broker.stop()

    def _cut_a_start(self) -> None:
        """The start may be anywhere, or over."""
        self._broker.launch()
        time.sleep(self._chance.uniform(0.2, 1.0))
        self._image.cut()
        self._broker.kill()
        self._image.cycle()
        self.stats.cuts_of_recoveries += 1

    def _compare(self, ledger: Ledger, found: set[str], cut_s: float) -> None:
        """What was known after the cut is left out: without power nobody would have heard of it."""
        stats = self.stats
        acknowledged = {each: at_s for each, at_s in ledger.acknowledged_s.items() if at_s < cut_s}
        seen = {each for each, at_s in ledger.seen_s.items() if at_s < cut_s}
        stats.cuts += 1
        stats.acknowledged += len(acknowledged)
        stats.seen_by_consumers += len(seen)
        gone = acknowledged.keys() - found
        if self._durability is Durability.SYNC:
            assert not gone, f"{ledger.topic}: {len(gone)} of {len(acknowledged)} lost: {sorted(gone)[:5]}"
            shown = seen - found
            assert not shown, f"{ledger.topic}: consumers saw what is gone: {sorted(shown)[:5]}"
        else:
            gap = after_a_gap(list(acknowledged), found)
            assert not gap, f"{ledger.topic}: there, though earlier ones of the same sender are lost: {gap[:5]}"
            stats.note_loss([(cut_s - acknowledged[each]) * 1000 for each in gone])
        self.kept |= found


def after_a_gap(acknowledged: list[str], found: set[str]) -> list[str]:
    """Messages that are there though one that the same sender sent before is not: only the end may be lost."""
    lost = []
    lossy: set[str] = set()
    for each in acknowledged:
        sender = each.split("-")[1]
        if each not in found:
            lossy.add(sender)
        elif sender in lossy:
            lost.append(each)
    return lost


@pytest.fixture
def chance() -> random.Random:
    seed = int(os.environ.get("POWER_SEED") or random.SystemRandom().randrange(1 << 32))
    print(f"POWER_SEED={seed}")
    return random.Random(seed)


def cut_often(
    rounds: int, durability: Durability, make_image: MakeImage, make_broker: MakeBroker, chance: random.Random
) -> None:
    image = make_image(max(IMAGE_MIB, rounds * ROUND_MIB))
    settings = {**SETTINGS, "store.durability": durability.value}
    broker = make_broker(image.mount_point / "store", settings)
    cuts = PowerCuts(image, broker, durability, chance)
    asyncio.run(cuts.run(rounds))
    stats = cuts.stats
    print(json.dumps(vars(stats)))
    assert stats.acknowledged > rounds
    assert stats.seen_by_consumers > rounds
    assert stats.oldest_lost_ms <= FLUSH_INTERVAL_MS + FLUSH_ALLOWANCE_MS
    broker.assert_no_stack_trace()
    done = quarry("verify", str(broker.store), timeout_s=300)
    assert done.returncode == 0, done.stdout + done.stderr
    done = quarry("decode", str(broker.store), "--json", timeout_s=300)
    assert done.returncode == 0, done.stderr[-4000:]
    ids = {json.loads(line).get("properties", {}).get("UNIQ_KEY") for line in done.stdout.splitlines()}
    assert cuts.kept <= ids, "what one start has shown a later cut has taken"
    image.unmount()
    image.check()


@pytest.mark.parametrize("durability", [Durability.SYNC, pytest.param(Durability.ASYNC, marks=pytest.mark.slow)])
def test_a_few_power_cuts(
    durability: Durability, make_image: MakeImage, make_broker: MakeBroker, chance: random.Random
) -> None:
    cut_often(2, durability, make_image, make_broker, chance)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("durability", list(Durability))
def test_a_hundred_power_cuts(
    durability: Durability, make_image: MakeImage, make_broker: MakeBroker, chance: random.Random
) -> None:
    cut_often(int(os.environ.get("POWER_CUTS", "100")), durability, make_image, make_broker, chance)
