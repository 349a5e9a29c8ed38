"""Refusals have RocketMQ's own texts, because programs that were written for it look for these."""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import pytest
from google.protobuf.duration_pb2 import Duration
from google.protobuf.timestamp_pb2 import Timestamp

from quarry_mq.protocol.proto.apache.rocketmq.v2 import definition_pb2 as definition
from quarry_mq.protocol.proto.apache.rocketmq.v2 import service_pb2 as service
from quarry_mq.store.metadata import Group, Permission, Topic, TopicType
from tests.conformance.broker import RunningBroker
from tests.conformance.client import Client, consumer_settings, message, resource
from tests.conformance.conftest import WithBroker, both_ways

pytestmark = [both_ways, pytest.mark.parametrize("front", ["h2", "grpcio"])]

ALPHABET: Final = "^[%|a-zA-Z0-9_-]+$"
SPACES, CONTROL = "  ", "a\x01"


class Case(NamedTuple):
    request: Any
    code: definition.Code
    text: str


def send(*, properties: dict[str, str] | None = None, topic: str = "orders", body: bytes = b"x", **system: Any) -> Any:
    made = message(topic, body, **system)
    made.user_properties.update(properties or {})
    return service.SendMessageRequest(messages=[made])


def receive(*, topic: str = "orders", group: str = "g", expression: str = "*", sql: bool = False, **more: Any) -> Any:
    kind = definition.SQL if sql else definition.TAG
    return service.ReceiveMessageRequest(
        group=resource(group),
        message_queue=definition.MessageQueue(topic=resource(topic), id=0),
        filter_expression=definition.FilterExpression(type=kind, expression=expression),
        batch_size=1,
        **{"invisible_duration": Duration(seconds=30), **more},
    )


def ack(handle: str) -> Any:
    return service.AckMessageRequest(
        group=resource("g"),
        topic=resource("orders"),
        entries=[service.AckMessageEntry(message_id="m", receipt_handle=handle)],
    )


def change(seconds: int, handle: str = "?") -> Any:
    return service.ChangeInvisibleDurationRequest(
        group=resource("g"),
        topic=resource("orders"),
        receipt_handle=handle,
        invisible_duration=Duration(seconds=seconds),
    )


def end(transaction_id: str) -> Any:
    return service.EndTransactionRequest(
        topic=resource("halves"), transaction_id=transaction_id, message_id="m", resolution=definition.COMMIT
    )


CASES: Final[dict[str, Case]] = {
    "topic blank": Case(send(topic=""), definition.ILLEGAL_TOPIC, "The specified topic is blank"),
    "topic long": Case(
        send(topic="t" * 128), definition.ILLEGAL_TOPIC, "The specified topic is longer than topic max length 127."
    ),
    "topic odd": Case(
        send(topic="a.b"),
        definition.ILLEGAL_TOPIC,
        f"The specified topic[a.b] contains illegal characters, allowing only {ALPHABET}",
    ),
    "system topic": Case(send(topic="TBW102"), definition.ILLEGAL_TOPIC, "cannot access system topic"),
    "no topic": Case(
        receive(topic="nothing"),
        definition.TOPIC_NOT_FOUND,
        "No topic route info in name server for the topic: nothing",
    ),
    "no message": Case(service.SendMessageRequest(), definition.MESSAGE_CORRUPTED, "no message to send"),
    "two topics": Case(
        service.SendMessageRequest(messages=[message("orders"), message("other")]),
        definition.MESSAGE_CORRUPTED,
        "topic in message is not same",
    ),
    "body large": Case(
        send(body=b"x" * 2_049), definition.MESSAGE_BODY_TOO_LARGE, "message body cannot exceed the max 2048"
    ),
    "body empty": Case(send(body=b""), definition.MESSAGE_BODY_EMPTY, "message body cannot be empty"),
    "tag blank": Case(
        send(tag=SPACES), definition.ILLEGAL_MESSAGE_TAG, "tag cannot be the char sequence of whitespace"
    ),
    "tag bar": Case(send(tag="a|b"), definition.ILLEGAL_MESSAGE_TAG, "tag cannot contain '|'"),
    "tag control": Case(send(tag=CONTROL), definition.ILLEGAL_MESSAGE_TAG, "tag cannot contain control character"),
    "key blank": Case(
        send(keys=[SPACES]), definition.ILLEGAL_MESSAGE_KEY, "key cannot be the char sequence of whitespace"
    ),
    "key control": Case(send(keys=[CONTROL]), definition.ILLEGAL_MESSAGE_KEY, "key cannot contain control character"),
    "message group blank": Case(
        send(topic="fifo", message_group=SPACES),
        definition.ILLEGAL_MESSAGE_GROUP,
        "message group cannot be the char sequence of whitespace",
    ),
    "message group long": Case(
        send(topic="fifo", message_group="g" * 64),
        definition.ILLEGAL_MESSAGE_GROUP,
        "message group exceed the max size 63",
    ),
    "message group control": Case(
        send(topic="fifo", message_group=CONTROL),
        definition.ILLEGAL_MESSAGE_GROUP,
        "message group cannot contain control character",
    ),
    "delay long": Case(
        send(topic="later", delivery_timestamp=Timestamp(seconds=4_000_000_000)),
        definition.ILLEGAL_DELIVERY_TIME,
        "the max delay time of message is too large, max is 86400000",
    ),
    "recovery long": Case(
        send(
            topic="halves",
            message_type=definition.TRANSACTION,
            orphaned_transaction_recovery_duration=Duration(seconds=100_000),
        ),
        definition.BAD_REQUEST,
        "the max transaction recovery time of message is too large, max is 3600",
    ),
    "many properties": Case(
        send(properties={f"p{number}": "x" for number in range(129)}),
        definition.MESSAGE_PROPERTIES_TOO_LARGE,
        "too many user properties, max is 128",
    ),
    "property taken": Case(
        send(properties={"TAGS": "x"}), definition.ILLEGAL_MESSAGE_PROPERTY_KEY, "property is used by system: TAGS"
    ),
    "property name control": Case(
        send(properties={CONTROL: "x"}),
        definition.ILLEGAL_MESSAGE_PROPERTY_KEY,
        "the key of property cannot contain control character",
    ),
    "property value control": Case(
        send(properties={"a": CONTROL}),
        definition.ILLEGAL_MESSAGE_PROPERTY_KEY,
        "the value of property cannot contain control character",
    ),
    "properties large": Case(
        send(properties={"a": "x" * 16_384}),
        definition.MESSAGE_PROPERTIES_TOO_LARGE,
        "the total size of user property is too large, max is 16384",
    ),
    "message id": Case(send(message_id=" "), definition.ILLEGAL_MESSAGE_ID, "message id cannot be empty"),
    "type": Case(
        send(message_group="g"),
        definition.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE,
        "TopicMessageType validate failed, the expected type is NORMAL, but actual type is FIFO",
    ),
    "unwritable": Case(send(topic="shut"), definition.FORBIDDEN, "no writable queue"),
    "unreadable": Case(receive(topic="shut"), definition.FORBIDDEN, "no readable queue"),
    "group blank": Case(receive(group=""), definition.ILLEGAL_CONSUMER_GROUP, "the specified group is blank"),
    "group long": Case(
        receive(group="g" * 121), definition.ILLEGAL_CONSUMER_GROUP, "is longer than group max length: 120."
    ),
    "group odd": Case(
        receive(group="a.b"),
        definition.ILLEGAL_CONSUMER_GROUP,
        f"the specified group[a.b] contains illegal characters, allowing only {ALPHABET}",
    ),
    "system group": Case(
        receive(group="CID_RMQ_SYS_x"), definition.ILLEGAL_CONSUMER_GROUP, "cannot use system consumer group"
    ),
    "group disabled": Case(receive(group="off"), definition.FORBIDDEN, "subscription group no permission, off"),
    "no group": Case(
        receive(group="nobody"), definition.CONSUMER_GROUP_NOT_FOUND, "subscription group [nobody] does not exist"
    ),
    "invisible short": Case(
        receive(invisible_duration=Duration(nanos=1)),
        definition.ILLEGAL_INVISIBLE_TIME,
        "the invisibleTime is too small. min is 100",
    ),
    "invisible long": Case(
        receive(invisible_duration=Duration(seconds=43_201)),
        definition.ILLEGAL_INVISIBLE_TIME,
        "the invisibleTime is too large. max is 43200000",
    ),
    "change long": Case(
        change(43_201), definition.ILLEGAL_INVISIBLE_TIME, "the invisibleTime is too large. max is 43200000"
    ),
    "expression": Case(
        receive(expression="a =", sql=True), definition.ILLEGAL_FILTER_EXPRESSION, "expression format is not correct"
    ),
    "nothing new": Case(receive(group="empty", topic="later"), definition.MESSAGE_NOT_FOUND, "no new message"),
    "ack of nothing": Case(
        service.AckMessageRequest(group=resource("g"), topic=resource("orders")),
        definition.BAD_REQUEST,
        "ack message result is empty",
    ),
    "ack": Case(ack("?"), definition.INVALID_RECEIPT_HANDLE, "INVALID_RECEIPT_HANDLE"),
    "change": Case(change(30), definition.INVALID_RECEIPT_HANDLE, "INVALID_RECEIPT_HANDLE"),
    "transaction blank": Case(end(" "), definition.INVALID_TRANSACTION_ID, "transaction id cannot be empty"),
    "transaction": Case(end("?"), definition.INVALID_TRANSACTION_ID, "cannot found transaction data"),
    "recall": Case(
        service.RecallMessageRequest(topic=resource("later"), recall_handle="?"),
        definition.BAD_REQUEST,
        "recall handle is invalid",
    ),
    "recall type": Case(
        service.RecallMessageRequest(topic=resource("orders"), recall_handle="?"),
        definition.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE,
        "TopicMessageType validate failed, the expected type is NORMAL, but actual type is DELAY",
    ),
}

LIMITED: Final[dict[str, Any]] = {
    "limits": {"body_size": 2_048},
    "groups": {"auto_create": False},
    "topics": {"auto_create": False},
}


def prepare(broker: RunningBroker) -> None:
    broker.topic("orders")
    broker.topic("later", TopicType.DELAY)
    broker.topic("halves", TopicType.TRANSACTION)
    broker.topic("fifo", TopicType.FIFO)
    broker.store.topics.create(Topic("shut", TopicType.NORMAL, 1, 1, Permission(0)))
    for name in ("g", "empty"):
        broker.group(name)
    broker.store.groups.create(Group("off", enabled=False))


async def status(client: Client, request: Any) -> definition.Status:
    name = type(request).__name__.removesuffix("Request")
    if name != "ReceiveMessage":
        answer: definition.Status = (await client.call(name, request)).status
        return answer
    async for part in client.stub.ReceiveMessage(request, metadata=client.metadata, timeout=10):
        if part.HasField("status"):
            found: definition.Status = part.status
    return found


def test_each_refusal_has_rocketmqs_text(with_broker: WithBroker, front: str) -> None:
    async def test(broker: RunningBroker) -> None:
        prepare(broker)
        wrong = {}
        async with Client(broker.endpoint) as client:
            for name, case in CASES.items():
                found = await status(client, case.request)
                if found.code != case.code or case.text not in found.message:
                    wrong[name] = (definition.Code.Name(found.code), found.message)
        assert wrong == {}

    with_broker(test, network={"front": front}, **LIMITED)


def test_so_have_refusals_of_clients_and_of_handles_that_were_good(with_broker: WithBroker, front: str) -> None:
    async def test(broker: RunningBroker) -> None:
        prepare(broker)
        heartbeat = service.HeartbeatRequest(group=resource("g"))
        async with Client(broker.endpoint, None) as nameless, Client(broker.endpoint) as client:
            for request in (heartbeat, send()):
                found = await status(nameless, request)
                assert (found.code, "client id cannot be empty" in found.message) == (
                    definition.CLIENT_ID_REQUIRED,
                    True,
                )
            found = await status(client, heartbeat)
            assert found.code == definition.UNRECOGNIZED_CLIENT_TYPE
            assert "cannot find client settings for this client" in found.message
            await client.declare(consumer_settings("g", "orders"))
            await client.sent(message("orders"), message("orders"))
            received = await client.receive("g", "orders", count=2, polling_s=5, invisible_s=1)
            first, second = received.handles
            found = await status(client, change(30, first))
            assert found.code == definition.OK
            broker.clock.push(5)
            late = "INVALID_RECEIPT_HANDLE: receipt handle is expired"
            for request in (change(30, second), ack(second)):
                found = await status(client, request)
                assert (found.code, found.message) == (definition.INVALID_RECEIPT_HANDLE, late)
            answer = await client.call("AckMessage", ack(second))
            assert answer.entries[0].status.message == late
            both = ack(second)
            [good] = (await client.receive("g", "orders", count=1, polling_s=5)).handles
            both.entries.add(message_id="m", receipt_handle=good)
            found = await status(client, both)
            assert (found.code, "MULTIPLE_RESULTS" in found.message) == (definition.MULTIPLE_RESULTS, True)

    with_broker(test, network={"front": front}, delivery={"new_group_start": "earliest"}, **LIMITED)
