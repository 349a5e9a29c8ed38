"""Topics, groups and figures, as RocketMQ's tools ask for them."""

from __future__ import annotations

import json
import re
from typing import Any

import grpc

from quarry_mq.protocol.proto.quarry.admin.v1 import clients_pb2 as pb
from quarry_mq.protocol.proto.quarry.admin.v1.clients_pb2_grpc import ClientServiceStub
from quarry_mq.protocol.remoting.codes import ResponseCode
from quarry_mq.store.message import QueueId
from quarry_mq.store.metadata import TopicType
from tests.conformance.broker import RunningBroker, until
from tests.conformance.client import Client
from tests.conformance.secured import SECRET, SECURED, add_user
from tests.remoting.client import RemotingClient
from tests.remoting.conftest import Serve

TOPIC: dict[str, object] = {
    "topic": "T", "defaultTopic": "TBW102", "readQueueNums": 3, "writeQueueNums": 3, "perm": 6,
    "topicFilterType": "SINGLE_TAG", "topicSysFlag": 0, "order": "false",
}  # fmt: skip


def table_of(body: bytes) -> dict[tuple[str, int], Any]:
    """Return the rows of a map whose keys are queues, which is no JSON."""
    text = body.decode()
    pairs = re.findall(r'(\{"brokerName"[^}]*\}):(\{[^}]*\})', text)
    keys = [json.loads(key) for key, _ in pairs]
    return {(key["topic"], key["queueId"]): json.loads(value) for key, (_, value) in zip(keys, pairs, strict=True)}


def test_topics_are_made_changed_shown_and_deleted(serve: Serve) -> None:
    async def test(broker: RunningBroker, client: RemotingClient) -> None:
        assert (await client.call(351, {"topic": "T"})).code == ResponseCode.TOPIC_NOT_EXIST
        assert (await client.call(17, TOPIC)).code == ResponseCode.SUCCESS
        shown = json.loads((await client.call(351, {"topic": "T"})).body)
        assert (shown["readQueueNums"], shown["perm"], shown["attributes"]) == (3, 6, {"message.type": "MIXED"})
        changed = {**TOPIC, "perm": 4, "writeQueueNums": 5, "attributes": "+message.type=FIFO"}
        assert (await client.call(17, changed)).code == ResponseCode.SUCCESS
        topic = broker.store.topics.get("T")
        assert topic is not None
        assert (topic.type, topic.write_queues, topic.permission.value) == (TopicType.FIFO, 5, 4)
        for wrong in ({"topic": "a b"}, {"attributes": "+message.type=NO"}, {"readQueueNums": 0}):
            assert (await client.call(17, {**TOPIC, **wrong})).code == ResponseCode.INVALID_PARAMETER
        for _ in range(2):
            assert (await client.call(215, {"topic": "T"})).code == ResponseCode.SUCCESS
            assert (await client.call(216, {"topic": "T"})).code == ResponseCode.SUCCESS
        assert broker.store.topics.get("T") is None

    serve(test)


def test_groups_are_made_changed_shown_and_deleted(serve: Serve) -> None:
    async def test(broker: RunningBroker, client: RemotingClient) -> None:
        assert (await client.call(352, {"group": "G"})).code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST
        config = {"groupName": "G", "consumeEnable": True, "retryMaxTimes": 3, "consumeMessageOrderly": True}
        assert (await client.call(200, body=json.dumps(config).encode())).code == ResponseCode.SUCCESS
        group = broker.store.groups.get("G")
        assert group is not None
        assert (group.max_attempts, group.fifo, group.enabled) == (4, True, True)
        config = {"groupName": "G", "consumeEnable": False}
        assert (await client.call(200, body=json.dumps(config).encode())).code == ResponseCode.SUCCESS
        shown = json.loads((await client.call(352, {"group": "G"})).body)
        assert (shown["consumeEnable"], shown["retryMaxTimes"]) == (False, 16)
        for wrong in (b"{", b"{}", b'{"groupName":"a b"}'):
            assert (await client.call(200, body=wrong)).code == ResponseCode.INVALID_PARAMETER
        for _ in range(2):
            assert (await client.call(207, {"groupName": "G"})).code == ResponseCode.SUCCESS
        assert broker.store.groups.get("G") is None

    serve(test)


def test_statistics_of_a_topic_and_a_group(serve: Serve) -> None:
    async def test(broker: RunningBroker, client: RemotingClient) -> None:
        broker.topic("T", queues=2)
        await client.heartbeat("G", "T")
        for _ in range(5):
            await client.send("T", b"x", 1)
        await until(lambda: broker.store.messages.maximum(QueueId("T", 1)) == 5, "all is visible")
        found = table_of((await client.call(202, {"topic": "T"})).body)
        assert set(found) == {("T", 0), ("T", 1)}
        assert (found["T", 1]["maxOffset"], found["T", 1]["minOffset"]) == (5, 0)
        assert abs(found["T", 1]["lastUpdateTimestamp"] - broker.clock.wall_ms()) < 60_000
        assert (await client.call(202, {"topic": "none"})).code == ResponseCode.TOPIC_NOT_EXIST
        place = {"consumerGroup": "G", "topic": "T", "queueId": 1}
        await client.call(15, {**place, "commitOffset": 2})
        found = table_of((await client.call(208, {"consumerGroup": "G"})).body)
        assert set(found) == {("T", 1), ("%RETRY%G", 0)}
        row = found["T", 1]
        assert (row["brokerOffset"], row["consumerOffset"], row["pullOffset"]) == (5, 2, 2)
        assert row["lastTimestamp"] > 0
        async with Client(broker.endpoint) as other:
            received = await other.receive("G", "T", count=2)
            assert len(received.messages) == 2
        row = table_of((await client.call(208, {"consumerGroup": "G", "topic": "T"})).body)["T", 1]
        assert (row["consumerOffset"], row["pullOffset"]) == (2, 4)
        assert json.loads((await client.call(300, {"topic": "T"})).body) == {"groupList": ["G"]}

    serve(test)


def test_who_is_connected(serve: Serve) -> None:
    async def test(_broker: RunningBroker, client: RemotingClient) -> None:
        assert (await client.call(203, {"consumerGroup": "G"})).code == ResponseCode.CONSUMER_NOT_ONLINE
        assert (await client.call(204, {"producerGroup": "P"})).code == ResponseCode.SYSTEM_ERROR
        await client.heartbeat("G", "T", expression="A || B", producers=("P",))
        found = json.loads((await client.call(203, {"consumerGroup": "G"})).body)
        [connection] = found["connectionSet"]
        assert (connection["clientId"], connection["language"], connection["version"]) == ("c1", "JAVA", 513)
        assert (found["consumeType"], found["messageModel"]) == ("CONSUME_PASSIVELY", "CLUSTERING")
        assert found["subscriptionTable"]["T"]["subString"] == "A || B"
        found = json.loads((await client.call(204, {"producerGroup": "P"})).body)
        assert [each["clientId"] for each in found["connectionSet"]] == ["c1"]

    serve(test)


def test_the_brokers_list_of_clients_has_both_kinds(serve: Serve) -> None:
    async def test(broker: RunningBroker, client: RemotingClient) -> None:
        broker.topic("T")
        await client.heartbeat("G", "T", producers=("P",))
        async with grpc.aio.insecure_channel(broker.admin) as channel:
            stub = ClientServiceStub(channel)

            async def listed(**wanted: Any) -> list[tuple[str, str, str, list[str]]]:
                pages = [page async for page in stub.ListClients(pb.ListClientsRequest(**wanted))]
                rows = [row for page in pages for row in page.clients]
                return [(row.client_id, row.kind, row.group, list(row.topics)) for row in rows]

            consumer = ("c1", "remoting consumer", "G", ["T"])
            producer: tuple[str, str, str, list[str]] = ("c1", "remoting producer", "P", [])
            assert await listed() == [consumer, producer]
            assert await listed(group="G") == await listed(topic="T") == [consumer]
            assert await listed(type=pb.CLIENT_TYPE_PRODUCER) == [producer]
            assert await listed(group="G", topic="T", type=pb.CLIENT_TYPE_CONSUMER) == [consumer]

    serve(test)


def test_operators_need_rights(serve: Serve) -> None:
    async def test(broker: RunningBroker, client: RemotingClient) -> None:
        broker.topic("mine")
        add_user(broker, "alice", "topic:mine get update", "group:G create")
        client.user = ("alice", SECRET)
        assert (await client.call(351, {"topic": "mine"})).code == ResponseCode.SUCCESS
        assert (await client.call(17, {**TOPIC, "topic": "mine"})).code == ResponseCode.SUCCESS
        group = b'{"groupName":"G"}'
        assert (await client.call(200, body=group)).code == ResponseCode.SUCCESS
        for code, fields, body in (
            (17, TOPIC, b""), (215, {"topic": "mine"}, b""), (200, {}, group), (207, {"groupName": "G"}, b""),
            (208, {"consumerGroup": "G"}, b""), (202, {"topic": "other"}, b""),
        ):  # fmt: skip
            assert (await client.call(code, fields, body)).code == ResponseCode.NO_PERMISSION, code

    serve(test, security=SECURED)
