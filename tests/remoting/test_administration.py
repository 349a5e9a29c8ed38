"""Topics, groups and figures, as RocketMQ's tools ask for them."""

from __future__ import annotations

import json
import re
from typing import Any

import grpc
import pytest

from quarry_mq.protocol.proto.quarry.admin.v1 import clients_pb2 as pb
from quarry_mq.protocol.proto.quarry.admin.v1.clients_pb2_grpc import ClientServiceStub
from quarry_mq.protocol.remoting.codes import RequestCode, ResponseCode
from quarry_mq.store.message import QueueId
from quarry_mq.store.metadata import TopicType
from quarry_mq.store.security.model import UserKind
from tests.conformance.broker import RunningBroker, until
from tests.conformance.client import Client
from tests.conformance.secured import SECRET, SECURED, add_user
from tests.remoting.client import RemotingClient, pull_fields, records_in
from tests.remoting.conftest import Serve, address_of, front_of

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
        assert (shown["readQueueNums"], shown["perm"], shown["attributes"]) == (3, 6, {})
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


def test_settings_of_all_topics_and_groups_are_listed_by_pages(serve: Serve) -> None:
    async def test(_broker: RunningBroker, client: RemotingClient) -> None:
        configs = [
            {"topicName": f"T{number}", "readQueueNums": 2, "writeQueueNums": 2, "perm": 6, "attributes": attributes}
            for number, attributes in enumerate(({"message.type": "FIFO"}, {"+message.type": "DELAY"}, {}))
        ]
        body = json.dumps({"topicConfigList": configs}).encode()
        assert (await client.call(18, body=body)).code == ResponseCode.SUCCESS
        groups = json.dumps({"groupConfigList": [{"groupName": f"G{number}"} for number in range(3)]}).encode()
        assert (await client.call(225, body=groups)).code == ResponseCode.SUCCESS
        for code, body in (
            (18, b'{"topicConfigList":[{}]}'),
            (18, b'{"topicConfigList":[{"topicName":"T","attributes":{"message.type":1}}]}'),
            (225, b'{"groupConfigList":[1]}'),
        ):
            assert (await client.call(code, body=body)).code == ResponseCode.INVALID_PARAMETER

        listed = await client.call(21)
        table = json.loads(listed.body)["topicConfigTable"]
        types = {name: table[name]["attributes"].get("message.type") for name in ("T0", "T1", "T2")}
        assert types == {"T0": "FIFO", "T1": "DELAY", "T2": None}
        assert listed.fields == {"totalTopicNum": str(len(table))}
        pages = [await client.call(201, {"groupSeq": number, "maxGroupNum": 2}) for number in (0, 2, 4)]
        found = [list(json.loads(page.body)["subscriptionGroupTable"]) for page in pages]
        assert found == [["G0", "G1"], ["G2"], []]
        assert {page.fields["totalGroupNum"] for page in pages} == {"3"}

    serve(test)


def test_progress_of_queues_groups_and_topics(serve: Serve) -> None:
    async def test(broker: RunningBroker, client: RemotingClient) -> None:
        broker.topic("T", queues=2)
        await client.heartbeat("G", "T", "quiet", expression="A", producers=("P",))
        sent = [await client.send("T", b"x" * size, 1, TAGS="A") for size in (1, 2, 3)]
        await until(lambda: broker.store.messages.maximum(QueueId("T", 1)) == 3, "all is visible")
        await client.call(15, {"consumerGroup": "G", "topic": "T", "queueId": 1, "commitOffset": 1})

        entries = json.loads((await client.call(321, {
            "topic": "T", "queueId": 1, "index": 1, "count": 5, "consumerGroup": "G",
        })).body)  # fmt: skip
        assert (entries["minQueueIndex"], entries["maxQueueIndex"]) == (0, 3)
        offsets = [int(each.fields["msgId"][-16:], 16) for each in sent]
        assert [each["physicOffset"] for each in entries["queueData"]] == offsets[1:]
        assert {each["tagsCode"] for each in entries["queueData"]} == {ord("A")}
        assert entries["subscriptionData"]["subString"] == "A"
        assert (await client.call(321, {"topic": "T", "queueId": 9, "index": 0, "count": 1})).code

        [span] = json.loads((await client.call(303, {"topic": "T", "group": "G"})).body)["consumeTimeSpanSet"]
        assert span["messageQueue"]["queueId"] == 1
        times = span["minTimeStamp"], span["consumeTimeStamp"], span["maxTimeStamp"]
        assert 0 < times[0] <= times[1] <= times[2]
        assert span["delayTime"] >= 0
        unread = json.loads((await client.call(303, {"topic": "T", "group": "new"})).body)["consumeTimeSpanSet"]
        assert [each["consumeTimeStamp"] for each in unread] == [span["minTimeStamp"]], "as if before the first message"

        assert json.loads((await client.call(300, {"topic": "quiet"})).body) == {"groupList": ["G"]}
        assert json.loads((await client.call(343, {"group": "G"})).body) == {"topicList": ["T"]}
        known = json.loads((await client.call(345, {"group": "G", "topic": "T"})).body)
        assert known["subscriptionData"]["subString"] == "A"
        assert (await client.call(345, {"group": "none", "topic": "T"})).code == ResponseCode.CONSUMER_NOT_ONLINE
        [producer] = json.loads((await client.call(328)).body)["data"]["P"]
        assert (producer["clientId"], producer["language"]) == ("c1", "JAVA")

        whole = (await client.call(317, {"isOrder": "false"})).body
        assert table_of(whole)["T", 1]["consumerOffset"] == 1
        assert b'"totalDiff":2,"totalInflightDiff":0,' in whole
        assert b'"consumeStatsList":[]' in (await client.call(317, {"isOrder": "true"})).body
        assert set(table_of((await client.call(208, {"consumerGroup": "G", "topicList": "T;none"})).body)) == {("T", 1)}

    serve(test)


def test_statistics_of_the_broker(serve: Serve) -> None:
    async def test(broker: RunningBroker, client: RemotingClient) -> None:
        broker.topic("T", queues=1)

        async def stats(name: str, key: str, part: str = "statsMinute") -> tuple[int, float]:
            found = json.loads((await client.call(315, {"statsName": name, "statsKey": key})).body)[part]
            return found["sum"], found["tps"]

        statistics = broker.broker._remoting._statistics
        assert (await client.call(315, {"statsName": "TOPIC_PUT_NUMS", "statsKey": "T"})).code
        for _ in range(30):
            await client.send("T")
        first = records_in((await client.pull("T", 0)).body)[0]
        await client.heartbeat("G", "T")
        back = {"group": "G", "offset": first.physical_offset, "delayLevel": 1, "originTopic": "T"}
        assert (await client.call(36, back)).code == ResponseCode.SUCCESS
        for _ in range(5):  # less than a minute since the start, however long the messages took: counts are not scaled
            broker.clock.push(10)
            statistics.sample()
        assert (await stats("TOPIC_PUT_NUMS", "T"))[0] == 30
        count, rate = await stats("BROKER_PUT_NUMS", "DefaultCluster")
        assert count == 30
        assert 0.5 < rate <= 0.6
        assert (await stats("TOPIC_PUT_SIZE", "T"))[0] > 30 * 90
        assert (await stats("GROUP_GET_NUMS", "T@G"))[0] == 30
        assert (await stats("SNDBCK_PUT_NUMS", "T@G"))[0] == 1
        for _ in range(8):
            broker.clock.push(10)
            statistics.sample()
        assert (await stats("TOPIC_PUT_NUMS", "T"))[0] == 0
        assert (await stats("TOPIC_PUT_NUMS", "T", "statsHour"))[0] == 30
        assert (await stats("TOPIC_PUT_NUMS", "T", "statsDay"))[0] == 30

        table = json.loads((await client.call(28)).body)["table"]
        assert all(isinstance(value, str) for value in table.values())
        assert table["msgPutTotalTodayNow"] == table["putMessageTimesTotal"] == "30"
        assert [len(table[name].split()) for name in ("putTps", "getTransferedTps", "getTransferredTps")] == [3, 3, 3]
        assert float(table["commitLogDiskRatio"]) < 1
        lines = (await client.call(26)).body.decode().splitlines()
        assert "brokerClusterName=DefaultCluster" in lines
        assert "autoCreateTopicEnable=true" in lines
        assert (await client.call(25, body=b"maxMessageSize=1")).code == ResponseCode.NO_PERMISSION

    serve(test)


def test_a_reset_is_told_to_the_client_that_owns_the_queue(serve: Serve) -> None:
    async def test(broker: RunningBroker, client: RemotingClient) -> None:
        broker.topic("T", queues=2)
        await client.heartbeat("G", "T")
        for _ in range(4):
            await client.send("T", b"x", 1)
        await until(lambda: broker.store.messages.maximum(QueueId("T", 1)) == 4, "all is visible")
        place = {"consumerGroup": "G", "topic": "T", "queueId": 1}
        await client.call(15, {**place, "commitOffset": 4})
        waiting = client.begin(11, pull_fields("T", 4, 1, flags=6, wait_ms=20_000))
        reset = {"topic": "T", "group": "G", "timestamp": 0, "isForce": "true"}
        answer = await client.call(222, reset)
        assert answer.body.count(b'"queueId"') == 2
        assert answer.body.endswith(b'"queueId":1,"topic":"T"}:0}}')
        # the client counts from where it was until it pulls again
        assert (await client.call(15, {**place, "commitOffset": 4})).code == ResponseCode.SUCCESS
        assert (await client.call(14, place)).fields["offset"] == "0"
        await client.send("T", b"x", 1)
        moved = await waiting
        assert (moved.code, moved.fields["nextBeginOffset"]) == (ResponseCode.PULL_OFFSET_MOVED, "0")
        assert (await client.pull("T", 0, 1)).code == ResponseCode.SUCCESS
        await client.call(15, {**place, "commitOffset": 3})
        assert (await client.call(14, place)).fields["offset"] == "3"

        one = {**reset, "queueId": 1, "offset": 2}
        assert b":2}}" in (await client.call(222, one)).body
        moved = await client.pull("T", 3, 1, flags=5, commit=3)
        assert (moved.code, moved.fields["nextBeginOffset"]) == (ResponseCode.PULL_OFFSET_MOVED, "2")
        assert (await client.call(14, place)).fields["offset"] == "2"
        assert b":5}" in (await client.call(222, {**reset, "timestamp": -1})).body
        for wrong, code in (({"topic": "none"}, 17), ({"group": "none"}, 26), ({"queueId": 7}, 29)):
            assert (await client.call(222, {**reset, **wrong})).code == code
        pulls = broker.broker._remoting._pulls
        assert pulls._resets
        await client.call(35, {"clientID": "c1", "consumerGroup": "G"})
        pulls.sweep()
        assert not pulls._resets
        await client.call(222, reset)
        assert not pulls._resets

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
            (208, {"consumerGroup": "G"}, b""), (202, {"topic": "other"}, b""), (21, {}, b""), (201, {}, b""),
            (18, {}, b'{"topicConfigList":[{"topicName":"T"}]}'), (225, {}, b'{"groupConfigList":[{"groupName":"H"}]}'),
            (317, {"isOrder": "false"}, b""), (303, {"topic": "mine", "group": "G"}, b""), (343, {"group": "G"}, b""),
            (321, {"topic": "other", "queueId": 0, "index": 0, "count": 1}, b""), (328, {}, b""), (28, {}, b""),
            (345, {"group": "G", "topic": "mine"}, b""), (26, {}, b""),
            (315, {"statsName": "TOPIC_PUT_NUMS", "statsKey": "mine"}, b""), (205, {"brokerName": "b"}, b""),
            (222, {"topic": "mine", "group": "G", "timestamp": 0}, b""), (319, {}, b""),
        ):  # fmt: skip
            assert (await client.call(code, fields, body)).code == ResponseCode.NO_PERMISSION, code

    serve(test, security=SECURED)


def test_super_users_change_users_and_rules(serve: Serve) -> None:
    async def test(broker: RunningBroker, client: RemotingClient) -> None:
        broker.topic("T")
        add_user(broker, "root", kind=UserKind.SUPER)
        add_user(broker, "alice", "cluster:* update get")
        client.user = ("root", SECRET)
        password = {"username": "bob", "password": "secret-of-bob", "userType": "Normal"}
        assert (await client.call(3001, {"username": "bob"}, json.dumps(password).encode())).code == 0
        told = json.loads((await client.call(3004, {"username": "bob"})).body)
        assert told == {"username": "bob", "userType": "Normal", "userStatus": "enable"}
        entry = {"resource": "Topic:T", "actions": ["Pub", "Get"], "decision": "Allow", "sourceIps": ["127.0.0.1"]}
        rules = json.dumps({"subject": "User:bob", "policies": [{"entries": [entry]}]}).encode()
        assert (await client.call(3006, {"subject": "User:bob"}, rules)).code == 0
        [policy] = json.loads((await client.call(3009, {"subject": "User:bob"})).body)["policies"]
        assert policy["entries"] == [{**entry, "sourceIps": ["127.0.0.1/32"]}]
        everything = json.dumps({"policies": [{"entries": [{"resource": "Group:G*", "actions": ["All"]}]}]}).encode()
        assert (await client.call(3007, {"subject": "User:bob"}, everything)).code == 0

        bob = await RemotingClient.connect(address_of(broker))
        bob.user = ("bob", "secret-of-bob")
        assert (await bob.send("T")).code == ResponseCode.SUCCESS
        assert (await bob.call(3005)).code == ResponseCode.NO_PERMISSION
        changed = json.dumps({"password": "another-secret"}).encode()
        for _ in range(4):
            assert (await client.call(3002, {"username": "bob"}, changed)).code == 0
        assert (await bob.send("T")).code == ResponseCode.NO_PERMISSION
        bob.user = ("bob", "another-secret")
        assert (await bob.send("T")).code == ResponseCode.SUCCESS
        listed = json.loads((await client.call(3005, {"filter": "o"})).body)
        assert [each["username"] for each in listed] == ["bob", "root"]
        rows = json.loads((await client.call(3010, {"subjectFilter": "bob", "resourceFilter": "Group:G"})).body)
        assert [each["subject"] for each in rows] == ["User:bob"]
        assert (await client.call(3008, {"subject": "User:bob", "resource": "Topic:T"})).code == 0
        assert (await bob.send("T")).code == ResponseCode.NO_PERMISSION
        assert (await client.call(3008, {"subject": "User:bob"})).code == 0
        assert (await client.call(3009, {"subject": "User:bob"})).code == ResponseCode.POLICY_NOT_EXIST
        disabled = json.dumps({"userStatus": "disable"}).encode()
        assert (await client.call(3002, {"username": "bob"}, disabled)).code == 0
        assert (await bob.call(105, {"topic": "T"})).code == ResponseCode.NO_PERMISSION
        for _ in range(2):
            assert (await client.call(3003, {"username": "bob"})).code == 0
        assert (await client.call(3004, {"username": "bob"})).code == ResponseCode.USER_NOT_EXIST
        for code, fields, body in (
            (3001, {"username": "carol"}, b'{"userType":"Normal"}'),
            (3001, {"username": "carol"}, b'{"password":"long-enough","userType":"King"}'),
            (3006, {"subject": "Role:carol"}, rules),
            (3006, {"subject": "User:alice"}, b'{"policies":[{"entries":[{"resource":"Queue:T"}]}]}'),
            (3006, {"subject": "User:alice"}, b'{"policies":[{"entries":[{"resource":"Topic:T","actions":"Pub"}]}]}'),
        ):
            assert (await client.call(code, fields, body)).code == ResponseCode.INVALID_PARAMETER, body
        client.user = ("alice", SECRET)
        for code in range(3001, 3011):
            fields = {"username": "root", "subject": "User:root"}
            assert (await client.call(code, fields, rules)).code == ResponseCode.NO_PERMISSION, code
        await bob.close()

    serve(test, security=SECURED)


def test_nobody_makes_users_where_none_are_asked_for(serve: Serve) -> None:
    async def test(broker: RunningBroker, client: RemotingClient) -> None:
        body = b'{"password":"secret-of-bob","userType":"Super"}'
        assert (await client.call(3001, {"username": "bob"}, body)).code == ResponseCode.NO_PERMISSION
        assert broker.store.users.is_empty()

    serve(test)


OPERATORS_ONLY = frozenset({
    RequestCode.UPDATE_AND_CREATE_TOPIC, RequestCode.DELETE_TOPIC_IN_BROKER, RequestCode.UPDATE_AND_CREATE_GROUP,
    RequestCode.DELETE_GROUP, RequestCode.UPDATE_AND_CREATE_TOPIC_LIST, RequestCode.UPDATE_AND_CREATE_GROUP_LIST,
    RequestCode.GET_ALL_TOPIC_CONFIG, RequestCode.GET_ALL_GROUP_CONFIG, RequestCode.RESET_OFFSET,
    RequestCode.SET_MESSAGE_REQUEST_MODE, RequestCode.GET_TOPIC_STATS, RequestCode.GET_CONSUME_STATS,
    RequestCode.GET_BROKER_CONSUME_STATS, RequestCode.QUERY_CONSUME_TIME_SPAN, RequestCode.QUERY_CONSUME_QUEUE,
    RequestCode.QUERY_TOPIC_CONSUME_BY_WHO, RequestCode.QUERY_TOPICS_BY_CONSUMER,
    RequestCode.QUERY_SUBSCRIPTION_BY_CONSUMER, RequestCode.GET_CONSUMER_CONNECTIONS,
    RequestCode.GET_PRODUCER_CONNECTIONS, RequestCode.GET_ALL_PRODUCERS, RequestCode.GET_BROKER_RUNTIME_INFO,
    RequestCode.VIEW_BROKER_STATS, RequestCode.GET_BROKER_CONFIG, RequestCode.UPDATE_BROKER_CONFIG,
    RequestCode.WIPE_WRITE_PERMISSION_OF_BROKER, RequestCode.ADD_WRITE_PERMISSION_OF_BROKER,
    RequestCode.GET_CONSUMER_RUNNING_INFO, RequestCode.CONSUME_MESSAGE_DIRECTLY,
})  # fmt: skip
"""Requests that need no users on this machine, and users or `security.open_admin` from others."""


ADMIN_ALONE_ASKS = {**SECURED, "authentication": False, "authorization": False, "admin_authentication": True}


def come_from_another_machine(broker: RunningBroker) -> None:
    """Let the open connections be those of another machine."""
    for connection in front_of(broker)._connections:
        connection.peer = "192.0.2.1:40000"


def test_without_users_operators_on_other_machines_are_refused(serve: Serve) -> None:
    async def test(broker: RunningBroker, client: RemotingClient) -> None:
        broker.topic("T", queues=1)
        assert (await client.call(RequestCode.GET_TOPIC_STATS, {"topic": "T"})).code == ResponseCode.SUCCESS
        come_from_another_machine(broker)
        for code in OPERATORS_ONLY:
            answer = await client.call(code, {"topic": "T", "group": "G"})
            assert answer.code == ResponseCode.NO_PERMISSION, code
            assert "from other machines need users" in str(answer.remark), code
        assert broker.store.topics.get("T") is not None
        await client.send("T")
        assert len(records_in((await client.pull("T", 0)).body)) == 1
        assert (await client.call(351, {"topic": "T"})).code == ResponseCode.SUCCESS
        assert (await client.heartbeat("G", "T")).code == ResponseCode.SUCCESS

    serve(test)


@pytest.mark.parametrize(
    ("changes", "here", "there"),
    [
        ({}, True, False),
        ({"security": {"open_admin": True}}, True, True),
        ({"security": ADMIN_ALONE_ASKS}, False, False),
    ],
)
def test_who_may_administer_without_a_signature(serve: Serve, changes: dict[str, Any], here: bool, there: bool) -> None:
    async def test(broker: RunningBroker, client: RemotingClient) -> None:
        assert ((await client.call(17, {**TOPIC, "topic": "here"})).code == ResponseCode.SUCCESS) is here
        come_from_another_machine(broker)
        assert ((await client.call(17, {**TOPIC, "topic": "there"})).code == ResponseCode.SUCCESS) is there
        assert (broker.store.topics.get("here") is not None) is here
        assert (broker.store.topics.get("there") is not None) is there

    serve(test, **changes)
