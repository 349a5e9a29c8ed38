"""Three members under load of official clients, while one after the other is killed or stopped and comes back.

What is acknowledged is delivered, in the order of its message group; ordinary sends go on meanwhile, by what the
client libraries do themselves. `E2E_CLUSTER_S` is how long it goes on, 75 s unless set, 900 for a long run, and
`E2E_AWAY_S` how long a member is away at most. What was counted is in `figures.json`.
"""

from __future__ import annotations

import json
import os
import random
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any, Final

import pytest

from tests.e2e.broker import Broker, quarry, until
from tests.e2e.cluster_load import SEND_ORDERS, ClusterLoad
from tests.e2e.conftest import StartClients
from tests.e2e.load_record import SHOWN_MAX
from tests.e2e.members import ClusterOfBrokers, reachable, total

LENGTH_S: Final = float(os.environ.get("E2E_CLUSTER_S", "75"))
AWAY_S: Final = float(os.environ.get("E2E_AWAY_S", "5"))
MEMBERS: Final = 3
OUT: Final = "rocketmq_messages_out_total"
"""Messages that a member has handed out since its start."""
FIRST_DELIVERY_TIMEOUT_S: Final = 60.0
"""Clients come back to a member in their own time."""

RAISED_SHARE_MAX: Final = 0.0005
"""Of ordinary sends. A client tries three times; where it has not connected again to a member that is back while
another one goes, it may come upon the same two of three.
"""

pytestmark = pytest.mark.slow


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[ClusterOfBrokers]:
    made = ClusterOfBrokers(tmp_path, settings={"cluster.unreachable_after_ms": 10_000})
    try:
        yield made
    finally:
        made.close()


def has_delivered(broker: Broker) -> bool:
    return total(broker, OUT) > 0


def absence(cluster: ClusterOfBrokers, broker: Broker, chance: random.Random) -> dict[str, Any]:
    """One member goes, and comes back a few seconds later; how long everything took."""
    is_killed = chance.random() < 0.6
    before = total(broker, OUT)
    if is_killed:
        broker.kill()
    else:
        broker.stop()
    gone_s = time.monotonic()
    time.sleep(chance.uniform(0.5, AWAY_S))
    launched_s = time.monotonic()
    cluster.start(broker)
    ready_s = time.monotonic()
    until(partial(has_delivered, broker), "the member delivers again", timeout_s=FIRST_DELIVERY_TIMEOUT_S)
    return {
        "member": broker.store.name,
        "by": "SIGKILL" if is_killed else "SIGTERM",
        "delivered_before": before,
        "away_s": round(ready_s - gone_s, 2),
        "start_s": round(ready_s - launched_s, 2),
        "first_delivery_s": round(time.monotonic() - ready_s, 2),
    }


@pytest.mark.timeout(LENGTH_S + 900)
def test_nothing_is_lost_and_message_groups_stay_in_order_while_members_die(
    cluster: ClusterOfBrokers, start_clients: StartClients, tmp_path: Path
) -> None:
    seed = int(os.environ.get("E2E_SEED") or random.SystemRandom().randrange(1 << 32))
    print(f"E2E_SEED={seed}")
    chance = random.Random(seed)
    for _ in range(MEMBERS):
        cluster.add()
    cluster.agree(reachable, [broker.store.name for broker in cluster.brokers])
    load = ClusterLoad(cluster)
    absences: list[dict[str, Any]] = []
    try:
        load.start(start_clients)
        end_s = time.monotonic() + LENGTH_S
        while time.monotonic() < end_s:
            time.sleep(chance.uniform(1.0, 6.0))
            absences.append(absence(cluster, chance.choice(cluster.brokers), chance))
        load.finish()
    except BaseException:
        load.abandon()
        raise
    stats = {"seed": seed, "length_s": LENGTH_S, **load.stats(), "absences": absences}
    (tmp_path / "figures.json").write_text(json.dumps(stats, indent=1))
    print(json.dumps(stats))
    lost, breaks = load.record.lost(), load.record.breaks()
    assert not load.record.faults, load.record.faults[:SHOWN_MAX]
    assert not lost, f"{len(lost)} were never delivered: {lost[:SHOWN_MAX]}; {stats}"
    assert not breaks, f"{len(breaks)} out of order: {breaks[:SHOWN_MAX]}; {stats}"
    raised = load.record.refusals_of(SEND_ORDERS)
    assert len(raised) <= stats["ordinary_sends"] * RAISED_SHARE_MAX, stats
    assert all("UNAVAILABLE" in each.text for each in raised), stats
    for broker in cluster.brokers:
        broker.stop()
        done = quarry("verify", str(broker.store), timeout_s=300)
        assert done.returncode == 0, done.stdout + done.stderr
