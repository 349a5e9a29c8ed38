"""Message groups in a cluster of real brokers: each has one owner, and moves to another one in order."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from google.protobuf.timestamp_pb2 import Timestamp

from quarry_mq.protocol.clock import SystemClock
from quarry_mq.protocol.messages.property_names import RESENT_ID
from quarry_mq.protocol.proto.apache.rocketmq.v2 import definition_pb2 as definition
from quarry_mq.protocol.proto.apache.rocketmq.v2 import service_pb2 as service
from quarry_mq.server.cluster.membership import Members, MemberState
from quarry_mq.store.message import QueueId, QueueOffset
from quarry_mq.store.metadata import TopicType
from tests.cluster.brokers import CONSUMERS, TOPIC, BrokerCluster, groups_of, soon
from tests.cluster.conftest import WithCluster
from tests.conformance.broker import RunningBroker, until
from tests.conformance.client import Client, Received, message
from tests.conformance.jobs import done, job_service, resend
from tests.conformance.test_queue_counts import queues_of, update


def grouped(group: str, body: str) -> definition.Message:
    return message(TOPIC, body.encode(), message_type=definition.FIFO, message_group=group)


async def send(broker: RunningBroker, group: str, *bodies: str, timeout_s: float = 8.0) -> None:
    async with Client(broker.endpoint) as client:
        for body in bodies:
            await client.sent(grouped(group, body))


async def receive(broker: RunningBroker, *, polling_s: float = 0.0, ack: bool = True) -> list[str]:
    """The bodies of all that comes without waiting, or within the time."""
    bodies: list[str] = []
    async with Client(broker.endpoint) as client:
        while True:
            received: Received = await client.receive(CONSUMERS, TOPIC, polling_s=polling_s)
            if not received.messages:
                return bodies
            bodies += [each.body.decode() for each in received.messages]
            if not ack:
                return bodies
            await client.ack(CONSUMERS, TOPIC, *received.handles)
            polling_s = 0.0


def _request(*messages: definition.Message) -> service.SendMessageRequest:
    return service.SendMessageRequest(messages=messages)


def stored(broker: RunningBroker) -> int:
    return sum(broker.store.messages.maximum(QueueId(TOPIC, number)) for number in range(2))


def members_of(broker: RunningBroker) -> Members:
    return broker.cluster.members


def test_whoever_is_asked_to_store_it_a_group_is_with_its_owner(with_cluster: WithCluster) -> None:
    async def test(cluster: BrokerCluster) -> None:
        names = ["a", "b", "c"]
        await cluster.begin(*names)
        for owner in names:
            [group] = groups_of(owner, names)
            for number, name in enumerate(names):
                await send(cluster[name], group, f"{group}-{number}")
        for name in names:
            assert stored(cluster[name]) == 3
            [group] = groups_of(name, names)
            assert await receive(cluster[name], polling_s=8) == [f"{group}-{number}" for number in range(3)]
        assert sum(each.cluster.sends.forwarded for each in cluster.running.values()) == 6

    with_cluster(test)


def test_the_client_gets_the_owners_answer_also_when_it_is_no(
    with_cluster: WithCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def test(cluster: BrokerCluster) -> None:
        await cluster.begin("a", "b")
        [group] = groups_of("b", ["a", "b"])
        async with Client(cluster["a"].endpoint) as client:
            sent = grouped(group, "x")
            answer = await client.send(sent)
            assert [each.message_id for each in answer.entries] == [sent.system_properties.message_id]
            monkeypatch.setattr(cluster["b"].store.messages, "append", _refuses)
            refused = await client.send(grouped(group, "y"))
            assert refused.status.code == definition.INTERNAL_SERVER_ERROR

    with_cluster(test)


def _refuses(*_: Any) -> Any:
    raise OSError("the disk is gone")


def _in_a_minute() -> Timestamp:
    return Timestamp(seconds=SystemClock().wall_ms() // 1000 + 60)


def test_messages_without_a_group_stay_where_they_are_sent(with_cluster: WithCluster) -> None:
    async def test(cluster: BrokerCluster) -> None:
        await cluster.begin("a", "b", kind=TopicType.MIXED)
        async with Client(cluster["a"].endpoint) as client:
            for _ in range(8):
                await client.sent(message(TOPIC))
            # one that is delayed has no order that could be kept
            [group] = groups_of("b", ["a", "b"])
            await client.sent(message(TOPIC, message_group=group, delivery_timestamp=_in_a_minute()))
        assert (stored(cluster["a"]), stored(cluster["b"])) == (8, 0)
        assert cluster["a"].store.messages.pending.first_due() is not None

    with_cluster(test)


def test_what_a_new_member_gets_waits_for_what_the_others_hold(with_cluster: WithCluster) -> None:
    async def test(cluster: BrokerCluster) -> None:
        await cluster.begin("a", "b")
        [moves] = groups_of("a", ["a", "b"], but=("c", ["a", "b", "c"]))
        [stays] = groups_of("a", ["a", "b", "c"])
        await send(cluster["a"], moves, "1", "2")
        await send(cluster["a"], stays, "s1")
        assert await receive(cluster["a"], polling_s=8, ack=False) != [], "the consumers are known there"
        await cluster.start("c")
        await cluster.settled("a", "b", "c")
        await send(cluster["a"], moves, "3")
        await send(cluster["b"], moves, "4")
        await send(cluster["b"], stays, "s2")
        assert (stored(cluster["a"]), stored(cluster["c"])) == (4, 2)
        assert await receive(cluster["c"]) == []
        waits = asyncio.ensure_future(receive(cluster["c"], polling_s=8))
        await soon()
        assert not waits.done(), "what was sent before has not been acknowledged"
        for _ in range(4):
            cluster["a"].clock.push(31)  # what was handed out above comes back
            for bodies in [await receive(cluster["a"])]:
                assert bodies == sorted(bodies) or "s" in "".join(bodies)
        assert await waits == ["3", "4"]
        assert await receive(cluster["c"]) == []
        await send(cluster["b"], moves, "5")
        assert await receive(cluster["c"]) == ["5"]

    with_cluster(test)


def test_what_a_member_that_drains_gave_away_waits_for_what_it_holds(
    with_cluster: WithCluster,
) -> None:
    async def test(cluster: BrokerCluster) -> None:
        await cluster.begin("a", "b")
        [moves] = groups_of("b", ["a", "b"])
        await send(cluster["b"], moves, "1", "2")
        assert await receive(cluster["a"]) == []
        members_of(cluster["a"]).set_state("b", MemberState.DRAINING)
        await cluster.settled("a")
        await send(cluster["b"], moves, "3")
        assert (stored(cluster["a"]), stored(cluster["b"])) == (1, 2)
        await soon()
        assert await receive(cluster["a"]) == []
        assert await receive(cluster["b"], polling_s=8) == ["1", "2"]
        assert await receive(cluster["a"], polling_s=8) == ["3"]
        await cluster.stop("b")
        await until(lambda: not members_of(cluster["a"]).is_reachable("b"), "b is away")
        members_of(cluster["a"]).remove("b")
        await cluster.settled("a")
        await send(cluster["a"], moves, "4")
        assert await receive(cluster["a"]) == ["4"]

    with_cluster(test)


def test_a_member_that_had_nothing_holds_nobody_back_when_it_is_away(with_cluster: WithCluster) -> None:
    async def test(cluster: BrokerCluster) -> None:
        await cluster.begin("a", "b")
        await cluster.stop("a")
        await cluster.stop("b")
        await cluster.start("b")
        [group] = groups_of("b", ["a", "b"])
        await send(cluster["b"], group, "1")
        assert await receive(cluster["b"], polling_s=8) == ["1"]

    with_cluster(test)


def test_a_member_that_leaves_before_it_stops_gives_its_groups_to_others_until_it_is_back(
    with_cluster: WithCluster,
) -> None:
    async def test(cluster: BrokerCluster) -> None:
        await cluster.begin("a", "b")
        [moves] = groups_of("b", ["a", "b"])
        await send(cluster["a"], moves, "1")
        assert cluster["b"].cluster.leave()
        await cluster.settled("a")
        assert members_of(cluster["a"]).seen("b").member.state is MemberState.STOPPING
        await send(cluster["b"], moves, "2")  # it goes on serving, and forwards
        await cluster.stop("b")
        await send(cluster["a"], moves, "3")
        await cluster.start("b")
        await cluster.settled("a", "b")
        assert members_of(cluster["a"]).seen("b").member.state is MemberState.ACTIVE
        await send(cluster["a"], moves, "4")
        assert (stored(cluster["a"]), stored(cluster["b"])) == (2, 2)
        assert await receive(cluster["a"]) == []
        assert await receive(cluster["b"], polling_s=8) == ["1"]  # 4 waits for what the other member has
        assert await receive(cluster["a"], polling_s=8) == ["2", "3"]
        assert await receive(cluster["b"], polling_s=8) == ["4"]

    with_cluster(test)


def test_a_member_leaves_only_where_others_can_take_its_groups(with_cluster: WithCluster) -> None:
    async def test(cluster: BrokerCluster) -> None:
        await cluster.start("a")
        assert not cluster["a"].cluster.leave()
        await cluster.start("b", "c")
        await cluster.settled("a", "b", "c")
        await cluster.stop("c")
        await until(lambda: not members_of(cluster["a"]).is_reachable("c"), "c is away")
        assert not cluster["a"].cluster.leave()
        members_of(cluster["a"]).remove("c")
        members_of(cluster["a"]).set_state("b", MemberState.DRAINING)
        assert not cluster["a"].cluster.leave()
        await until(lambda: members_of(cluster["b"]).is_draining, "b knows that it drains")
        assert cluster["b"].cluster.leave()  # clients may have routes from before
        assert members_of(cluster["b"]).seen("b").member.state is MemberState.DRAINING

    with_cluster(test)


def test_who_is_away_keeps_its_groups_and_sends_wait_for_it(with_cluster: WithCluster) -> None:
    async def test(cluster: BrokerCluster) -> None:
        await cluster.begin("a", "b")
        [group] = groups_of("b", ["a", "b"])
        await send(cluster["a"], group, "1")
        await cluster.stop("b")
        async with Client(cluster["a"].endpoint) as client:
            request = client.call("SendMessage", _request(grouped(group, "lost")), timeout_s=1.0)
            answer = await request
            assert answer.status.code == definition.PROXY_TIMEOUT
            assert "waits for member b" in answer.status.message
            sending = asyncio.ensure_future(client.send(grouped(group, "2")))
            await soon()
            assert not sending.done()
            await cluster.start("b")
            assert (await sending).status.code == definition.OK
        assert await receive(cluster["b"], polling_s=8) == ["1", "2"]
        assert stored(cluster["a"]) == 0

    with_cluster(test)


def test_a_barrier_outlives_a_restart(with_cluster: WithCluster) -> None:
    async def test(cluster: BrokerCluster) -> None:
        await cluster.begin("a", "b")
        [moves] = groups_of("b", ["a", "b"])
        await send(cluster["b"], moves, "1")
        members_of(cluster["a"]).set_state("b", MemberState.DRAINING)
        await cluster.settled("a")
        await send(cluster["a"], moves, "2")
        await cluster.stop("a")
        await cluster.start("a")
        await cluster.settled("a")
        await send(cluster["a"], moves, "3")
        await soon()
        assert await receive(cluster["a"]) == []
        assert await receive(cluster["b"], polling_s=8) == ["1"]
        assert await receive(cluster["a"], polling_s=8) == ["2", "3"]

    with_cluster(test)


def test_a_handover_waits_for_a_member_that_is_away(with_cluster: WithCluster) -> None:
    """Nobody else can say what it holds. What does not move goes on."""

    async def test(cluster: BrokerCluster) -> None:
        await cluster.begin("a", "b")
        await cluster.stop("b")
        await cluster.start("c")
        [moves] = groups_of("a", ["a", "b"], but=("c", ["a", "b", "c"]))
        [stays] = groups_of("a", ["a", "b", "c"])
        await until(lambda: cluster["c"].cluster.groups.waiting_for == ("b",), "c waits for b")
        await send(cluster["c"], stays, "s")
        async with Client(cluster["a"].endpoint) as client:
            answer = await client.call("SendMessage", _request(grouped(moves, "x")), timeout_s=1.0)
            assert answer.status.code == definition.PROXY_TIMEOUT
        await cluster.start("b")
        await cluster.settled("a", "b", "c")
        await send(cluster["a"], moves, "1")
        assert stored(cluster["c"]) == 1

    with_cluster(test)


def test_messages_of_a_group_that_has_moved_are_sent_to_its_new_owner(with_cluster: WithCluster) -> None:
    async def test(cluster: BrokerCluster) -> None:
        await cluster.begin("a")
        [moves] = groups_of("a", ["a"], but=("b", ["a", "b"]))
        sent = [f"m{number}" for number in range(40)]
        await send(cluster["a"], moves, *sent)
        assert await receive(cluster["a"], polling_s=8) == sent
        await cluster.start("b")
        await cluster.settled("a", "b")
        async with job_service(cluster["a"]) as jobs:
            job = await done(jobs, resend(TOPIC, from_ms=0))
        assert (job.state, dict(job.counts)) == ("done", {"sent": 40})
        assert await receive(cluster["b"], polling_s=8) == sent
        store = cluster["b"].store.messages
        found = [
            store.read(each)
            for number in range(2)
            for each in store.entries(QueueId(TOPIC, number), QueueOffset(0), 100)
        ]
        assert len({each.properties[RESENT_ID] for each in found}) == 40

    with_cluster(test)


def test_what_another_member_holds_unread_keeps_the_number_of_queues(with_cluster: WithCluster) -> None:
    async def test(cluster: BrokerCluster) -> None:
        await cluster.start("a", "b")
        await cluster.settled("a", "b")
        await cluster.make_topic()
        [group] = groups_of("b", ["a", "b"])
        assert await receive(cluster["b"], polling_s=0) == []
        await send(cluster["b"], group, "m0", "m1")
        refusal = await update(cluster["a"], 8)
        assert refusal.startswith("topic orders: messages at member b would lose their order: 2 that ")
        assert await receive(cluster["b"], polling_s=8) == ["m0", "m1"]
        assert await update(cluster["a"], 8) == ""
        await until(lambda: queues_of(cluster["b"]) == (8, 8), "the other member knows")
        await cluster.stop("b")
        assert "unread messages would lose their order, and not all members could be asked" in await update(
            cluster["a"], 2
        )
        assert queues_of(cluster["a"]) == (8, 8)
        assert await update(cluster["a"], 2, break_order=True) == ""

    with_cluster(test)
