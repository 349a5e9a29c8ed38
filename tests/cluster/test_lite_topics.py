"""Lite topics in a cluster of real brokers: each lives where its name hashes to, and clients may call anybody."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack

from quarry_mq.protocol.proto.apache.rocketmq.v2 import definition_pb2 as definition
from quarry_mq.server.cluster.membership import MemberState
from quarry_mq.store.message import QueueId
from quarry_mq.store.metadata import Group, TopicType
from quarry_mq.store.metadata.lite import LiteSubscriptionTable, light_queue_name
from tests.cluster.brokers import BrokerCluster, groups_of, soon
from tests.cluster.conftest import WithCluster
from tests.conformance.broker import PATIENCE_S, RunningBroker, until
from tests.conformance.lite import GROUP, PARENT, LiteClient, found, send


async def with_topics(cluster: BrokerCluster, model: str = "Shared") -> None:
    first = next(iter(cluster.running.values()))
    first.topic(PARENT, TopicType.LITE)
    first.store.groups.create(Group(GROUP, attributes={"lite.bind.topic": PARENT, "lite.sub.model": model}))
    everybody = tuple(cluster.running.values())
    await until(lambda: all(each.store.groups.get(GROUP) for each in everybody), "all know the group")


def stored(broker: RunningBroker, lite_topic: str) -> int:
    return broker.store.messages.maximum(QueueId(light_queue_name(PARENT, lite_topic), 0))


def wanted(broker: RunningBroker) -> list[str]:
    return sorted(name for _, _, name in LiteSubscriptionTable(broker.store.state_engine).all_rows())


class Everywhere:
    """One client as libraries have it: it says what it wants to one member, and receives from all."""

    def __init__(self, client_id: str = "device") -> None:
        self.client_id = client_id
        self._open = AsyncExitStack()
        self.at: dict[str, LiteClient] = {}

    async def connect(self, cluster: BrokerCluster) -> None:
        for name, broker in cluster.running.items():
            if name not in self.at:
                self.at[name] = await self._open.enter_async_context(LiteClient(broker.endpoint, self.client_id))
                await self.at[name].start()

    async def received(self, *names: str) -> list[tuple[str, bytes]]:
        """Everything there is at these members, acknowledged."""
        bodies: list[tuple[str, bytes]] = []
        for name in names:
            while (received := await self.at[name].got(polling_s=0.5)).messages:
                bodies += found(received)
                await self.at[name].done(received)
        return bodies

    async def close(self) -> None:
        await self._open.aclose()


def test_a_lite_topic_lives_where_its_name_hashes_to_whoever_is_asked(with_cluster: WithCluster) -> None:
    async def test(cluster: BrokerCluster) -> None:
        names = ["a", "b", "c"]
        await cluster.start(*names)
        await with_topics(cluster)
        await cluster.settled(*names)
        client = Everywhere()
        await client.connect(cluster)
        for owner in names:
            [lite_topic] = groups_of(owner, names)
            await client.at["a"].add(lite_topic)  # said to one, known to all
            for name in names:
                assert lite_topic in wanted(cluster[name])
                await send(client.at[name], lite_topic, name.encode())
            assert [stored(cluster[name], lite_topic) for name in names] == [3 * (name == owner) for name in names]
            assert await client.received(owner) == [(lite_topic, name.encode()) for name in names]
        await client.at["b"].replace()
        assert [wanted(cluster[name]) for name in names] == [[], [], []]
        await client.close()

    with_cluster(test)


def test_an_exclusive_lite_topic_is_one_clients_on_all_members(with_cluster: WithCluster) -> None:
    async def test(cluster: BrokerCluster) -> None:
        await cluster.start("a", "b")
        await with_topics(cluster, "Exclusive")
        await cluster.settled("a", "b")
        one, two = Everywhere("one"), Everywhere("two")
        await one.connect(cluster)
        await two.connect(cluster)
        [lite_topic] = groups_of("b", ["a", "b"])
        await one.at["a"].add(lite_topic)
        await two.at["b"].add(lite_topic)
        for name in ("a", "b"):
            told = await one.at[name].told()
            assert told.notify_unsubscribe_lite_command.lite_topic == lite_topic
        await send(one.at["a"], lite_topic, b"1")
        assert await one.received("a", "b") == []
        assert await two.received("a", "b") == [(lite_topic, b"1")]
        await one.close()
        await two.close()

    with_cluster(test)


def test_a_lite_topic_moves_in_order_and_its_old_messages_are_found(with_cluster: WithCluster) -> None:
    """What the old owner holds comes first, as long as somebody consumes it."""

    async def test(cluster: BrokerCluster) -> None:
        await cluster.start("a", "b")
        await with_topics(cluster)
        await cluster.settled("a", "b")
        [moving] = groups_of("c", ["a", "b", "c"], but=("a", ["a", "b"]))
        [staying] = groups_of("a", ["a", "b", "c"], but=("a", ["a", "b"]))
        client = Everywhere()
        await client.connect(cluster)
        await client.at["a"].add(moving, staying)
        await send(client.at["b"], moving, b"1", b"2")
        await send(client.at["b"], staying, b"1")
        await cluster.start("c")
        await cluster.settled("a", "b", "c")
        await client.connect(cluster)
        await client.at["a"].replace(moving, staying)  # as clients repeat it
        await until(lambda: wanted(cluster["c"]) == sorted([moving, staying]), "the new member knows, too")
        await send(client.at["b"], moving, b"3")
        await send(client.at["b"], staying, b"2")
        assert stored(cluster["c"], moving) == 1
        assert stored(cluster["a"], staying) == 2

        assert await client.received("c") == []  # behind what lies on the old owner
        assert sorted(await client.received("a")) == sorted(
            [(moving, b"1"), (moving, b"2"), (staying, b"1"), (staying, b"2")]
        )
        received = await client.at["c"].got(polling_s=5.0)
        assert found(received) == [(moving, b"3")]
        await client.at["c"].done(received)

        cluster["c"].cluster.members.set_state("c", MemberState.DRAINING)
        await cluster.settled("a", "b")
        await send(client.at["c"], moving, b"4")
        assert stored(cluster["a"], moving) == 3
        await soon(0.2)
        assert await client.received("a", "b", "c") == [(moving, b"4")]
        await client.close()

    with_cluster(test)


def test_a_member_that_was_away_hears_it_when_the_client_repeats_it(with_cluster: WithCluster) -> None:
    async def test(cluster: BrokerCluster) -> None:
        await cluster.start("a", "b")
        await with_topics(cluster)
        await cluster.settled("a", "b")
        client = Everywhere()
        await client.connect(cluster)
        await cluster.stop("b")
        await client.at["a"].add("x")  # nobody waits for who is away
        await cluster.start("b")
        await cluster.settled("a", "b")
        assert wanted(cluster["b"]) == []
        async with asyncio.timeout(PATIENCE_S):  # until the member that was told also knows where the other is now
            while wanted(cluster["b"]) != ["x"]:
                assert await client.at["a"].sync(definition.COMPLETE_ADD, "x") == definition.OK
                await asyncio.sleep(0.05)
        await client.close()

    with_cluster(test)
