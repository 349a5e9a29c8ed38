"""Lite topics of a cluster with the official clients: each is on one member, and moves while clients go on."""

from __future__ import annotations

import pytest

from tests.e2e.broker import Broker, until
from tests.e2e.clients import LitePushConsumer, Producer
from tests.e2e.conftest import StartClients
from tests.e2e.members import ClusterOfBrokers, names, reachable, rows
from tests.e2e.test_cluster import count, stat
from tests.e2e.test_lite import DEVICES, EVENTS, by_lite_topic, next_deliveries, nothing_comes, numbered

LITE_TOPICS = [f"device-{number}" for number in range(20)]
EACH = 5
"""Messages of each lite topic, time after time."""

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("language", ["python", "node", "java", "go"])
def test_lite_topics_keep_their_order_while_members_come_and_go(
    cluster: ClusterOfBrokers, start_clients: StartClients, language: str
) -> None:
    """The consumer hears of the new member with its next assignment, which clients ask for every five seconds."""
    first, second = cluster.add(), cluster.add()
    cluster.agree(reachable, ["quarry-0", "quarry-1"])
    first.administer("topic", "create", EVENTS, "--type", "lite", "--queues", "2")
    second.administer("group", "create", DEVICES, "--lite-parent", EVENTS)
    cluster.agree(lambda broker: (names(broker, "topic"), names(broker, "group")), ([EVENTS], [DEVICES]))
    until_settled(cluster)

    producer = start_clients(language, second.endpoint).producer(EVENTS)
    consumer = start_clients(language, first.endpoint).lite_push_consumer(EVENTS, group=DEVICES)
    consumer.subscribe(*LITE_TOPICS)
    come_through(producer, consumer, 0)
    found = {broker.admin: lite_topics(broker) for broker in (first, second)}
    assert sorted(found[first.admin] + found[second.admin]) == sorted(LITE_TOPICS)
    assert all(found.values()), "both have some"

    third = cluster.add()
    cluster.agree(reachable, ["quarry-0", "quarry-1", "quarry-2"])
    until_settled(cluster)
    come_through(producer, consumer, 1)
    assert lite_topics(third)

    first.administer("cluster", "drain", "quarry-1")
    until_settled(cluster)
    taken = count(second, EVENTS)
    come_through(producer, consumer, 2)
    assert count(second, EVENTS) == taken
    nothing_comes(consumer)


def until_settled(cluster: ClusterOfBrokers) -> None:
    until(
        lambda: all(stat(each, "quarry_cluster_handover") == 0 for each in cluster.brokers),
        "no member waits for what comes to it",
    )


def lite_topics(broker: Broker) -> list[str]:
    return [each["name"] for each in rows(broker, "lite", "list", EVENTS)]


def come_through(producer: Producer, consumer: LitePushConsumer, time: int) -> None:
    """Messages of all lite topics, each in its order and once."""
    numbers = range(time * EACH, (time + 1) * EACH)
    producer.send(numbered(LITE_TOPICS, numbers))
    deliveries = next_deliveries(consumer, len(LITE_TOPICS) * EACH)
    assert by_lite_topic(deliveries) == {name: [b"%d" % number for number in numbers] for name in LITE_TOPICS}
