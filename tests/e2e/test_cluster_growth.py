"""A cluster grows from two members to four and shrinks to two again while official clients send and consume.

Nothing is lost, and message groups stay in order although their queues and members change. What was counted is in
`figures.json`.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from tests.e2e.broker import Broker, until
from tests.e2e.cluster_load import ClusterLoad
from tests.e2e.conftest import StartClients
from tests.e2e.load_record import SHOWN_MAX
from tests.e2e.members import ClusterOfBrokers, reachable, total

SETTINGS: Final = {
    "metrics.lag_interval_ms": 500,
    # a consumer that stands still for longer than its call may take loses what it was given, and yet it lives
    "delivery.lease_ms": 5_000,
    "delivery.lease_total_ms": 15_000,
}
FEWEST: Final = 2
MOST: Final = 4
ROUTES_S: Final = 60.0
"""Clients ask for routes every 30 s."""
QUIET_S: Final = 5.0
IN: Final = "rocketmq_messages_in_total"
LAG: Final = "rocketmq_consumer_lag_messages"

pytestmark = pytest.mark.slow


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[ClusterOfBrokers]:
    made = ClusterOfBrokers(tmp_path, settings=SETTINGS)
    try:
        yield made
    finally:
        made.close()


def grow(cluster: ClusterOfBrokers, load: ClusterLoad) -> dict[str, Any]:
    """One more member, until it takes its part. The others have not handed out all by then."""
    began_s = time.monotonic()
    broker = cluster.add()
    cluster.agree(reachable, [each.store.name for each in cluster.brokers])
    ready_s = time.monotonic()
    with load.consumers_standing_still():
        until(lambda: total(broker, IN) > 0, "the new member takes messages", timeout_s=ROUTES_S)
        time.sleep(QUIET_S)
    return {
        "member": broker.store.name,
        "known_everywhere_s": round(ready_s - began_s, 1),
        "first_message_s": round(time.monotonic() - QUIET_S - ready_s, 1),
    }


def shrink(cluster: ClusterOfBrokers, load: ClusterLoad) -> dict[str, Any]:
    """One member less, as docs/cluster.md says. It has not handed out all when the last message comes."""
    first, last = cluster.brokers[0], cluster.brokers[-1]
    name, began_s = last.store.name, time.monotonic()
    with load.consumers_standing_still():
        first.administer("cluster", "drain", name)
        until_taken_no_more(last)
    until_consumed(last)
    quiet_s = time.monotonic()
    taken = total(last, IN)
    last.stop()
    cluster.brokers.remove(last)
    cluster.agree(reachable, [each.store.name for each in cluster.brokers])
    first.administer("cluster", "remove", "--yes", name)
    return {
        "member": name,
        "taken": taken,
        "consumed_s": round(quiet_s - began_s, 1),
        "gone_s": round(time.monotonic() - quiet_s, 1),
    }


def until_taken_no_more(broker: Broker) -> None:
    """No message has come for a while."""
    taken, since_s = total(broker, IN), time.monotonic()

    def is_quiet() -> bool:
        nonlocal taken, since_s
        if (now_taken := total(broker, IN)) != taken:
            taken, since_s = now_taken, time.monotonic()
        return time.monotonic() - since_s > QUIET_S

    until(is_quiet, "nobody sends to the member that drains", timeout_s=ROUTES_S)


def until_consumed(broker: Broker) -> None:
    """Everything that it has, as it has seen for a while."""
    since_s = time.monotonic()

    def is_consumed() -> bool:
        nonlocal since_s
        if total(broker, LAG) > 0:
            since_s = time.monotonic()
        return time.monotonic() - since_s > QUIET_S

    until(is_consumed, "all is consumed of the member that drains", timeout_s=2 * ROUTES_S)


@pytest.mark.timeout(900)
def test_nothing_is_lost_and_message_groups_stay_in_order_while_members_come_and_go(
    cluster: ClusterOfBrokers, start_clients: StartClients, tmp_path: Path
) -> None:
    for _ in range(FEWEST):
        cluster.add()
    cluster.agree(reachable, [broker.store.name for broker in cluster.brokers])
    load = ClusterLoad(cluster)
    steps: list[dict[str, Any]] = []
    try:
        load.start(start_clients)
        time.sleep(QUIET_S)
        while len(cluster.brokers) < MOST:
            steps.append(grow(cluster, load))
        time.sleep(QUIET_S)
        while len(cluster.brokers) > FEWEST:
            steps.append(shrink(cluster, load))
        time.sleep(QUIET_S)
        load.finish()
    except BaseException:
        load.abandon()
        raise
    stats = {**load.stats(), "steps": steps}
    (tmp_path / "figures.json").write_text(json.dumps(stats, indent=1))
    print(json.dumps(stats))
    lost, breaks = load.record.lost(), load.record.breaks()
    assert not load.record.faults, load.record.faults[:SHOWN_MAX]
    assert not lost, f"{len(lost)} were never delivered: {lost[:SHOWN_MAX]}; {stats}"
    assert not stats["ordinary_sends_raised"], stats
    assert not breaks, f"{len(breaks)} out of order: {breaks[:SHOWN_MAX]}; {stats}"
