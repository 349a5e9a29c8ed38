"""`kill -9` again and again while official clients of two languages send, receive and acknowledge, and go on doing so.

The clients live through all of it, as applications do. Their threads here are the oracle: every acknowledged send is
delivered at least once, and what a consumer has acknowledged is never delivered by a later receive. The broker starts
with `sync` or `async` at random: the death of the process must cost nothing in either.
"""

from __future__ import annotations

import json
import os
import random
import time
from collections import Counter
from collections.abc import Sized
from contextlib import suppress
from functools import partial
from typing import Final

import pytest

from quarry_mq.store.settings import Durability
from tests.e2e.broker import Broker, quarry, until
from tests.e2e.conftest import StartBroker, StartClients
from tests.e2e.ledger import Ledger, Workers, start_pairs

ROUNDS: Final = int(os.environ.get("E2E_KILLS", "200"))
LANGUAGES: Final = ("python", "node")
TOPIC: Final = "orders"
GROUP: Final = "workers"
KILL_WHILE_STARTING: Final = 0.2

pytestmark = pytest.mark.slow


def has_grown(these: Sized, before: int) -> bool:
    return len(these) > before


def kill_again_and_again(broker: Broker, ledger: Ledger, chance: random.Random) -> Counter[str]:
    """Each round begins when a send was acknowledged since the last start."""
    starts: Counter[str] = Counter()
    for _ in range(ROUNDS):
        sent, consumed = len(ledger.acknowledged), len(ledger.consumed_s)
        until(partial(has_grown, ledger.acknowledged, sent), "a send is acknowledged")
        if chance.random() < 0.3:
            until(partial(has_grown, ledger.consumed_s, consumed), "a delivery is acknowledged")
        time.sleep(chance.uniform(0.0, 0.7))
        broker.kill()
        while chance.random() < KILL_WHILE_STARTING:
            starts["killed while starting"] += 1
            broker.launch()
            time.sleep(chance.uniform(0.1, 1.0))
            broker.kill()
        durability = chance.choice(list(Durability)).value
        starts[durability] += 1
        broker.start(settings={"store.durability": durability})
    return starts


@pytest.mark.timeout(1800)
def test_nothing_is_lost_and_nothing_consumed_comes_back(
    start_broker: StartBroker, start_clients: StartClients
) -> None:
    seed = int(os.environ.get("E2E_SEED") or random.SystemRandom().randrange(1 << 32))
    print(f"E2E_SEED={seed}")
    broker = start_broker(settings={"store.queue_flush_size": "1MiB"})
    ledger, workers = Ledger(), Workers()
    processes = start_pairs(
        workers,
        ledger,
        lambda language: start_clients(language, broker.endpoint),
        LANGUAGES,
        topic=TOPIC,
        group=GROUP,
    )
    starts = kill_again_and_again(broker, ledger, random.Random(seed))
    workers.stop("producer")
    with suppress(AssertionError):
        until(lambda: not ledger.undelivered, "all is delivered")
    workers.stop("consumer")
    for process in processes:
        process.kill()  # the shutdown of a client that is about to connect again may fail
    stats = {
        "kills": ROUNDS,
        "starts": starts,
        "acknowledged": len(ledger.acknowledged),
        "delivered": len(ledger.delivered),
        "consumed": len(ledger.consumed_s),
        "delivered_twice": sum(count > 1 for count in ledger.delivered.values()),
        "refused": ledger.refused,
    }
    print(json.dumps(stats))
    assert not ledger.undelivered, f"{len(ledger.undelivered)} were never delivered: {sorted(ledger.undelivered)[:5]}"
    assert not ledger.faults, f"{len(ledger.faults)} faults: {ledger.faults[:5]}"
    broker.assert_no_stack_trace()
    broker.stop()
    done = quarry("verify", str(broker.store), timeout_s=300)
    assert done.returncode == 0, done.stdout + done.stderr
