"""A restarted member is ready late, so that whoever restarts members one after another gives producers time."""

from __future__ import annotations

from quarry_mq.server.process.health import Phase
from tests.cluster.brokers import BrokerCluster
from tests.cluster.conftest import WithCluster
from tests.conformance.broker import RunningBroker, until
from tests.conformance.client import Client, message


def is_ready(broker: RunningBroker) -> bool:
    return broker.health.look().is_ready


def test_a_member_is_ready_late_while_another_one_is_and_serves_meanwhile(with_cluster: WithCluster) -> None:
    async def test(cluster: BrokerCluster) -> None:
        cluster.cluster = {"ready_delay_ms": 3_600_000}
        await cluster.start("a")
        await until(lambda: is_ready(cluster["a"]), "nobody else is there, so it is ready at once")
        await cluster.start("b")
        await until(lambda: "producers" in cluster["b"].health.look().readiness, "it waits for producers")
        health = cluster["b"].health.look()
        assert (health.phase, health.is_ready, health.is_live) == (Phase.READY, False, True)
        assert health.readiness == "serves, and is ready in 3600 s, when producers use it again"
        await cluster.settled("a", "b")
        cluster["b"].topic("orders")
        async with Client(cluster["b"].endpoint) as client:
            await client.sent(message("orders"))
        assert is_ready(cluster["a"])
        cluster["a"].health.stopping()
        await until(lambda: is_ready(cluster["b"]), "no other one is ready now")

    with_cluster(test)


def test_members_that_start_together_are_ready_at_once(with_cluster: WithCluster) -> None:
    async def test(cluster: BrokerCluster) -> None:
        await cluster.start("a")
        cluster.cluster = {"ready_delay_ms": 3_600_000}
        cluster["a"].health.serves_early("not ready either")
        await cluster.start("b")
        await until(lambda: is_ready(cluster["b"]), "nobody is ready")
        await cluster.stop("a")

    with_cluster(test)


def test_the_delay_ends(with_cluster: WithCluster) -> None:
    async def test(cluster: BrokerCluster) -> None:
        await cluster.start("a")
        cluster.cluster = {"ready_delay_ms": 300}
        await cluster.start("b")
        await until(lambda: "producers" in cluster["b"].health.look().readiness, "it waits")
        await until(lambda: is_ready(cluster["b"]), "it is ready")
        assert is_ready(cluster["a"])

    with_cluster(test)
