"""Members that tell each other what has changed, with real stores and without a wire."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Coroutine, Mapping, Sequence
from typing import Any

import pytest
from structlog.testing import capture_logs

from quarry_mq.kv import EngineFull
from quarry_mq.server.cluster.membership import MemberState
from quarry_mq.server.cluster.replication import Exchange, Peer
from quarry_mq.server.errors import MemberUnreachable, NoSuchMember
from quarry_mq.store.errors import Forbidden
from quarry_mq.store.replication import SharedKind
from tests.cluster.nodes import INTERVAL_S, PATIENCE_S, Network, Node, until


def run(test: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(test, 60))


def started(count: int) -> tuple[Network, list[Node]]:
    """All know the first one only."""
    network = Network()
    return network, [Node(network, f"m{number}", {"m0:8082"}).start() for number in range(count)]


def agree(*nodes: Node) -> bool:
    first, *others = (node.store.content() for node in nodes)
    return all(other == first for other in others)


def test_members_find_each_other_through_one_of_them() -> None:
    async def test() -> None:
        _, nodes = started(5)
        everybody = [node.name for node in nodes]
        await until(lambda: all(node.reachable() == everybody for node in nodes), "all reach all")
        for node in nodes:
            assert [each.name for each in node.members.others()] == [name for name in everybody if name != node.name]
            await node.stop()

    run(test())


def changes_of(node: Node) -> set[tuple[str, str, bool]]:
    """Return kind and name of each change that the node has passed on, and whether it is a deletion."""
    return {(row.kind, row.name, row.value is None) for each in node.seen for row in each.changed}


def test_what_one_changes_all_have_also_who_was_away() -> None:
    async def test() -> None:
        network, nodes = started(3)
        nodes[1].store.topic("orders", 4)
        await until(lambda: agree(*nodes) and nodes[0].store.tables.topics.get("orders") is not None, "the topic")
        await nodes[2].stop()
        await until(lambda: nodes[0].reachable() == ["m0", "m1"], "one is out")
        nodes[0].store.tables.topics.delete("orders")
        nodes[1].store.topic("later")
        back = Node(network, "m2", {"m0:8082"}, nodes[2].store).start()
        await until(lambda: agree(nodes[0], nodes[1], back), "all agree again")
        assert back.store.tables.topics.get("orders") is None
        told = {(SharedKind.TOPIC, "orders", True), (SharedKind.TOPIC, "later", False)}
        # changes are applied on another thread: the tables agree before the loop has passed them on
        await until(lambda: told <= changes_of(back), "they are passed on")
        for node in (nodes[0], nodes[1], back):
            await node.stop()

    run(test())


def test_news_are_told_and_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test() -> None:
        _, nodes = started(2)
        await until(lambda: all(len(node.reachable()) == 2 for node in nodes), "both are there")
        for node in nodes:
            monkeypatch.setattr(node.exchange, "_interval_s", 3600.0)
        await asyncio.sleep(2 * INTERVAL_S)  # those that wait now do so for an hour
        nodes[0].store.topic("orders")
        await until(lambda: nodes[1].store.tables.topics.get("orders") is not None, "the other one knows")
        for node in nodes:
            await node.stop()

    run(test())


def test_among_many_each_asks_each_other_one_less_often_and_all_stay_reachable(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("quarry_mq.server.cluster.replication.ASKED_PER_INTERVAL", 1)

    async def test() -> None:
        network, nodes = started(8)
        pairs = 8 * 7
        everybody = [node.name for node in nodes]
        await until(lambda: all(node.reachable() == everybody for node in nodes), "all reach all")
        before = network.calls
        await asyncio.sleep(1)
        assert pairs <= network.calls - before <= pairs * 1.5 / (7 * INTERVAL_S)
        assert all(node.reachable() == everybody for node in nodes)
        nodes[3].store.topic("orders")
        await until(lambda: agree(*nodes), "what is new is told and not waited for")
        for node in nodes:
            await node.stop()

    run(test())


def test_who_comes_back_is_asked_as_soon_as_it_asks(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test() -> None:
        network, nodes = started(2)
        await until(lambda: all(len(node.reachable()) == 2 for node in nodes), "both are there")
        await nodes[1].stop()
        await until(lambda: nodes[0].reachable() == ["m0"], "one is out")
        monkeypatch.setattr(Exchange, "_pause_s", 3600.0)
        await asyncio.sleep(5 * INTERVAL_S)  # those that wait now do so for an hour
        back = Node(network, "m1", {"m0:8082"}, nodes[1].store).start()
        await until(lambda: nodes[0].reachable() == ["m0", "m1"], "it is in again")
        for node in (nodes[0], back):
            await node.stop()

    run(test())


def test_members_that_are_cut_off_from_each_other_agree_through_a_third() -> None:
    async def test() -> None:
        network, nodes = started(3)
        await until(lambda: all(len(node.reachable()) == 3 for node in nodes), "all are there")
        network.cut.add(frozenset({"m1:8082", "m2:8082"}))
        await until(lambda: nodes[1].reachable() == ["m0", "m1"], "one is out for the other")
        assert nodes[0].reachable() == ["m0", "m1", "m2"]
        nodes[1].store.topic("orders", 3)
        await until(lambda: agree(*nodes) and nodes[2].store.tables.topics.get("orders") is not None, "it goes round")
        network.cut.clear()
        await until(lambda: len(nodes[1].reachable()) == 3, "it is in again")
        for node in nodes:
            await node.stop()

    run(test())


def seeds(count: int) -> set[str]:
    """Return the addresses at which the first members answer, as a DNS name has them."""
    return {f"m{number}:8082" for number in range(count)}


@pytest.mark.parametrize(
    ("told", "reason"),
    [
        ("nowhere:8082", "nowhere:8082: refused"),
        ("m0:8082", "m0:8082 leads to this member, not to m1: set cluster.advertise there"),
        ("m2:8082", "m2:8082: member m2 answers there"),
    ],
)
def test_a_member_that_answers_at_another_address_is_not_reachable_and_the_reason_is_told(
    told: str, reason: str
) -> None:
    """The address for clients of a machine was what two members of the machine gave as their admin address."""

    async def test() -> None:
        network = Network()
        first = Node(network, "m0", seeds(3)).start()
        wrong = Node(network, "m1", seeds(3), told=told).start()
        third = Node(network, "m2", seeds(3)).start()

        def problems() -> dict[str, str]:
            return {each.member.name: each.problem for each in first.members.all()}

        with capture_logs() as lines:
            await until(lambda: problems() == {"m0": "", "m1": reason, "m2": ""}, "the reason is known")
            await until(lambda: first.reachable() == ["m0", "m2"], "the other one is reachable")
            await asyncio.sleep(5 * INTERVAL_S)
        assert [each.name for each in first.members.routed()] == ["m1", "m2"], "its clients can go on"
        wrong.store.topic("orders")
        await until(lambda: agree(first, wrong, third), "what is shared goes round all the same")
        event = "a member answers, but not at its admin address"
        logged = [(each["member"], each["address"], each["reason"]) for each in lines if each["event"] == event]
        assert ("m1", told, reason) in logged
        assert all(logged.count(each) <= 2 for each in logged), "by each of the others once per reason"
        with pytest.raises(Forbidden, match="stop that broker first"):
            first.members.remove("m1")

        await wrong.stop()
        right = Node(network, "m1", seeds(3), wrong.store).start()
        with capture_logs() as lines:
            await until(lambda: first.reachable() == ["m0", "m1", "m2"], "it is reachable")
            await until(lambda: problems()["m1"] == "", "without a reason")
            await until(
                lambda: any(each["event"] == "a member answers at its admin address again" for each in lines), "told"
            )
        for node in (first, right, third):
            await node.stop()

    run(test())


def test_members_that_tell_one_address_still_know_when_they_have_met() -> None:
    """Message groups wait for it: they did so for ever."""

    async def test() -> None:
        network = Network()
        nodes = [Node(network, f"m{number}", seeds(2), told="machine:31080").start() for number in range(2)]
        for node in nodes:
            await asyncio.wait_for(node.exchange.met_others(), PATIENCE_S)
            await node.stop()

    run(test())


def test_a_member_that_finds_itself_alone_waits_for_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """A name that has one address is the cluster of one that a chart begins with."""

    async def test() -> None:
        network = Network()
        node = Node(network, "m0", {"10.0.0.1:8082"}, told="m0.members:8082")
        network.nodes["10.0.0.1:8082"] = node
        monkeypatch.setattr(node.exchange, "_interval_s", 3600.0)
        node.start()
        await asyncio.wait_for(node.exchange.met_others(), PATIENCE_S)
        await node.stop()

    run(test())


def test_the_admin_address_is_asked_and_others_only_while_it_fails() -> None:
    async def test() -> None:
        network = Network()
        first = Node(network, "m0", {"m1:8082"}).start()
        second = Node(network, "m1", {"m0:8082"}, told="m1.members:8082")
        network.nodes["m1.members:8082"] = second
        second.start()
        await until(lambda: first.reachable() == ["m0", "m1"], "it is reachable")
        asked: list[str] = []
        between = network.between

        def watched(caller: Node, address: str) -> Peer:
            asked.append(address)
            return between(caller, address)

        for followed in first.exchange._followed.values():
            followed.peer = None
        first.exchange._connect = lambda address: watched(first, address)
        await until(lambda: asked == ["m1.members:8082"], "that address is asked")
        await asyncio.sleep(5 * INTERVAL_S)
        assert asked == ["m1.members:8082"]
        del network.nodes["m1.members:8082"]
        await until(lambda: asked == ["m1.members:8082", "m1:8082"], "the other one is")
        await until(lambda: first.reachable() == ["m0"], "it cannot be called")
        network.nodes["m1.members:8082"] = second
        await until(lambda: first.reachable() == ["m0", "m1"], "it is back")
        for node in (first, second):
            await node.stop()

    run(test())


def test_random_changes_on_members_that_die_and_return_end_alike() -> None:
    async def test() -> None:
        chance = random.Random(11)
        network, nodes = started(4)
        for _ in range(150):
            number = chance.randrange(4)
            node = nodes[number]
            name = f"t{chance.randrange(12)}"
            if chance.random() < 0.3 and node.store.tables.topics.get(name) is not None:
                node.store.tables.topics.delete(name)
            else:
                node.store.topic(name, chance.randrange(1, 9))
            if chance.random() < 0.1:
                await node.stop()
                nodes[number] = Node(network, node.name, {"m0:8082", "m3:8082"}, node.store)
                await asyncio.sleep(chance.random() * 0.05)
                nodes[number].start()
            await asyncio.sleep(chance.random() * 0.01)
        await until(lambda: agree(*nodes), "all agree")
        for node in nodes:
            await node.stop()

    run(test())


def overwritten(lines: Sequence[Mapping[str, Any]]) -> list[tuple[str, str]]:
    return [(line["kind"], line["name"]) for line in lines if line["event"].startswith("a change was overwritten")]


def test_a_change_that_is_overwritten_is_told() -> None:
    async def test() -> None:
        network, nodes = started(2)
        nodes[0].store.topic("orders", 1)
        await until(lambda: agree(*nodes), "both have it")
        network.cut.add(frozenset({"m0:8082", "m1:8082"}))
        await asyncio.sleep(2 * INTERVAL_S)
        nodes[0].store.topic("orders", 2)
        await asyncio.sleep(0.01)
        nodes[1].store.topic("orders", 3)
        with capture_logs() as lines:
            network.cut.clear()
            await until(lambda: agree(*nodes), "both agree")
            # changes are applied on another thread: the tables agree before the loop has told of the conflict
            await until(lambda: bool(overwritten(lines)), "it is told")
        topic = nodes[0].store.tables.topics.get("orders")
        assert topic is not None
        assert topic.read_queues == 3
        assert overwritten(lines) == [("topic", "orders")]
        for node in nodes:
            await node.stop()

    run(test())


def test_states_are_everybodys_and_survive_a_restart() -> None:
    async def test() -> None:
        network, nodes = started(2)
        await until(lambda: all(len(node.reachable()) == 2 for node in nodes), "both are there")
        nodes[0].members.set_state("m1", MemberState.DRAINING)
        with pytest.raises(Forbidden, match="m0 is the last member that accepts messages"):
            nodes[0].members.set_state("m0", MemberState.DRAINING)
        await until(lambda: nodes[1].members.is_draining, "it knows itself")
        with pytest.raises(Forbidden, match="stop that broker first"):
            nodes[0].members.remove("m1")
        await nodes[1].stop()
        again = Node(network, "m1", {"m0:8082"}, nodes[1].store).start()
        assert again.members.is_draining
        await again.stop()
        await until(lambda: nodes[0].reachable() == ["m0"], "it is gone")
        nodes[0].members.remove("m1")
        with pytest.raises(NoSuchMember):
            nodes[0].members.remove("m1")
        assert [each.member.name for each in nodes[0].members.all()] == ["m0"]
        await nodes[0].stop()

    run(test())


def test_a_full_disk_and_a_missing_file_are_told_and_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test() -> None:
        network, nodes = started(2)
        late = Node(network, "m2", {"m0:8082"})
        failures: list[Exception] = [MemberUnreachable("m0:8082: ca.pem: No such file"), EngineFull("no room")]

        def connect(address: str) -> Peer:
            if len(failures) > 1:
                raise failures.pop(0)
            return network.between(late, address)

        def apply(*arguments: Any, **options: Any) -> Any:
            if failures:
                raise failures.pop()
            return apply_for_real(*arguments, **options)

        apply_for_real = late.store.replicated.apply
        monkeypatch.setattr(late.exchange, "_connect", connect)
        monkeypatch.setattr(late.store.replicated, "apply", apply)
        nodes[0].store.topic("orders")
        with capture_logs() as lines:
            late.start()
            await until(lambda: agree(nodes[0], late) and len(late.reachable()) == 3, "it is in")
        reasons = [line["reason"] for line in lines if line["event"] == "a member cannot be asked"]
        assert {"m0:8082: ca.pem: No such file", "no room"} <= set(reasons)
        for node in (*nodes, late):
            await node.stop()

    run(test())


def test_a_fault_in_the_exchange_ends_it() -> None:
    """The broker must not go on looking well."""

    async def test() -> None:
        _, nodes = started(2)
        await until(lambda: all(len(node.reachable()) == 2 for node in nodes), "both are there")

        def broken(_: object) -> None:
            raise ZeroDivisionError

        nodes[1].exchange._applied = broken
        nodes[0].store.topic("orders")
        running = nodes[1]._running
        assert running is not None
        await until(running.done, "it ends")
        assert isinstance(running.exception(), ExceptionGroup)
        await nodes[0].stop()

    run(test())


def test_an_exchange_knows_what_it_is_asked() -> None:
    node = Node(Network(), "m0", set())
    node.store.topic("orders")
    assert isinstance(node.exchange, Exchange)
    page = node.exchange.asked("m1", "m1:8082", None, 10)
    assert [row.name for row in page.rows] == ["orders"]
    again = node.exchange.asked("m1", "m1:8082", page.until, 10)
    assert (list(again.rows), again.more) == ([], False)
    other_life = page.until.__class__(b"another store's!", page.until.sequence)
    assert [row.name for row in node.exchange.asked("m1", "m1:8082", other_life, 10).rows] == ["orders"]
