"""Sends, pulls, retries, transactions and look-ups by remoting, at a running broker."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from typing import Any

import pytest

from quarry_mq.protocol.messages.property_names import DELAY_LEVEL
from quarry_mq.protocol.remoting.batches import BatchedMessage
from quarry_mq.protocol.remoting.codes import RequestCode, ResponseCode
from quarry_mq.protocol.remoting.frames import write_command
from quarry_mq.server.remoting import sessions
from quarry_mq.store.message import QueueId, QueueOffset
from quarry_mq.store.metadata import Group, Permission, TopicType
from quarry_mq.store.record import StoredMessage, parse_offset_message_id
from tests.cluster.test_routes import Seen
from tests.conformance.broker import RunningBroker, until
from tests.conformance.client import Client, message
from tests.conformance.secured import SECRET, SECURED, add_user
from tests.remoting.client import RemotingClient, heartbeat_body, join_batch, pull_fields, records_in, send_fields
from tests.remoting.conftest import Serve, address_of, front_of


async def found_in(client: RemotingClient, topic: str, queue: int = 0, **terms: Any) -> list[StoredMessage]:
    """Return all messages of a queue, as soon as there is one."""
    answer = await client.pull(topic, 0, queue, flags=6, wait_ms=20_000, **terms)
    assert answer.code == ResponseCode.SUCCESS, answer
    return records_in(answer.body)


# -- sends


def test_a_send_is_stored_in_the_queue_that_its_client_names(serve: Serve) -> None:
    async def test(broker: RunningBroker, client: RemotingClient) -> None:
        broker.topic("T", TopicType.FIFO)
        for offset in range(3):
            answer = await client.send("T", b"body", 2, TAGS="A", KEYS="k1 k2", region="x", UNIQ_KEY=f"U{offset}")
            assert answer.code == ResponseCode.SUCCESS
            fields = dict(answer.fields)
            _, physical_offset = parse_offset_message_id(fields.pop("msgId"))
            assert fields == {
                "queueId": "2",
                "queueOffset": str(offset),
                "transactionId": f"U{offset}",
                "MSG_REGION": "DefaultRegion",
                "TRACE_ON": "true",
            }
            record = broker.store.messages.record_at(physical_offset)
            assert (record.topic, record.queue_number, record.flag) == ("T", 2, 7)
            assert record.born_timestamp_ms == 1_700_000_000_000
            assert record.properties["CLUSTER"] == "DefaultCluster"
            assert (record.properties["region"], record.properties["TAGS"]) == ("x", "A")
        own = await client.send("T", b"without an id")
        assert len(own.fields["transactionId"]) == 32

    serve(test)


def test_both_versions_of_a_send_say_the_same(serve: Serve) -> None:
    async def test(broker: RunningBroker, client: RemotingClient) -> None:
        broker.topic("T")
        long_names = {
            "producerGroup": "P", "topic": "T", "defaultTopic": "TBW102", "defaultTopicQueueNums": 4, "queueId": 1,
            "sysFlag": 0, "bornTimestamp": 5, "flag": 3, "properties": "TAGS\x01B", "reconsumeTimes": 0,
        }  # fmt: skip
        assert (await client.call(10, long_names, b"x")).fields["queueId"] == "1"
        [record] = await found_in(client, "T", 1)
        assert (record.properties["TAGS"], record.flag) == ("B", 3)
        chosen = await client.send("T", b"x", -1)
        assert 0 <= int(chosen.fields["queueId"]) < 4

    serve(test)


def test_a_batch_is_stored_in_order_and_taken_apart(serve: Serve) -> None:
    async def test(broker: RunningBroker, client: RemotingClient) -> None:
        broker.topic("T")
        batch = [BatchedMessage(at, b"%d" % at, b"TAGS\x01t%d\x02KEYS\x01k" % at) for at in range(3)]
        answer = await client.call(320, send_fields("T"), join_batch(batch))
        assert (answer.code, answer.fields["queueOffset"]) == (ResponseCode.SUCCESS, "0")
        assert len(answer.fields["msgId"].split(",")) == 3
        assert "transactionId" not in answer.fields
        found = await found_in(client, "T")
        assert [(bytes(each.body), each.flag, each.properties["TAGS"]) for each in found] == [
            (b"0", 0, "t0"), (b"1", 1, "t1"), (b"2", 2, "t2"),
        ]  # fmt: skip
        for wrong in (b"", b"\0\0\0\x01", join_batch(batch)[:-1]):
            assert (await client.call(320, send_fields("T"), wrong)).code == ResponseCode.MESSAGE_ILLEGAL

    serve(test)


def test_what_may_not_be_sent_is_refused_with_rocketmqs_codes(serve: Serve) -> None:
    async def test(broker: RunningBroker, client: RemotingClient) -> None:
        broker.topic("T")
        broker.topic("closed")
        closed = broker.store.topics.get("closed")
        assert closed is not None
        broker.store.topics.update(type(closed)("closed", closed.type, 4, 4, Permission.READ))

        async def code_of(topic: str, queue: int = 0, body: bytes = b"x", **properties: str) -> int:
            return (await client.send(topic, body, queue, **properties)).code

        assert await code_of("T", 4) == ResponseCode.INVALID_PARAMETER
        assert await code_of("closed") == ResponseCode.NO_PERMISSION
        assert await code_of("SCHEDULE_TOPIC_XXXX") == ResponseCode.NO_PERMISSION
        assert await code_of("not a name") == ResponseCode.INVALID_PARAMETER
        assert await code_of("%RETRY%nobody") == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST
        assert await code_of("T", body=bytes(4 * 1024 * 1024 + 1)) == ResponseCode.MESSAGE_ILLEGAL
        assert await code_of("T", body=bytes(4 * 1024 * 1024)) == ResponseCode.SUCCESS
        assert await code_of("T", a="b" * 32_767) == ResponseCode.INVALID_PARAMETER
        assert await code_of("T", TIMER_DELAY_SEC=str(4 * 86_400)) == ResponseCode.MESSAGE_ILLEGAL
        assert await code_of("made") == ResponseCode.SUCCESS
        assert broker.store.topics.get("made") is not None

    serve(test, groups={"auto_create": False})


def test_a_topic_is_not_made_where_that_is_not_allowed(serve: Serve) -> None:
    async def test(_broker: RunningBroker, client: RemotingClient) -> None:
        for topic in ("none", "TBW102"):
            answer = await client.call(105, {"topic": topic})
            assert answer.code == ResponseCode.TOPIC_NOT_EXIST
            assert (answer.remark or "").startswith("No topic route info in name server for the topic")
        assert (await client.send("none")).code == ResponseCode.TOPIC_NOT_EXIST

    serve(test, topics={"auto_create": False})


def test_what_a_consumer_adds_is_not_stored_again(serve: Serve) -> None:
    async def test(broker: RunningBroker, client: RemotingClient) -> None:
        broker.topic("T")
        await client.send("T", b"x", 0, POP_CK="1 2 3", MIN_OFFSET="0", MAX_OFFSET="9", kept="yes", **{"__CRC32#": "1"})
        [record] = await found_in(client, "T")
        assert not {"POP_CK", "MIN_OFFSET", "MAX_OFFSET"} & set(record.properties)
        assert record.properties["kept"] == "yes"

    serve(test)


# -- pulls


def test_the_state_of_a_queue_decides_how_a_pull_ends(serve: Serve) -> None:
    async def test(broker: RunningBroker, client: RemotingClient) -> None:
        broker.topic("T")

        async def ended(offset: int, **terms: Any) -> tuple[int, str]:
            answer = await client.pull("T", offset, **terms)
            assert {"nextBeginOffset", "minOffset", "maxOffset", "suggestWhichBrokerId"} <= set(answer.fields)
            return answer.code, answer.fields["nextBeginOffset"]

        assert await ended(0) == (ResponseCode.PULL_NOT_FOUND, "0")
        assert await ended(7) == (ResponseCode.PULL_OFFSET_MOVED, "0")
        for tag in ("A", "B", "A"):
            await client.send("T", TAGS=tag)
        await found_in(client, "T")
        assert await ended(0) == (ResponseCode.SUCCESS, "3")
        assert await ended(0, most=2) == (ResponseCode.SUCCESS, "2")
        assert await ended(3) == (ResponseCode.PULL_NOT_FOUND, "3")
        assert await ended(8) == (ResponseCode.PULL_OFFSET_MOVED, "3")
        assert await ended(0, subscription="C") == (ResponseCode.PULL_RETRY_IMMEDIATELY, "3")
        assert await ended(0, subscription="A", most=32) == (ResponseCode.SUCCESS, "3")
        assert await ended(0, kind="SQL92", subscription="TAGS = 'B'") == (ResponseCode.SUCCESS, "3")
        for wrong, code in (
            ({"kind": "SQL92", "subscription": "a >"}, ResponseCode.SUBSCRIPTION_PARSE_FAILED),
            ({"kind": "class", "subscription": "x"}, ResponseCode.SUBSCRIPTION_PARSE_FAILED),
            ({"flags": 0}, ResponseCode.SUBSCRIPTION_NOT_EXIST),
            ({"queue": 4}, ResponseCode.INVALID_PARAMETER),
        ):
            answer = await client.call(11, pull_fields("T", 0, wrong.pop("queue", 0), **wrong))  # type: ignore[arg-type]
            assert answer.code == code
        assert (await client.pull("none", 0)).code == ResponseCode.TOPIC_NOT_EXIST

    serve(test)


def test_a_pull_waits_for_a_message_that_matches(serve: Serve) -> None:
    async def test(broker: RunningBroker, client: RemotingClient) -> None:
        broker.topic("T")
        waiting = client.begin(11, pull_fields("T", 0, flags=6, wait_ms=15_000, subscription="A"))
        other = client.begin(11, pull_fields("T", 0, 1, flags=6, wait_ms=15_000))
        await client.send("T", TAGS="B")
        await client.send("T", b"wanted", TAGS="A")
        answer = await waiting
        assert [bytes(each.body) for each in records_in(answer.body)] == [b"wanted"]
        assert not other.done()
        broker.pass_time(15)
        assert (await other).code == ResponseCode.PULL_NOT_FOUND

    serve(test)


def test_a_pull_that_waits_ends_with_its_connection(serve: Serve) -> None:
    async def test(broker: RunningBroker, client: RemotingClient) -> None:
        broker.topic("T")
        other = await RemotingClient.connect(address_of(broker))
        other.begin(11, pull_fields("T", 0, flags=6, wait_ms=15_000))
        pulls = broker.broker._pulls
        await until(lambda: len(pulls) == 1, "it waits")
        await other.close()
        await until(lambda: len(pulls) == 0, "it is forgotten")
        for _ in range(20):
            assert (await client.pull("T", 0, flags=6, wait_ms=1)).code == ResponseCode.PULL_NOT_FOUND
        [connection] = front_of(broker).connections
        assert not connection.lost

    serve(test)


def test_many_large_pulls_at_once_are_all_answered_and_a_client_that_reads_nothing_stops_nobody(serve: Serve) -> None:
    async def test(broker: RunningBroker, client: RemotingClient) -> None:
        broker.topic("T")
        for _ in range(32):
            await client.send("T", bytes(64 * 1024))
        await until(lambda: broker.store.messages.maximum(QueueId("T", 0)) == 32, "all is visible")
        deaf_reader, deaf = await asyncio.open_connection(*address_of(broker).rsplit(":", 1))
        request = write_command(client.command(11, pull_fields("T", 0)))
        deaf.write(40 * request)
        await deaf.drain()
        waiting = [client.begin(11, pull_fields("T", 0)) for _ in range(12)]
        for each in waiting:
            assert len(records_in((await each).body)) == 32
        resources = front_of(broker).resources
        assert resources.unread.size < 8 * 1024 * 1024
        read = 0
        while read < 40 * 32 * 64 * 1024:  # all of its requests are answered once it reads
            read += len(await deaf_reader.read(1 << 20))
        deaf.close()
        await until(lambda: resources.unread.size == 0, "nothing is left")

    serve(test)


def test_a_registered_subscription_is_used_by_pulls_without_one(serve: Serve) -> None:
    async def test(broker: RunningBroker, client: RemotingClient) -> None:
        broker.topic("T")
        await client.heartbeat("G", "T", expression="A")
        await client.send("T", b"1", TAGS="B")
        await client.send("T", b"2", TAGS="A")
        answer = await client.pull("T", 0, flags=2, wait_ms=9_000)
        assert [bytes(each.body) for each in records_in(answer.body)] == [b"2"]
        assert (await client.pull("T", 0, flags=0, version=2)).code == ResponseCode.SUBSCRIPTION_NOT_LATEST

    serve(test)


def test_the_newest_subscription_of_a_group_counts(serve: Serve) -> None:
    """A client that shares queues out again has a newer version than the others, whose heartbeats come later."""

    async def test(broker: RunningBroker, client: RemotingClient) -> None:
        broker.topic("T")
        await client.send("T", b"1", TAGS="A")
        other = await RemotingClient.connect(address_of(broker))
        await client.heartbeat("G", "T", expression="A", version=2)
        await other.heartbeat("G", "T", client_id="c2", expression="B", version=1)
        answer = await client.pull("T", 0, flags=0, version=2)
        assert [bytes(each.body) for each in records_in(answer.body)] == [b"1"]
        assert (await other.pull("T", 0, flags=0, version=1)).code == ResponseCode.SUCCESS
        await other.heartbeat("G", "T", client_id="c2", expression="B", version=3)
        assert (await client.pull("T", 0, flags=0, version=2)).code == ResponseCode.PULL_RETRY_IMMEDIATELY
        await other.close()

    serve(test)


# -- offsets


def test_offsets_are_stored_as_given_and_never_beyond_the_end(serve: Serve) -> None:
    async def test(broker: RunningBroker, client: RemotingClient) -> None:
        broker.topic("T")
        broker.group("G")
        place = {"consumerGroup": "G", "topic": "T", "queueId": 0}

        async def asked(**more: object) -> tuple[int, str | None]:
            answer = await client.call(14, {**place, **more})
            return answer.code, answer.fields.get("offset")

        assert await asked(setZeroIfNotFound="false") == (ResponseCode.QUERY_NOT_FOUND, None)
        assert await asked() == (ResponseCode.SUCCESS, "0")
        for _ in range(5):
            await client.send("T")
        await found_in(client, "T")
        for offset, stored in ((3, "3"), (1, "1"), (99, "5"), (0, "0")):
            assert (await client.call(15, {**place, "commitOffset": offset})).code == ResponseCode.SUCCESS
            assert await asked() == (ResponseCode.SUCCESS, stored)
        await client.pull("T", 0, flags=5, commit=2)
        assert await asked() == (ResponseCode.SUCCESS, "2")
        unknown = {**place, "consumerGroup": "nobody", "commitOffset": 1}
        assert (await client.call(15, unknown)).code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST
        for code, bound in ((30, "5"), (31, "0")):
            assert (await client.call(code, {"topic": "T", "queueId": 0})).fields["offset"] == bound
        search = {"topic": "T", "queueId": 0, "timestamp": 0}
        assert (await client.call(29, search)).fields["offset"] == "0"
        earliest = await client.call(32, {"topic": "T", "queueId": 0})
        assert abs(int(earliest.fields["timestamp"]) - broker.clock.wall_ms()) < 60_000

    serve(test)


def test_a_commit_ends_what_consumers_by_grpc_have_in_flight_below(serve: Serve) -> None:
    async def test(broker: RunningBroker, client: RemotingClient) -> None:
        broker.topic("T", queues=1)
        broker.group("G")
        for number in range(4):
            await client.send("T", b"%d" % number)
        await found_in(client, "T")
        async with Client(broker.endpoint) as other:
            received = await other.receive("G", "T", count=3)
            assert len(received.messages) == 3
        place = {"consumerGroup": "G", "topic": "T", "queueId": 0}
        assert (await client.call(14, place)).fields["offset"] == "0"
        assert (await client.call(15, {**place, "commitOffset": 2})).code == ResponseCode.SUCCESS
        assert (await client.call(14, place)).fields["offset"] == "2"
        assert broker.delivery.position("G", QueueId("T", 0)) == (QueueOffset(2), 0)

    serve(test)


# -- groups, consumers and locks


def test_consumers_are_told_of_each_other(serve: Serve) -> None:
    async def test(broker: RunningBroker, client: RemotingClient) -> None:
        broker.topic("T")
        listed = await client.call(38, {"consumerGroup": "G"})
        assert listed.code == ResponseCode.SYSTEM_ERROR
        await client.heartbeat("G", "T", client_id="c1")
        assert (await client.asked.get()).code == RequestCode.NOTIFY_CONSUMER_IDS_CHANGED
        second = await RemotingClient.connect(address_of(broker))
        await second.heartbeat("G", "T", client_id="c2")
        assert (await client.asked.get()).fields == {"consumerGroup": "G"}
        listed = await client.call(38, {"consumerGroup": "G"})
        assert json.loads(listed.body) == {"consumerIdList": ["c1", "c2"]}
        async with Client(broker.endpoint) as grpc_client:
            await grpc_client.receive("G", "T", count=1)
            assert (await client.call(38, {"consumerGroup": "G"})).body == listed.body
        await client.heartbeat("G", "T", client_id="c1")
        assert client.asked.empty()
        await second.close()
        assert (await client.asked.get()).code == RequestCode.NOTIFY_CONSUMER_IDS_CHANGED
        assert json.loads((await client.call(38, {"consumerGroup": "G"})).body) == {"consumerIdList": ["c1"]}
        assert broker.store.topics.stored("%RETRY%G") is not None
        await client.call(35, {"clientID": "c1", "consumerGroup": "G"})
        assert (await client.call(38, {"consumerGroup": "G"})).code == ResponseCode.SYSTEM_ERROR

    serve(test)


def test_a_consumer_without_heartbeats_leaves_its_group(serve: Serve) -> None:
    async def test(broker: RunningBroker, client: RemotingClient) -> None:
        broker.topic("T")
        silent = await RemotingClient.connect(address_of(broker))
        await silent.heartbeat("G", "T", client_id="silent")
        for _ in range(5):
            broker.clock.push(30)
            await client.heartbeat("G", "T", client_id="c1")
        await until(silent.ended.is_set, "its connection is closed")
        await silent.close()
        assert json.loads((await client.call(38, {"consumerGroup": "G"})).body) == {"consumerIdList": ["c1"]}

    serve(test)


def test_what_clients_say_of_themselves_takes_bounded_memory(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sessions, "SUBSCRIPTIONS_SIZE_MAX", 300)
    monkeypatch.setattr(sessions, "LOCKS_MAX", 3)

    async def test(broker: RunningBroker, client: RemotingClient) -> None:
        for topic in "TUV":
            broker.topic(topic)
        known = broker.broker._remoting.sessions
        assert (await client.heartbeat("G", "T", client_id="c" * 300)).code == ResponseCode.INVALID_PARAMETER
        assert (await client.heartbeat("G", "T", expression="x" * 200)).code == ResponseCode.SUCCESS
        assert (await client.heartbeat("H", "T", expression="x" * 200)).code == ResponseCode.SYSTEM_BUSY
        assert (await client.heartbeat("G", "T", expression="x")).code == ResponseCode.SUCCESS
        assert (await client.heartbeat("H", "T", expression="x" * 200)).code == ResponseCode.SUCCESS
        for group in "GH":
            await client.call(35, {"clientID": "c1", "consumerGroup": group})
        assert known._subscriptions_size == 0

        def locking(*queues: tuple[str, int], group: str = "G") -> bytes:
            rows = [{"brokerName": "b", "queueId": number, "topic": topic} for topic, number in queues]
            return json.dumps({"clientId": "c1", "consumerGroup": group, "mqSet": rows}).encode()

        assert (await client.call(41, body=locking(("T" * 300, 0)))).code == ResponseCode.INVALID_PARAMETER
        assert (await client.call(41, body=locking(("T", 0), ("T", 1)))).code == ResponseCode.SUCCESS
        refused = await client.call(41, body=locking(("T", 0), ("T", 1), group="H"))
        assert refused.code == ResponseCode.SYSTEM_BUSY
        assert (await client.call(42, body=locking(("T", 0), ("T", 1)))).code == ResponseCode.SUCCESS
        assert (await client.call(41, body=locking(("T", 0), ("T", 1), group="H"))).code == ResponseCode.SUCCESS
        broker.clock.push(61)
        broker.broker._remoting._locks.sweep()
        assert broker.broker._remoting._locks._count == 0

    serve(test)


def test_traces_of_clients_are_stored_and_other_topics_of_the_broker_refused(serve: Serve) -> None:
    async def test(broker: RunningBroker, client: RemotingClient) -> None:
        for topic in ("RMQ_SYS_TRACE_TOPIC", "BenchmarkTest"):
            assert (await client.call(105, {"topic": topic})).code == ResponseCode.SUCCESS
            for _ in range(2):
                assert (await client.send(topic, b"what happened", KEYS="id")).code == ResponseCode.SUCCESS
            records = records_in((await client.pull(topic, 0)).body)
            assert [each.body for each in records] == [b"what happened"] * 2
        for topic in ("SELF_TEST_TOPIC", "OFFSET_MOVED_EVENT", "rmq_sys_mine"):
            assert (await client.send(topic)).code == ResponseCode.TOPIC_NOT_EXIST
        assert (await client.send("SCHEDULE_TOPIC_XXXX")).code == ResponseCode.NO_PERMISSION

    serve(test, topics={"auto_create": False})


def test_a_queue_is_locked_by_one_client_until_it_is_freed_or_a_minute_is_over(serve: Serve) -> None:
    async def test(broker: RunningBroker, client: RemotingClient) -> None:
        def body(client_id: str, *numbers: int) -> bytes:
            queues = [{"brokerName": "b", "topic": "T", "queueId": each} for each in numbers]
            return json.dumps({"clientId": client_id, "consumerGroup": "G", "mqSet": queues}).encode()

        async def locked(client_id: str, *numbers: int) -> list[int]:
            answer = await client.call(41, body=body(client_id, *numbers))
            return [each["queueId"] for each in json.loads(answer.body)["lockOKMQSet"]]

        assert await locked("c1", 0, 1) == [0, 1]
        assert await locked("c2", 0, 1, 2) == [2]
        await client.call(42, body=body("c2", 0))
        assert await locked("c2", 0) == []
        await client.call(42, body=body("c1", 0))
        assert await locked("c2", 0) == [0]
        broker.clock.push(50)
        assert await locked("c1", 1) == [1]
        broker.clock.push(15)
        assert await locked("c1", 0, 1, 2) == [0, 1, 2]

    serve(test)


# -- retries, delays, transactions


async def send_back(client: RemotingClient, record: StoredMessage, level: int, **more: object) -> int:
    fields = {"group": "G", "offset": record.physical_offset, "delayLevel": level, "originTopic": record.topic, **more}
    return (await client.call(36, fields)).code


def test_what_is_sent_back_comes_again_later_and_at_last_to_the_dead_letters(serve: Serve) -> None:
    async def test(broker: RunningBroker, client: RemotingClient) -> None:
        broker.topic("T")
        await client.heartbeat("G", "T")
        await client.send("T", b"again", KEYS="k", UNIQ_KEY="U")
        [first] = await found_in(client, "T")
        assert await send_back(client, first, 1) == ResponseCode.SUCCESS
        assert (await client.pull("%RETRY%G", 0)).code == ResponseCode.PULL_NOT_FOUND
        broker.pass_time(1.1)
        [second] = await found_in(client, "%RETRY%G")
        properties = second.properties
        assert (bytes(second.body), second.reconsume_times) == (b"again", 1)
        assert (properties["RETRY_TOPIC"], properties["UNIQ_KEY"], properties["KEYS"]) == ("T", "U", "k")
        assert len(properties["ORIGIN_MESSAGE_ID"]) == 32
        assert properties[DELAY_LEVEL] == "1"
        assert await send_back(client, second, 0, maxReconsumeTimes=1) == ResponseCode.SUCCESS
        [dead] = await found_in(client, "%DLQ%G")
        assert (bytes(dead.body), dead.properties["RETRY_TOPIC"], dead.properties["KEYS"]) == (b"again", "T", "k")
        assert await send_back(client, first, -1) == ResponseCode.SUCCESS
        await until(lambda: broker.store.messages.maximum(QueueId("%DLQ%G", 0)) == 2, "at once to the dead letters")
        assert await send_back(client, first._replace(physical_offset=1 << 40), 0) == ResponseCode.SYSTEM_ERROR  # type: ignore[arg-type]
        assert await send_back(client, first, 0, group="nobody") == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST

    serve(test)


def test_a_consumers_own_send_to_its_retry_topic_ends_in_the_dead_letters_too(serve: Serve) -> None:
    async def test(broker: RunningBroker, client: RemotingClient) -> None:
        broker.store.groups.create(Group("G"))
        for times, place in ((1, "%RETRY%G"), (3, "%DLQ%G")):
            fields = {**send_fields("%RETRY%G"), "j": times, "l": 2}
            assert (await client.call(310, fields, b"%d" % times)).code == ResponseCode.SUCCESS
            [found] = await found_in(client, place)
            assert bytes(found.body) == b"%d" % times

    serve(test)


def test_a_delay_level_and_a_time_are_waited_for(serve: Serve) -> None:
    async def test(broker: RunningBroker, client: RemotingClient) -> None:
        broker.topic("T")
        for body, names in ((b"5s", {"DELAY": "2"}), (b"3s", {"TIMER_DELAY_SEC": "3"}), (b"1h", {"DELAY": "17"})):
            assert (await client.send("T", body, 0, **names)).code == ResponseCode.SUCCESS
        await client.send("T", b"now", TIMER_DELIVER_MS="1")
        [now] = await found_in(client, "T")
        assert bytes(now.body) == b"now"
        for seconds, body, level in ((3.1, b"3s", None), (2, b"5s", "2")):
            broker.pass_time(seconds)
            offset = broker.store.messages.maximum(QueueId("T", 0))
            answer = await client.pull("T", offset, flags=6, wait_ms=20_000)
            [found] = records_in(answer.body)
            assert bytes(found.body) == body
            assert found.properties.get(DELAY_LEVEL) == level

    serve(test)


def test_a_transaction_is_ended_by_its_offsets_and_asked_about(serve: Serve) -> None:
    async def test(broker: RunningBroker, client: RemotingClient) -> None:
        broker.topic("T", TopicType.TRANSACTION)
        await client.call(34, body=heartbeat_body("c1", "", producers=("PG",)))

        async def half(body: bytes) -> dict[str, object]:
            answer = await client.send("T", body, TRAN_MSG="true", PGROUP="PG", UNIQ_KEY=body.decode())
            _, at = parse_offset_message_id(answer.fields["msgId"])
            offset = answer.fields["queueOffset"]
            return {"producerGroup": "PG", "tranStateTableOffset": offset, "commitLogOffset": at, "msgId": "x"}

        committed, rolled_back, asked = await half(b"committed"), await half(b"gone"), await half(b"asked")
        assert (await client.pull("T", 0)).code == ResponseCode.PULL_NOT_FOUND
        for wrong in ({"producerGroup": "other"}, {"tranStateTableOffset": 77}, {"commitLogOffset": 1}):
            refused = await client.call(37, {**committed, **wrong, "commitOrRollback": 8})
            assert refused.code == ResponseCode.SYSTEM_ERROR
        assert (await client.call(37, {**committed, "commitOrRollback": 0})).code == ResponseCode.SUCCESS
        assert (await client.call(37, {**committed, "commitOrRollback": 8})).code == ResponseCode.SUCCESS
        assert (await client.call(37, {**rolled_back, "commitOrRollback": 12})).code == ResponseCode.SUCCESS
        [record] = await found_in(client, "T")
        assert bytes(record.body) == b"committed"
        broker.clock.push(60)
        async with asyncio.timeout(20):
            check = await client.asked.get()
        assert check.code == RequestCode.CHECK_TRANSACTION_STATE
        [named] = records_in(check.body)
        assert (named.topic, bytes(named.body)) == ("T", b"asked")
        assert check.fields["commitLogOffset"] == str(asked["commitLogOffset"])
        fields = {**asked, "commitOrRollback": 8, "fromTransactionCheck": "true"}
        assert (await client.call(37, fields)).code == ResponseCode.SUCCESS
        await until(lambda: broker.store.messages.maximum(QueueId("T", 0)) == 2, "it is committed")

    serve(test)


# -- look-ups, names, users


def test_a_message_is_found_by_its_place_and_its_keys(serve: Serve) -> None:
    async def test(broker: RunningBroker, client: RemotingClient) -> None:
        broker.topic("T")
        sent = await client.send("T", b"wanted", KEYS="k1", UNIQ_KEY="U1")
        _, at = parse_offset_message_id(sent.fields["msgId"])
        [record] = records_in((await client.call(33, {"offset": at})).body)
        assert bytes(record.body) == b"wanted"
        assert (await client.call(33, {"offset": 1 << 40})).code == ResponseCode.SYSTEM_ERROR
        times = {"beginTimestamp": 0, "endTimestamp": (1 << 63) - 1, "maxNum": 5}
        for fields in ({"key": "k1"}, {"key": "U1", "_UNIQUE_KEY_QUERY": "true"}):
            found = await client.call(12, {"topic": "T", **times, **fields})
            assert [bytes(each.body) for each in records_in(found.body)] == [b"wanted"]
        missing = await client.call(12, {"topic": "T", "key": "k2", **times})
        assert missing.code == ResponseCode.QUERY_NOT_FOUND

    serve(test, index={"hash_files": True})


def test_the_name_servers_role(serve: Serve) -> None:
    async def test(broker: RunningBroker, client: RemotingClient) -> None:
        broker.topic("T", queues=3)
        address = address_of(broker)
        names = await RemotingClient.connect(address_of(broker, "names_listen"))
        for each in (client, names):
            route = json.loads((await each.call(105, {"topic": "T"})).body)
            [data] = route["brokerDatas"]
            assert (data["brokerAddrs"], data["cluster"]) == ({"0": address}, "DefaultCluster")
            [queues] = route["queueDatas"]
            assert (queues["readQueueNums"], queues["writeQueueNums"], queues["perm"]) == (3, 3, 6)
        for group, code in (("G", ResponseCode.SUCCESS), ("a b", ResponseCode.TOPIC_NOT_EXIST)):
            assert (await names.call(105, {"topic": f"%RETRY%{group}"})).code == code
        assert broker.store.topics.stored("%RETRY%G") is None
        default = json.loads((await names.call(105, {"topic": "TBW102"})).body)
        assert default["queueDatas"][0]["perm"] == 7
        broker.store.groups.create(Group("G"))
        assert json.loads((await names.call(206)).body)["topicList"] == ["T", "%RETRY%G"]
        assert json.loads((await names.call(224, {"cluster": "DefaultCluster"})).body)["topicList"] == ["T"]
        assert json.loads((await names.call(224, {"cluster": "other"})).body)["topicList"] == []
        cluster = json.loads((await names.call(106)).body)
        [name] = cluster["clusterAddrTable"]["DefaultCluster"]
        assert cluster["brokerAddrTable"][name]["brokerAddrs"] == {"0": address}
        assert "DefaultCluster" in json.loads((await names.call(304)).body)["topicList"]
        await names.close()

    serve(test)


def test_all_members_of_a_cluster_are_in_its_routes(serve: Serve) -> None:
    async def test(broker: RunningBroker, client: RemotingClient) -> None:
        broker.topic("T", queues=3)
        own = broker.broker._settings.broker.name
        seen = Seen(own, "other", "secure-only")
        seen.add(replace(seen.of("secure-only"), address=None, tls_address="s:1"))
        broker.broker._remoting._names._members = seen.members

        async def permissions() -> dict[str, int]:
            route = json.loads((await client.call(105, {"topic": "T"})).body)
            addresses = {each["brokerName"]: each["brokerAddrs"]["0"] for each in route["brokerDatas"]}
            assert addresses == {name: f"{name}:8081" for name in addresses}
            return {each["brokerName"]: each["perm"] for each in route["queueDatas"]}

        assert await permissions() == {own: 6, "other": 6}
        assert (await client.call(205, {"brokerName": "other"})).fields == {"wipeTopicCount": "1"}
        assert await permissions() == {own: 6, "other": 4}
        assert (await client.call(327, {"brokerName": "other"})).fields == {"addTopicCount": "1"}
        assert (await client.call(205, {"brokerName": own})).code == ResponseCode.SUCCESS
        assert await permissions() == {own: 4, "other": 6}
        assert (await client.call(205, {"brokerName": "nobody"})).code == ResponseCode.INVALID_PARAMETER
        cluster = json.loads((await client.call(106)).body)
        assert cluster["clusterAddrTable"] == {"DefaultCluster": sorted([own, "other"])}
        seen.clock.advance(60)
        assert await permissions() == {own: 4}

    serve(test)


def test_settings_of_a_name_server_are_not_kept(serve: Serve) -> None:
    async def test(broker: RunningBroker, client: RemotingClient) -> None:
        item = {"namespace": "ORDER_TOPIC_CONFIG", "key": "T", "value": "b:8"}
        assert (await client.call(100, item)).code == ResponseCode.NO_PERMISSION
        assert (await client.call(101, item)).code == ResponseCode.QUERY_NOT_FOUND
        assert (await client.call(102, item)).code == ResponseCode.SUCCESS
        assert (await client.call(219, item)).code == ResponseCode.QUERY_NOT_FOUND
        assert (await client.call(318, body=b"a=b")).code == ResponseCode.NO_PERMISSION
        assert (await client.call(319)).body.startswith(b"listenPort=")
        own = {"brokerName": broker.broker._settings.broker.name}
        assert (await client.call(205, own)).code == ResponseCode.NO_PERMISSION
        assert (await client.call(327, own)).fields == {"addTopicCount": "0"}
        assert (await client.call(327, {"brokerName": "b"})).code == ResponseCode.INVALID_PARAMETER
        assert (await client.call(305)).body == (await client.call(304)).body

    serve(test)


def test_a_message_that_waits_for_its_time_is_recalled(serve: Serve) -> None:
    async def test(broker: RunningBroker, client: RemotingClient) -> None:
        broker.topic("T", queues=1)
        sent = await client.send("T", b"recalled", TIMER_DELAY_SEC="2", UNIQ_KEY="K1")
        kept = await client.send("T", b"kept", TIMER_DELAY_SEC="2", UNIQ_KEY="K2")
        fields = {"topic": "T", "recallHandle": sent.fields["recallHandle"], "producerGroup": "P"}
        recalled = await client.call(370, fields)
        assert (recalled.code, recalled.fields) == (ResponseCode.SUCCESS, {"msgId": "K1"})
        for wrong in (fields, {**fields, "recallHandle": "no"}, {**fields, "recallHandle": kept.fields["msgId"]}):
            assert (await client.call(370, wrong)).code == ResponseCode.ILLEGAL_OPERATION
        assert (await client.call(370, {**fields, "topic": "none"})).code == ResponseCode.TOPIC_NOT_EXIST
        broker.pass_time(3)
        await until(lambda: broker.store.messages.maximum(QueueId("T", 0)) == 1, "one is delivered")
        assert [bytes(each.body) for each in await found_in(client, "T")] == [b"kept"]
        assert (await client.call(370, {**fields, "recallHandle": kept.fields["recallHandle"]})).code == 604
        assert "recallHandle" not in (await client.send("T", b"x", DELAY="1")).fields

    serve(test)


def test_users_and_rules_hold_for_every_request(serve: Serve) -> None:
    async def test(broker: RunningBroker, client: RemotingClient) -> None:
        broker.topic("T")
        broker.topic("other")
        broker.group("G")
        add_user(broker, "alice", "topic:T pub sub", "group:G sub")
        requests: list[tuple[int, dict[str, object], bytes]] = [
            (105, {"topic": "T"}, b""),
            (310, send_fields("T"), b"x"),
            (11, pull_fields("T", 0), b""),
            (14, {"consumerGroup": "G", "topic": "T", "queueId": 0}, b""),
            (15, {"consumerGroup": "G", "topic": "T", "queueId": 0, "commitOffset": 0}, b""),
            (34, {}, heartbeat_body("c1", "G", "T")),
            (38, {"consumerGroup": "G"}, b""),
            (30, {"topic": "T", "queueId": 0}, b""),
        ]
        for user in (None, ("alice", "wrong"), ("nobody", SECRET)):
            client.user = user
            for code, fields, body in requests:
                assert (await client.call(code, fields, body)).code == ResponseCode.NO_PERMISSION, (user, code)
        assert broker.store.messages.maximum(QueueId("T", 0)) == 0
        assert broker.broker._remoting.sessions.consumers("G") is None
        client.user = ("alice", SECRET)
        for code, fields, body in requests:
            answer = await client.call(code, fields, body)
            assert answer.code in (ResponseCode.SUCCESS, ResponseCode.PULL_NOT_FOUND), (code, answer)
        for code, fields, body in (
            (310, send_fields("other"), b"x"),
            (11, pull_fields("other", 0), b""),
            (11, pull_fields("T", 0, group="H"), b""),
            (34, {}, heartbeat_body("c1", "H", "T")),
            (206, {}, b""),
        ):
            assert (await client.call(code, fields, body)).code == ResponseCode.NO_PERMISSION, code

    serve(test, security=SECURED)


def test_messages_pass_between_the_protocols(serve: Serve) -> None:
    async def test(broker: RunningBroker, client: RemotingClient) -> None:
        broker.topic("T", queues=1)
        async with Client(broker.endpoint) as other:
            await other.send(message("T", b"by gRPC", tag="A", keys=["k"]))
            await client.send("T", b"by remoting", TAGS="B", KEYS="k2", mine="1")
            found = await found_in(client, "T")
            await until(lambda: broker.store.messages.maximum(QueueId("T", 0)) == 2, "both are there")
            found = await found_in(client, "T")
            assert [(bytes(each.body), each.properties["TAGS"]) for each in found] == [
                (b"by gRPC", "A"), (b"by remoting", "B"),
            ]  # fmt: skip
            received = (await other.receive("H", "T", count=2)).messages
            by_body = {each.body: each for each in received}
            assert by_body[b"by remoting"].user_properties == {"mine": "1"}
            assert by_body[b"by remoting"].system_properties.keys == ["k2"]

    serve(test, delivery={"new_group_start": "earliest"})


@pytest.mark.parametrize("model", ["CLUSTERING", "BROADCASTING"])
def test_a_retry_topic_is_made_for_those_who_share_their_messages(serve: Serve, model: str) -> None:
    async def test(broker: RunningBroker, client: RemotingClient) -> None:
        broker.topic("T")
        await client.heartbeat("G", "T", model=model)
        assert (broker.store.topics.stored("%RETRY%G") is not None) is (model == "CLUSTERING")
        if model == "BROADCASTING":
            await asyncio.sleep(0.05)
            assert client.asked.empty()

    serve(test)


HEARTBEAT_OF_CPP = (
    b'{"clientID":"20976-127.0.0.1@DEFAULT","consumerDataSet":[{"consumeFromWhere":4,"consumeType":1,"groupName":"G",'
    b'"messageModel":1,"subscriptionDataSet":[{"subString":"*","subVersion":"1795810797773","topic":"%RETRY%G"},'
    b'{"subString":"odd","subVersion":"1795810797773","topic":"T"}]}]}\n'
)
"""The client for C++ sends such a heartbeat: enumerations by number, a number as text."""


def test_a_client_in_cpp_is_understood(serve: Serve) -> None:
    async def test(broker: RunningBroker, client: RemotingClient) -> None:
        broker.topic("T", queues=1)
        assert (await client.call(34, body=HEARTBEAT_OF_CPP)).code == ResponseCode.SUCCESS
        listed = json.loads((await client.call(38, {"consumerGroup": "G"})).body)
        assert listed["consumerIdList"] == ["20976-127.0.0.1@DEFAULT"]
        shown = json.loads((await client.call(203, {"consumerGroup": "G"})).body)
        assert (shown["consumeType"], shown["messageModel"]) == ("CONSUME_PASSIVELY", "CLUSTERING")
        assert shown["consumeFromWhere"] == "CONSUME_FROM_FIRST_OFFSET"
        assert shown["subscriptionTable"]["T"]["subVersion"] == 1795810797773

        batch = join_batch([BatchedMessage(0, b"a", b"TAGS\x01odd\x02"), BatchedMessage(0, b"b", b"TAGS\x01odd\x02")])
        fields = {
            "producerGroup": "P", "topic": "T", "queueId": 0, "sysFlag": 0, "bornTimestamp": 1, "flag": 0,
            "properties": "WAIT\x01true\x02", "reconsumeTimes": 0, "unitMode": 0, "batch": 1,
        }  # fmt: skip
        assert (await client.call(10, fields, batch)).code == ResponseCode.SUCCESS
        assert [bytes(each.body) for each in await found_in(client, "T")] == [b"a", b"b"]

        for wrong in (b'"messageModel":2', b'"messageModel":[]', b'"subVersion":"x"'):
            name = wrong.partition(b":")[0]
            start = HEARTBEAT_OF_CPP.index(name)
            end = min(at for at in (HEARTBEAT_OF_CPP.find(end, start) for end in (b",", b"}")) if at > 0)
            refused = await client.call(34, body=HEARTBEAT_OF_CPP[:start] + wrong + HEARTBEAT_OF_CPP[end:])
            assert refused.code == ResponseCode.INVALID_PARAMETER, wrong

    serve(test)
