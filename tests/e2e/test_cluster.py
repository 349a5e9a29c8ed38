"""Three brokers, each in a process of its own, are one to their clients."""

from __future__ import annotations

from pathlib import Path

import pytest

from quarry_mq.store.security.sealer import new_key
from tests.e2e.broker import DELIVERED_TIMEOUT_S, Broker, quarry, until
from tests.e2e.clients import Outgoing
from tests.e2e.conftest import StartClients
from tests.e2e.members import ClusterOfBrokers, names, reachable, rows


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
    counts = [count(each, "orders") for each in cluster.brokers]
    assert sum(counts) == 30
    assert min(counts) >= 5

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

    until(all_is_there, "all messages of all members", timeout_s=DELIVERED_TIMEOUT_S)


@pytest.mark.slow
def test_who_has_another_key_or_the_name_of_another_stays_out(cluster: ClusterOfBrokers, tmp_path: Path) -> None:
    first, second = cluster.add(), cluster.add()
    cluster.agree(reachable, ["quarry-0", "quarry-1"])
    stranger, double = cluster.make("stranger"), cluster.make("double")
    other_key = tmp_path / "other.key"
    other_key.write_bytes(new_key())
    other_key.chmod(0o600)
    try:
        stranger.start(settings={**cluster.settings("quarry-9"), "cluster.key_file": other_key})
        double.start(settings=cluster.settings("quarry-1"))
        stranger.administer("topic", "create", "foreign")
        double.administer("topic", "create", "doubled")
        until(lambda: "not signed with the cluster's key" in stranger.words(), "the stranger says why")
        until(
            lambda: any("give each its own broker.name" in each.words() for each in (first, second)),
            "two of one name are told of",
        )
        first.administer("topic", "create", "orders")
        cluster.agree(lambda broker: "orders" in names(broker, "topic"), expected=True)
        assert reachable(first) == ["quarry-0", "quarry-1"]
        for each in cluster.brokers:
            assert "foreign" not in names(each, "topic")
        assert names(stranger, "topic") == ["foreign"]
    finally:
        stranger.close()
        double.close()


@pytest.mark.slow
def test_a_member_that_drains_is_read_to_its_end_and_then_forgotten(
    cluster: ClusterOfBrokers, start_clients: StartClients
) -> None:
    first, second = cluster.add(), cluster.add()
    cluster.agree(reachable, ["quarry-0", "quarry-1"])
    first.administer("topic", "create", "orders", "--queues", "2")
    cluster.agree(lambda broker: names(broker, "topic"), ["orders"])
    start_clients("python", second.endpoint).producer("orders").send([Outgoing("orders", b"%d" % n) for n in range(8)])
    assert count(second, "orders") == 4

    refused = quarry("cluster", "drain", "quarry-7", "--admin", first.admin)
    assert refused.returncode != 0
    assert "no member 'quarry-7'" in refused.stderr
    first.administer("cluster", "drain", "quarry-1")
    refused = quarry("cluster", "drain", "quarry-0", "--admin", first.admin)
    assert "quarry-0 is the last member that accepts messages" in refused.stderr
    cluster.agree(states, {"quarry-0": "active", "quarry-1": "draining"})
    later = start_clients("python", second.endpoint)
    later.producer("orders").send([Outgoing("orders", b"later %d" % n) for n in range(8)])
    assert count(second, "orders") == 4
    consumer = later.simple_consumer("orders", group="billing", await_s=2)
    consumer.ack(consumer.receive_until(16))

    assert "stop that broker first" in quarry("cluster", "remove", "--yes", "quarry-1", "--admin", first.admin).stderr
    second.stop()
    cluster.brokers.remove(second)
    cluster.agree(reachable, ["quarry-0"])
    first.administer("cluster", "remove", "--yes", "quarry-1")
    assert states(first) == {"quarry-0": "active"}


@pytest.mark.slow
def test_a_member_that_was_away_for_too_long_brings_nothing_back_and_rejoins(
    cluster: ClusterOfBrokers, start_clients: StartClients, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second, away = (cluster.add() for _ in range(3))
    everybody = ["quarry-0", "quarry-1", "quarry-2"]
    cluster.agree(reachable, everybody)
    for topic in ("old", "orders"):
        first.administer("topic", "create", topic, "--queues", "3")
    cluster.agree(lambda broker: names(broker, "topic"), ["old", "orders"])
    producer = start_clients("python", away.endpoint).producer("old", "orders")
    producer.send([Outgoing(topic, b"%d" % n) for topic in ("old", "orders") for n in range(9)])
    assert (count(away, "old"), count(away, "orders")) == (3, 3)
    away.stop()
    second.administer("topic", "delete", "--yes", "old")
    cluster.brokers.remove(away)
    cluster.agree(lambda broker: names(broker, "topic"), ["orders"])
    for broker in (first, second):
        broker.stop()
    for broker in (first, second):
        broker.launch(program="tests.e2e.late_clock", settings=cluster.settings(broker.store.name))
        assert broker.ready_or_ended() is None
    until(lambda: all("old deletions were forgotten" in each.words() for each in (first, second)), "all is forgotten")
    away.launch(program="tests.e2e.late_clock", settings=cluster.settings("quarry-2"))
    assert away.ready_or_ended() is None

    until(lambda: "quarry cluster rejoin quarry-" in away.words(), "it says what to do")
    assert reachable(away) == ["quarry-2"]
    cluster.agree(lambda broker: (reachable(broker), names(broker, "topic")), (["quarry-0", "quarry-1"], ["orders"]))
    away.administer("topic", "create", "mine")
    refused = quarry("cluster", "rejoin", "--yes", "quarry-1", "--admin", away.admin)
    assert "1 topics were deleted on other members and have messages here, such as old (3)" in refused.stderr
    would = rows(away, "cluster", "rejoin", "quarry-1", "--dry-run")
    done = rows(away, "cluster", "rejoin", "--yes", "quarry-1", "--delete-messages")
    assert would == done
    assert [(each["what"], each["kind"], each["name"]) for each in done[:2]] == [
        ("removed", "topic", "old"),
        ("told", "topic", "mine"),
    ]
    cluster.brokers.append(away)
    cluster.agree(lambda broker: (reachable(broker), names(broker, "topic")), (everybody, ["mine", "orders"]))
    assert count(away, "orders") == 3
    away.stop()


def count(broker: Broker, topic: str) -> int:
    """Messages of the topic on this member."""
    (shown,) = rows(broker, "topic", "show", topic)
    return sum(queue["maxOffset"] - queue["minOffset"] for queue in shown["queues"])


def states(broker: Broker) -> dict[str, str]:
    return {each["name"]: each["state"] for each in rows(broker, "cluster", "members")}


@pytest.mark.slow
@pytest.mark.parametrize(("language", "calls_owners"), [("java", True), ("go", True), ("python", False)])
def test_clients_that_hash_as_we_do_call_the_owners_of_message_groups(
    cluster: ClusterOfBrokers, start_clients: StartClients, language: str, calls_owners: bool
) -> None:
    brokers = [cluster.add() for _ in range(3)]
    cluster.agree(reachable, ["quarry-0", "quarry-1", "quarry-2"])
    brokers[0].administer("topic", "create", "ledger", "--type", "fifo", "--queues", "2")
    cluster.agree(lambda broker: names(broker, "topic"), ["ledger"])
    until(lambda: all(stat(each, "quarry_cluster_handover") == 0 for each in brokers), "groups are settled")

    producer = start_clients(language, brokers[0].endpoint).producer("ledger")
    producer.send([Outgoing("ledger", b"%d" % number, message_group=f"account-{number}") for number in range(60)])
    assert sum(count(each, "ledger") for each in brokers) == 60
    assert all(count(each, "ledger") > 0 for each in brokers)
    forwarded = sum(stat(each, "quarry_cluster_sends_forwarded_total") for each in brokers)
    assert forwarded == 0 if calls_owners else forwarded > 0


def stat(broker: Broker, metric: str) -> float:
    """Of a metric without labels."""
    lines = broker.get("/metrics")[1].splitlines()
    return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith(f"{metric} "))
