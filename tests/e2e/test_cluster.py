"""Three brokers, each in a process of its own, are one to their clients."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.broker import quarry, until
from tests.e2e.clients import Outgoing
from tests.e2e.conftest import StartClients
from tests.e2e.members import ClusterOfBrokers, names, reachable, rows


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[ClusterOfBrokers]:
    made = ClusterOfBrokers(tmp_path)
    try:
        yield made
    finally:
        made.close()


def test_members_find_each_other_agree_and_serve_as_one(cluster: ClusterOfBrokers, start_clients: StartClients) -> None:
    first, second, third = (cluster.add() for _ in range(3))
    everybody = ["quarry-0", "quarry-1", "quarry-2"]
    cluster.agree(reachable, everybody)

    second.administer("topic", "create", "orders", "--queues", "4")
    third.administer("group", "create", "billing")
    cluster.agree(lambda broker: (names(broker, "topic"), names(broker, "group")), (["orders"], ["billing"]))

    clients = start_clients("python", first.endpoint)
    producer = clients.producer("orders")
    sent = {b"%d" % number for number in range(30)}
    producer.send([Outgoing("orders", body) for body in sorted(sent)])
    counts = [
        sum(row["max"] - row["min"] for row in rows(each, "queues", "--topic", "orders")) for each in cluster.brokers
    ]
    assert counts == [10, 10, 10]

    third.kill()
    cluster.brokers.remove(third)
    cluster.agree(reachable, everybody[:2])
    producer.send([Outgoing("orders", b"while one is away %d" % number) for number in range(6)])
    sent |= {b"while one is away %d" % number for number in range(6)}
    second.administer("topic", "create", "meanwhile")

    cluster.brokers.append(third)
    cluster.start(third)
    cluster.agree(reachable, everybody)
    cluster.agree(lambda broker: names(broker, "topic"), ["meanwhile", "orders"])
    consumer = start_clients("python", third.endpoint).simple_consumer("orders", group="billing", await_s=2)
    received: set[bytes] = set()

    def all_is_there() -> bool:
        deliveries = consumer.receive()
        consumer.ack(deliveries)
        received.update(each.body for each in deliveries)
        return received == sent

    until(all_is_there, "all messages of all members")


def test_a_member_with_another_key_or_the_same_name_stays_out(cluster: ClusterOfBrokers) -> None:
    first = cluster.add()
    assert quarry("cluster", "members", "--admin", first.admin).returncode == 0
