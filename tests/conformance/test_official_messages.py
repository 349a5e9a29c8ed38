"""The official admin service finds messages, sends them, and says what topics are."""

from __future__ import annotations

import json
from typing import Any

import pytest

from quarry_mq.protocol.proto.apache.rocketmq.v2 import admin_pb2 as pb
from quarry_mq.protocol.proto.apache.rocketmq.v2 import definition_pb2 as definition
from quarry_mq.server.admin_port.official import queries as queries_module
from quarry_mq.store.metadata import Topic, TopicType
from tests.conformance.broker import RunningBroker
from tests.conformance.client import Client, consumer_settings, message, resource
from tests.conformance.conftest import WithBroker
from tests.conformance.official import hand_out, official

INDEX = {"hash_files": True, "hash_slots": 7, "hash_items": 30}


async def query(broker: RunningBroker, topic: str = "orders", **fields: Any) -> pb.ListMessageResponse:
    request = pb.ListMessageRequest(topic=resource(topic))
    for name, value in fields.items():
        if name.endswith("timestamp"):
            getattr(request, name).FromMilliseconds(value)
        else:
            setattr(request, name, value)
    async with official(broker) as admin:
        answer = await admin.QueryMessage(request)
    assert isinstance(answer, pb.ListMessageResponse)
    return answer


def bodies(answer: pb.ListMessageResponse) -> list[bytes]:
    assert answer.status.code == definition.OK, answer.status
    return [each.body for each in answer.messages]


def test_messages_are_found_by_their_id_and_by_their_keys(with_broker: WithBroker) -> None:
    async def test(broker: RunningBroker) -> None:
        broker.topic("orders", queues=2)
        async with Client(broker.endpoint) as client:
            for number in range(5):
                keys = ["all", f"k{number}"]
                await client.sent(message("orders", b"%d" % number, keys=keys, message_id=f"M{number}", tag="t"))
            await client.sent(message("orders", b"odd", keys=["M1"], message_id="odd"))
        by_id = await query(broker, message_id="M1")
        assert (bodies(by_id), by_id.scroll_id) == ([b"1"], "")
        system = by_id.messages[0].system_properties
        assert (system.message_id, list(system.keys), system.tag) == ("M1", ["all", "k1"], "t")
        # it was looked at, not delivered
        assert not system.HasField("receipt_handle")
        assert not system.HasField("delivery_attempt")
        assert bodies(await query(broker, message_key="M1")) == [b"odd"]
        assert bodies(await query(broker, message_key="all", page_size=2)) == [b"4", b"3"]
        assert bodies(await query(broker, message_key="all", page_size=2, page_num=3)) == [b"0"]
        assert bodies(await query(broker, message_key="all", page_size=2, page_num=4)) == []
        assert bodies(await query(broker, message_key="all", max_message_nums=1)) == [b"4"]
        assert bodies(await query(broker, message_id="M9")) == []
        last_ms = broker.store.messages.last_stored_ms
        assert bodies(await query(broker, message_id="M1", begin_timestamp=last_ms + 1, end_timestamp=2**41)) == []

    with_broker(test, index=INDEX)


def test_without_an_index_it_is_said_that_there_is_none(with_broker: WithBroker) -> None:
    async def test(broker: RunningBroker) -> None:
        broker.topic("orders")
        answer = await query(broker, message_id="M1")
        assert (answer.status.code, "index" in answer.status.message) == (definition.PRECONDITION_FAILED, True)

    with_broker(test)


def test_messages_of_a_time_come_in_the_order_of_the_log_page_by_page(with_broker: WithBroker) -> None:
    async def test(broker: RunningBroker) -> None:
        broker.topic("orders", queues=3)
        times = []
        async with Client(broker.endpoint) as client:
            for number in range(10):
                await client.sent(message("orders", b"%d" % number), message("orders", b"%d+" % number))
                times.append(broker.store.messages.last_stored_ms)
                broker.clock.push(5)
        expected = [b"%d%s" % (number, plus) for number in range(10) for plus in (b"", b"+")]
        assert bodies(await query(broker)) == expected
        middle = await query(broker, begin_timestamp=times[3], end_timestamp=times[5])
        assert (bodies(middle), middle.scroll_id) == (expected[6:12], "")
        scrolled: list[bytes] = []
        scroll_id, pages = "", 0
        while True:
            fields = {"scroll_id": scroll_id} if scroll_id else {}
            page = await query(broker, page_size=3, **fields)
            scrolled += bodies(page)
            scroll_id, pages = page.scroll_id, pages + 1
            if not scroll_id:
                break
        assert (scrolled, pages) == (expected, 7)
        assert bodies(await query(broker, page_size=3, page_num=7)) == expected[18:]
        one = await query(broker, queue_id=0)
        assert 0 < len(bodies(one)) < 20
        assert {each.system_properties.queue_id for each in one.messages} == {0}
        assert bodies(await query(broker, broker_name=broker.broker._settings.broker.name)) == expected
        # queues that the topic had once hold messages still
        broker.store.topics.update(Topic("orders", TopicType.NORMAL, 1, 1))
        assert bodies(await query(broker)) == expected

    with_broker(test)


def test_an_answer_does_not_grow_beyond_what_clients_take(
    with_broker: WithBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queries_module, "ANSWER_SIZE_MAX", 2_500)

    async def test(broker: RunningBroker) -> None:
        broker.topic("orders", queues=1)
        async with Client(broker.endpoint) as client:
            for number in range(5):
                await client.sent(message("orders", b"%d" % number * 1000, keys=["all"]))
        by_time = await query(broker)
        assert len(bodies(by_time)) == 2
        rest = await query(broker, scroll_id=by_time.scroll_id)
        assert [each[:1] for each in bodies(rest)] == [b"2", b"3"]
        monkeypatch.setattr(queries_module, "ANSWER_SIZE_MAX", 500)
        assert len(bodies(await query(broker))) == 1
        monkeypatch.setattr(queries_module, "ANSWER_SIZE_MAX", 2_500)
        by_key = await query(broker, message_key="all")
        assert len(bodies(by_key)) == 2
        assert "page_size" in by_key.status.message

    with_broker(test, index=INDEX)


def test_messages_of_a_lite_topic_are_those_of_its_light_queue(with_broker: WithBroker) -> None:
    async def test(broker: RunningBroker) -> None:
        broker.topic("chats")
        async with Client(broker.endpoint) as client:
            for number, name in enumerate(("a", "b", "a")):
                lite = message("chats", b"%d" % number)
                lite.user_properties["INNER_MULTI_DISPATCH"] = f"%LMQ%$chats${name}"
                await client.sent(lite)
        assert bodies(await query(broker, "chats", lite_topic="a")) == [b"0", b"2"]
        assert bodies(await query(broker, "chats", lite_topic="c")) == []

    with_broker(test)


def test_an_operator_sends_a_message(with_broker: WithBroker) -> None:
    async def test(broker: RunningBroker) -> None:
        topic = broker.topic("orders", TopicType.MIXED)
        async with Client(broker.endpoint) as client, official(broker) as admin:
            await client.declare(consumer_settings("billing", topic))
            request = pb.AdminSendMessageRequest(
                topic=resource(topic), tag="t", key="k", body=b"hello", user_properties={"colour": "blue"}
            )
            answer = await admin.AdminSendMessage(request)
            assert answer.status.code == definition.OK
            received = await client.receive("billing", topic, polling_s=5.0)
            (got,) = received.messages
            assert (got.body, dict(got.user_properties)) == (b"hello", {"colour": "blue"})
            assert (got.system_properties.tag, list(got.system_properties.keys)) == ("t", ["k"])
            assert got.system_properties.message_id == answer.message_id
            assert len(answer.message_id) == 34
            assert got.system_properties.delivery_attempt == 1
            system = definition.SystemProperties(message_group="g", message_id="mine", delivery_attempt=7)
            grouped = pb.AdminSendMessageRequest(topic=resource(topic), body=b"x", system_properties=system)
            assert (await admin.AdminSendMessage(grouped)).message_id == "mine"
            (got,) = (await client.receive("billing", topic, polling_s=5.0)).messages
            assert (got.system_properties.message_group, got.system_properties.delivery_attempt) == ("g", 1)
            # it is no client that has to be told goodbye
            assert broker.broker._clients.get("admin-port") is None

    with_broker(test)


def test_a_topic_is_described(with_broker: WithBroker) -> None:
    async def test(broker: RunningBroker) -> None:
        attributes = {"description": "what shops order", "owner": "shop"}
        broker.store.topics.create(Topic("orders", TopicType.FIFO, 4, 4, attributes=attributes))
        broker.topic("mixed", TopicType.MIXED)
        async with official(broker) as admin:
            orders = await admin.DescribeTopicStatus(pb.DescribeTopicStatusRequest(topic=resource("orders")))
            mixed = await admin.DescribeTopicStatus(pb.DescribeTopicStatusRequest(topic=resource("mixed")))
            missing = await admin.DescribeTopicStatus(pb.DescribeTopicStatusRequest(topic=resource("nothing")))
            malformed = await admin.DescribeTopicStatus(pb.DescribeTopicStatusRequest(topic=resource("a b")))
        assert (orders.status.code, orders.topic_message_type) == (definition.OK, definition.FIFO)
        assert (orders.description, dict(orders.tags)) == ("what shops order", attributes)
        assert not orders.HasField("create_timestamp")
        assert (mixed.topic_message_type, mixed.HasField("description")) == (0, False)
        assert missing.status.code == definition.TOPIC_NOT_FOUND
        assert malformed.status.code == definition.ILLEGAL_TOPIC

    with_broker(test)


def test_a_route_is_written_as_name_servers_write_it(with_broker: WithBroker) -> None:
    async def test(broker: RunningBroker) -> None:
        broker.store.topics.create(Topic("orders", TopicType.NORMAL, 4, 8))
        async with official(broker) as admin:
            answer = await admin.GetTopicRoute(pb.GetTopicRouteRequest(topic=resource("orders")))
            missing = await admin.GetTopicRoute(pb.GetTopicRouteRequest(topic=resource("nothing")))
            malformed = await admin.GetTopicRoute(pb.GetTopicRouteRequest())
        assert json.loads(answer.topic_route_data) == {
            "brokerDatas": [
                {
                    "brokerAddrs": {"0": broker.endpoint},
                    "brokerName": "quarry-0",
                    "cluster": "DefaultCluster",
                    "enableActingMaster": False,
                }
            ],
            "filterServerTable": {},
            "queueDatas": [
                {"brokerName": "quarry-0", "perm": 6, "readQueueNums": 4, "writeQueueNums": 8, "topicSysFlag": 0}
            ],
        }
        assert (answer.status.code, missing.status.code) == (definition.OK, definition.TOPIC_NOT_FOUND)
        assert (malformed.status.code, "topic" in malformed.status.message) == (definition.ILLEGAL_TOPIC, True)

    with_broker(test, broker={"name": "quarry-0"})


def test_a_group_goes_back_to_a_time(with_broker: WithBroker) -> None:
    async def test(broker: RunningBroker) -> None:
        topic = broker.topic("orders", queues=1)
        broker.group("billing")
        async with Client(broker.endpoint) as client, official(broker) as admin:
            await client.declare(consumer_settings("billing", topic))
            for number in range(3):
                await client.sent(message(topic, b"%d" % number))
                broker.clock.push(10)
            await hand_out(client, "billing", topic, count=3)
            request = pb.ResetGroupOffsetRequest(group=resource("billing"), topic=resource(topic))
            request.reset_timestamp.FromMilliseconds(broker.store.messages.last_stored_ms - 5_000)
            assert (await admin.ResetGroupOffset(request)).status.code == definition.OK
            received = await client.receive("billing", topic, polling_s=5.0)
            assert [each.body for each in received.messages] == [b"2"]
            assert received.messages[0].system_properties.delivery_attempt == 1
            for seconds in (-1, 2**62):
                request.reset_timestamp.seconds = seconds
                assert (await admin.ResetGroupOffset(request)).status.code == definition.BAD_REQUEST

    with_broker(test)
