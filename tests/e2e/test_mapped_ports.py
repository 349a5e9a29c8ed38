"""Brokers behind ports that are not theirs: a real client sends, receives and acknowledges where it was told to go.

rmq#8864, rocketmq-docker#37: a route that names an address which only the broker itself can reach.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from quarry_mq.cli.demo import free_ports
from tests.certificates import make_tls
from tests.e2e.broker import Broker, until
from tests.e2e.clients import Clients, Outgoing
from tests.e2e.conftest import StartBroker, StartClients
from tests.e2e.forwarding import Forwarding
from tests.e2e.members import ClusterOfBrokers, names, reachable

Forward = Callable[[], Forwarding]


@pytest.fixture
def forward() -> Iterator[Forward]:
    opened: list[Forwarding] = []

    def start() -> Forwarding:
        opened.append(Forwarding())
        return opened[-1]

    yield start
    for each in opened:
        each.close()


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[ClusterOfBrokers]:
    made = ClusterOfBrokers(tmp_path)
    yield made
    made.close()


def round_trip(clients: Clients, count: int = 8) -> None:
    """What is acknowledged went to whom it came from: nothing is left."""
    bodies = {b"%d" % number for number in range(count)}
    clients.producer("orders").send([Outgoing("orders", body) for body in sorted(bodies)])
    consumer = clients.simple_consumer("orders", group="billing", await_s=1)
    deliveries = consumer.receive_until(count)
    consumer.ack(deliveries)
    assert {each.body for each in deliveries} == bodies
    assert len(deliveries) == count


def connections(broker: Broker) -> float:
    """How many there were since the start, by whatever way."""
    return broker.stat("quarry_front_connections_total")


def test_a_mapped_port_needs_no_address(
    start_broker: StartBroker, start_clients: StartClients, forward: Forward
) -> None:
    """Docker's `-p 18081:8081`, `kubectl port-forward`: what was dialled is told."""
    broker = start_broker()
    broker.administer("topic", "create", "orders")
    outer = forward().lead_to(broker.endpoint)
    round_trip(start_clients("python", outer.endpoint))
    assert outer.accepted == connections(broker) > 0


def test_the_address_of_a_node_or_a_load_balancer_is_told_to_who_came_another_way(
    start_broker: StartBroker, start_clients: StartClients, forward: Forward
) -> None:
    told, service = forward(), forward()
    broker = start_broker(settings={"network.advertise": told.endpoint})
    told.lead_to(broker.endpoint)
    service.lead_to(broker.endpoint)
    broker.administer("topic", "create", "orders")
    round_trip(start_clients("python", service.endpoint))
    assert told.accepted > 0
    assert told.accepted + service.accepted == connections(broker)


def test_tls_goes_through_an_ingress_that_passes_it_on(
    start_broker: StartBroker, start_clients: StartClients, forward: Forward, tmp_path: Path
) -> None:
    tls, ingress = make_tls(tmp_path), forward()
    (secure,) = free_ports(1)
    ingress.lead_to(f"127.0.0.1:{secure}")
    told = {"network.tls_listen": f"127.0.0.1:{secure}", "network.tls_advertise": f"localhost:{ingress.port}"}
    broker = start_broker(settings={**tls.settings("off"), **told})
    broker.administer("topic", "create", "orders")
    round_trip(start_clients("python", f"localhost:{ingress.port}", tls_authority=tls.authority_path))
    assert ingress.accepted == connections(broker) > 0


@pytest.mark.slow
def test_one_name_for_all_members_leads_to_each_of_them(
    cluster: ClusterOfBrokers, start_clients: StartClients, forward: Forward
) -> None:
    """A Service or a load balancer before a cluster whose members have node ports of their own."""
    everybody = [forward(), forward()]
    for told in everybody:
        broker = cluster.make(f"quarry-{len(cluster.brokers)}")
        cluster.brokers.append(broker)
        told.lead_to(broker.endpoint)
        broker.start(settings={**cluster.settings(broker.store.name), "network.advertise": told.endpoint})
    cluster.agree(reachable, ["quarry-0", "quarry-1"])
    cluster.brokers[0].administer("topic", "create", "orders", "--queues", "4")
    cluster.agree(lambda broker: names(broker, "topic"), ["orders"])
    service = forward().lead_to(*(each.endpoint for each in cluster.brokers))
    clients = start_clients("python", service.endpoint)
    round_trip(clients, count=24)
    for told, broker in zip(everybody, cluster.brokers, strict=True):
        assert told.accepted > 0
        assert broker.stat("quarry_messages_stored_total") >= 6
        until(lambda: broker.stat("quarry_inflight_messages") == 0, "all is acknowledged")  # noqa: B023 - `until` calls it at once
