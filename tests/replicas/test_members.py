"""A member of a cluster has copies of its own, and one of them takes its place."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from quarry_mq.server.replicas.role import RoleFiles
from quarry_mq.store.security.sealer import new_key
from tests.cluster.brokers import groups_of
from tests.e2e.broker import Broker, quarry, until
from tests.e2e.conftest import QUICK
from tests.replicas.copies import Copies

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

MEMBERS = ["quarry-0", "quarry-1"]


class Members:
    """A cluster of quarry-0, which has the copies a and b, and quarry-1, which has none."""

    def __init__(self, home: Path) -> None:
        key = home / "cluster.key"
        key.write_bytes(new_key() + b"\n")
        key.chmod(0o600)
        self.other = Broker(home / "other", logs=home / "logs-other")
        settings = {
            **QUICK,
            "cluster.key_file": key,
            "cluster.members": json.dumps([self.other.admin]),
            "cluster.exchange_interval_ms": 200,
            "cluster.unreachable_after_ms": 1_000,
        }
        self.other_settings = {**settings, "broker.name": "quarry-1"}
        self.copies = Copies(home, settings={**settings, "broker.name": "quarry-0"})

    def start(self) -> None:
        """Start the primary of quarry-0, and quarry-1, and wait until they know each other."""
        self.copies["a"].start()
        self.other.start(settings=self.other_settings)
        until(lambda: set(self.members(self.other)) == set(MEMBERS), "both are members")

    def members(self, asked: Broker) -> dict[str, str]:
        """Return the admin address of each reachable member, as one of them sees it."""
        rows = map(json.loads, asked.administer("cluster", "members", "--json").splitlines())
        return {row["name"]: row["admin_address"] for row in rows if row["reachable"]}

    def topics(self, asked: Broker) -> set[str]:
        return {json.loads(row)["name"] for row in asked.administer("topic", "list", "--json").splitlines()}

    def close(self) -> None:
        self.copies.close()
        self.other.close()


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Members]:
    with closing(Members(tmp_path)) as made:
        yield made


def produce(broker: Broker, topic: str, body: str, *, group: str = "") -> None:
    words = ["--message-group", group] if group else []
    done = quarry("produce", topic, body, *words, "--endpoint", broker.endpoint)
    assert done.returncode == 0, done.stdout + done.stderr


def consumed(broker: Broker, topic: str, group: str, count: int) -> list[str]:
    """Return the bodies of so many messages of a member."""
    done = quarry(
        *("consume", topic, "--group", group, "--limit", str(count), "--timeout", "20", "--json"),
        *("--endpoint", broker.endpoint),
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return [json.loads(line)["body"] for line in done.stdout.splitlines()]


def test_a_promoted_copy_takes_the_place_of_its_member(cluster: Members) -> None:
    a, b, other = cluster.copies["a"], cluster.copies["b"], cluster.other
    cluster.start()
    other.administer("topic", "create", "orders", "--type", "fifo", "--queues", "2")
    other.administer("group", "create", "billing", "--fifo")
    until(lambda: "orders" in cluster.topics(a), "a knows the topic")
    cluster.copies.start("b")
    [owned] = groups_of("quarry-0", MEMBERS)
    produce(other, "orders", "first", group=owned)
    a.administer("topic", "create", "before")
    until(lambda: "before" in cluster.topics(other), "the other member knows what a made")
    cluster.copies.wait_for_all("a")

    a.kill()
    until(lambda: "no primary" in cluster.copies.says("b"), "b has noticed")
    other.administer("topic", "create", "meanwhile")
    cluster.copies.promote("b")
    until(lambda: cluster.members(other) == {"quarry-0": b.admin, "quarry-1": other.admin}, "b is quarry-0")
    produce(other, "orders", "second", group=owned)
    assert consumed(b, "orders", "billing", 2) == ["first", "second"]
    b.administer("topic", "create", "after")
    until(lambda: {"after", "before", "meanwhile"} <= cluster.topics(other), "the other member knows all topics")
    until(lambda: {"after", "before", "meanwhile"} <= cluster.topics(b), "b knows all topics")

    cluster.copies.start("a")
    cluster.copies.wait_for_all("b")
    assert cluster.members(other) == {"quarry-0": b.admin, "quarry-1": other.admin}
    cluster.copies.promote("a")
    assert b.ended() != 0
    until(lambda: cluster.members(other) == {"quarry-0": a.admin, "quarry-1": other.admin}, "a is quarry-0 again")
    produce(other, "orders", "third", group=owned)
    assert consumed(a, "orders", "billing", 1) == ["third"]


def test_what_a_lost_member_alone_had_shared_comes_back_from_the_others(cluster: Members) -> None:
    """The copy misses a topic and a deletion that the other member has heard of, and makes changes of its own."""
    a, b, other = cluster.copies["a"], cluster.copies["b"], cluster.other
    cluster.start()
    a.administer("topic", "create", "deleted")
    cluster.copies.start("b")
    cluster.copies.wait_for_all("a")
    b.kill()
    a.administer("topic", "create", "unseen")
    a.administer("topic", "delete", "deleted", "--yes")
    until(lambda: "unseen" in cluster.topics(other) and "deleted" not in cluster.topics(other), "the other knows")
    a.kill()
    RoleFiles(cluster.copies.files("b").disk, b.store).ask("promote")
    b.start()
    b.administer("topic", "create", "new")
    until(lambda: cluster.topics(b) == cluster.topics(other) == {"unseen", "new"}, "both have the same topics")
