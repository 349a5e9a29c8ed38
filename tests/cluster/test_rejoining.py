"""A member that was away for too long: it is left out, says so, and comes back when it is told to."""

from __future__ import annotations

import asyncio

import pytest
from structlog.testing import capture_logs

from quarry_mq.protocol.clock import DAY_MS
from quarry_mq.server.cluster import replication as tombstones
from quarry_mq.server.cluster.replication import Page, Rejoining, TombstoneDeletion
from quarry_mq.server.errors import NoSuchMember
from quarry_mq.store.errors import Forbidden
from quarry_mq.store.replication import SharedKind
from tests.cluster.nodes import Network, Node, until
from tests.cluster.test_exchange import agree, run, started

KEPT_MS = 30 * DAY_MS


async def one_was_away(network: Network, nodes: list[Node]) -> Node:
    """`old` was deleted and forgotten meanwhile, and `mine` made; it is started again."""
    nodes[0].store.topic("old")
    nodes[0].store.topic("orders")
    await until(lambda: agree(*nodes) and len(nodes[2].reachable()) == 3, "all agree")
    await nodes[2].stop()
    nodes[0].store.tables.topics.delete("old")
    await until(lambda: agree(*nodes[:2]) and knows(nodes[0], nodes[1]), "both others agree, and know it")
    for node in nodes:
        node.store.clock.advance((KEPT_MS + DAY_MS) / 1000)
    for node in nodes[:2]:
        assert node.store.replicated.delete_tombstones(node.store.clock.wall_ms() - KEPT_MS) == 1
    nodes[2].store.topic("mine")
    return Node(network, "m2", {"m0:8082"}, nodes[2].store).start()


def knows(one: Node, other: Node) -> bool:
    """Whether all changes of the other one have come, as long as there are no others."""
    return one.store.replicated.horizons.known.get(other.name, 0) >= other.store.replicated.sequence


def test_a_member_that_was_away_for_too_long_is_left_out_until_it_rejoins() -> None:
    async def test() -> None:
        network, nodes = started(3)
        with capture_logs() as lines:
            away = await one_was_away(network, nodes)
            told = "this member was away for too long and is left out"
            await until(lambda: sum(line["event"] == told for line in lines) >= 2, "it says so of both")
            await until(
                lambda: sum("quarry cluster rejoin NAME" in str(line.get("reason")) for line in lines) >= 2,
                "they say so",
            )
        assert away.reachable() == ["m2"]
        await until(lambda: nodes[0].reachable() == nodes[1].reachable() == ["m0", "m1"], "it is in no route")
        assert nodes[0].store.tables.topics.get("old") is nodes[1].store.tables.topics.get("old") is None

        counts = {"old": 7}
        rejoining = Rejoining(away.exchange, away.store.replicated, lambda topic: counts.get(topic, 0))
        with pytest.raises(NoSuchMember, match="no member 'm9': this member does not exchange data with it"):
            await rejoining.rejoin("m9", dry_run=False, delete_messages=False)
        would = await rejoining.rejoin("m1", dry_run=True, delete_messages=False)
        assert ([row.name for row in would.removed], [row.name for row in would.told]) == (["old"], ["mine"])
        assert would.messages == counts
        with pytest.raises(
            Forbidden, match=r"1 topics were deleted on other members and have messages here, such as old \(7\)"
        ):
            await rejoining.rejoin("m1", dry_run=False, delete_messages=False)
        assert away.reachable() == ["m2"]
        await rejoining.rejoin("m1", dry_run=False, delete_messages=True)
        await until(lambda: len(away.reachable()) == 3 and len(nodes[0].reachable()) == 3, "it is in again")
        await until(lambda: agree(nodes[0], nodes[1], away), "all agree")
        assert [topic.name for topic in nodes[0].store.tables.topics.list()] == ["mine", "orders"]
        dropped = [row for each in away.seen for row in each.changed if row.value is None]
        assert [(row.kind, row.name) for row in dropped] == [(SharedKind.TOPIC, "old")]
        with pytest.raises(Forbidden, match="this member has not missed any deletion"):
            await rejoining.rejoin("m1", dry_run=False, delete_messages=False)
        for node in (nodes[0], nodes[1], away):
            await node.stop()

    run(test())


def test_nobody_rejoins_with_a_member_that_has_read_nobody_yet(monkeypatch: pytest.MonkeyPatch) -> None:
    """It would take all that it does not have for new."""

    async def test() -> None:
        node = Node(Network(), "m0", set())
        page = node.exchange.asked("m1", "m1:8082", None, 1)

        async def everything(_: str) -> Page:
            return page

        rejoining = Rejoining(node.exchange, node.store.replicated, lambda _: 0)
        monkeypatch.setattr(node.exchange, "all_of", everything)
        with pytest.raises(Forbidden, match="m1 has not read from any other member yet"):
            await rejoining.rejoin("m1", dry_run=False, delete_messages=True)

    run(test())


def test_deletions_are_forgotten_when_their_days_are_over(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tombstones, "START_DELAY_S", 0.0)
    monkeypatch.setattr(tombstones, "INTERVAL_S", 0.01)

    async def test() -> None:
        node = Node(Network(), "m0", set())
        node.store.topic("old")
        node.store.tables.topics.delete("old")
        deletion = TombstoneDeletion(node.store.replicated, node.store.clock, kept_days=2)
        running = asyncio.get_running_loop().create_task(deletion.run())
        node.store.clock.advance(2 * DAY_MS / 1000)
        await asyncio.sleep(0.05)
        assert node.store.replicated.changes(0).rows
        node.store.clock.advance(1)
        await until(lambda: not node.store.replicated.changes(0).rows, "it is forgotten")
        running.cancel()
        await asyncio.wait([running])

    run(test())
