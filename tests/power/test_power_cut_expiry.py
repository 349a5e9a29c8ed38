"""The power fails while old segments expire, on a disk that is so small that they have to.

A message that is gone must have been among the oldest: of what each sender was told is stored, one after the other, a
last part is there, without a hole.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
from collections import defaultdict
from typing import Final

import pytest

from tests.e2e.broker import quarry
from tests.power.conftest import MakeBroker, MakeImage
from tests.power.load import Ledger, everything, load
from tests.power.test_power_cut import SETTINGS

ROUNDS: Final = int(os.environ.get("POWER_CUTS", "30"))
IMAGE_MIB: Final = 64
EXPIRING: Final[dict[str, object]] = {
    **SETTINGS,
    "store.segment_size": "1MiB",
    "delivery.new_group_start": "earliest",
    "expiry.interval_ms": 100,
    "expiry.start_delay_ms": 0,
    "expiry.pause_ms": 1,
    "expiry.force": "true",
    "expiry.clean_percent": 40,
    "expiry.force_percent": 50,
    "expiry.refuse_percent": 95,
}


def holes(acknowledged: list[str], found: set[str]) -> list[str]:
    """Messages that are gone though one that the same sender sent earlier is still there."""
    by_sender: dict[str, list[str]] = defaultdict(list)
    for each in acknowledged:
        by_sender[each.split("-")[1]].append(each)
    missing = []
    for messages in by_sender.values():
        first = next((number for number, each in enumerate(messages) if each in found), len(messages))
        missing += [each for each in messages[first:] if each not in found]
    return missing


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_what_expires_is_the_oldest_also_when_the_power_fails(make_image: MakeImage, make_broker: MakeBroker) -> None:
    seed = int(os.environ.get("POWER_SEED") or random.SystemRandom().randrange(1 << 32))
    print(f"POWER_SEED={seed}")
    chance = random.Random(seed)
    image = make_image(IMAGE_MIB)
    store = image.mount_point / "store"
    broker = make_broker(store, EXPIRING)
    # what goes while it is counted would look like a hole: the auditor reads one queue after the other
    audited = make_broker(store, {**EXPIRING, "expiry.force": "false"})
    acknowledged: list[str] = []
    found: set[str] = set()

    async def work(number: int) -> None:
        ledger = Ledger("orders", prefix=str(number))
        async with load(broker.endpoint, ledger, chance):
            await asyncio.sleep(chance.uniform(0.1, 1.5))
            cut_s = await asyncio.to_thread(image.cut)
        acknowledged.extend(each for each, at_s in ledger.acknowledged_s.items() if at_s < cut_s)

    for number in range(ROUNDS):
        broker.start()
        asyncio.run(work(number))
        broker.kill()
        image.cycle()
        audited.start()
        found = asyncio.run(everything(audited.endpoint, "orders", group=f"auditors-{number}"))
        audited.stop()
        missing = holes(acknowledged, found)
        assert not missing, f"round {number}: {len(missing)} lost: {sorted(missing)[:5]}"
    expired = set(acknowledged) - found
    print(json.dumps({"cuts": ROUNDS, "acknowledged": len(acknowledged), "expired": len(expired)}))
    assert expired, "nothing had to expire"
    assert found
    broker.assert_no_stack_trace()
    done = quarry("verify", str(store), timeout_s=300)
    assert done.returncode == 0, done.stdout + done.stderr
    image.unmount()
    image.check()
