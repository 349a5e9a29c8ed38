"""Attempts of an attacker who is a user: others' things under other names, numbers at their borders, many entries.

Each attempt is named. After all of them what others have is as it was.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import grpc
import grpc.aio
import pytest
from google.protobuf.duration_pb2 import Duration
from google.protobuf.timestamp_pb2 import Timestamp

from quarry_mq.protocol.proto.apache.rocketmq.v2 import admin_pb2 as official
from quarry_mq.protocol.proto.apache.rocketmq.v2 import definition_pb2 as definition
from quarry_mq.protocol.proto.apache.rocketmq.v2 import service_pb2 as service
from quarry_mq.protocol.proto.quarry.admin.v1 import admin_pb2 as pb
from quarry_mq.protocol.proto.quarry.admin.v1 import browsing_pb2, dead_letters_pb2
from quarry_mq.protocol.proto.quarry.admin.v1.dead_letters_pb2_grpc import DeadLetterServiceStub
from quarry_mq.protocol.signature import signed_messaging_headers
from quarry_mq.store.message import QueueOffset
from quarry_mq.store.metadata import TopicType
from quarry_mq.store.security.model import UserKind
from tests.conformance.broker import PATIENCE_S, RunningBroker
from tests.conformance.client import Client, consumer_settings, message, resource
from tests.conformance.conftest import WithBroker, both_ways
from tests.conformance.secured import SECRET, SECURED, add_user, client_of
from tests.conformance.test_admin_access import Operator
from tests.conformance.test_order import dead_letter
from tests.conformance.test_texts import receive, send, status

DENIED: Final = definition.UNAUTHORIZED
QUARRY: Final = "/quarry.admin.v1."
fronts = pytest.mark.parametrize("front", ["h2", "grpcio"])


def queue(topic: str, number: int = 0) -> definition.MessageQueue:
    return definition.MessageQueue(topic=resource(topic), id=number)


def with_namespace(topic: str, namespace: str) -> Any:
    request = send(topic=topic)
    request.messages[0].topic.resource_namespace = namespace
    return request


def ack(group: str, topic: str, handle: str) -> Any:
    entry = service.AckMessageEntry(message_id="m", receipt_handle=handle)
    return service.AckMessageRequest(group=resource(group), topic=resource(topic), entries=[entry])


def change(group: str, topic: str, handle: str) -> Any:
    return service.ChangeInvisibleDurationRequest(
        group=resource(group), topic=resource(topic), receipt_handle=handle, invisible_duration=Duration(seconds=30)
    )


def forward(group: str, topic: str, handle: str) -> Any:
    return service.ForwardMessageToDeadLetterQueueRequest(
        group=resource(group), topic=resource(topic), receipt_handle=handle
    )


def later(seconds: int, nanos: int = 0) -> Any:
    return send(topic="later", delivery_timestamp=Timestamp(seconds=seconds, nanos=nanos))


def hidden(seconds: int, nanos: int = 0) -> Any:
    duration = Duration(seconds=seconds, nanos=nanos)
    return receive(topic="mine", group="mallory", invisible_duration=duration, long_polling_timeout=Duration())


def attempts_at_others(handle: str) -> Mapping[str, tuple[Any, definition.Code]]:
    """Requests for what other users have; `handle` is that of a message which another user's group has in flight."""
    bad_handle, bad_topic = definition.INVALID_RECEIPT_HANDLE, definition.ILLEGAL_TOPIC
    return {
        "dead letters of a group": (receive(topic="%DLQ%billing", group="mallory"), DENIED),
        "dead letters of no group": (receive(topic="%DLQ%nobody", group="mallory"), DENIED),
        "route to dead letters": (service.QueryRouteRequest(topic=resource("%DLQ%billing")), DENIED),
        "route to dead letters of no group": (service.QueryRouteRequest(topic=resource("%DLQ%nobody")), DENIED),
        "send to dead letters": (send(topic="%DLQ%mallory"), DENIED),
        "retry topic of a topic": (receive(topic="%RETRY%mallory_paid", group="mallory"), DENIED),
        "retry topic of a topic, newer form": (receive(topic="%RETRY%mallory+paid", group="mallory"), DENIED),
        "retry topic of a group": (receive(topic="%RETRY%billing", group="mallory"), DENIED),
        "acknowledge in one's own group": (ack("mallory", "mine", handle), bad_handle),
        "acknowledge in the other topic": (ack("mallory", "paid", handle), DENIED),
        "acknowledge in the other group": (ack("billing", "mine", handle), DENIED),
        "hide in one's own group": (change("mallory", "mine", handle), bad_handle),
        "bury from one's own group": (forward("mallory", "mine", handle), bad_handle),
        "bury from the other group": (forward("billing", "paid", handle), DENIED),
        "invisible character in a name": (send(topic="paid\u200b"), DENIED),
        "full width letter in a name": (send(topic="\uff50aid"), DENIED),
        "invisible character in one's own name": (send(topic="mine-\u200b"), bad_topic),
        "zero byte in a name": (send(topic="mine-\0"), bad_topic),
        "path in a name": (send(topic="mine-/../paid"), bad_topic),
        "long name": (send(topic="mine-" + "t" * 60_000), bad_topic),
        "namespace that is a topic": (with_namespace("paid", "mine"), DENIED),
        "second topic in one request": (
            service.SendMessageRequest(messages=[message("mine"), message("paid")]),
            DENIED,
        ),
        "offset of a group": (
            service.UpdateOffsetRequest(group=resource("billing"), message_queue=queue("mine"), offset=5),
            DENIED,
        ),
        "offset beyond the queue": (
            service.UpdateOffsetRequest(group=resource("mallory"), message_queue=queue("mine"), offset=2**63 - 1),
            definition.ILLEGAL_OFFSET,
        ),
        "queue that is none": (
            service.UpdateOffsetRequest(group=resource("mallory"), message_queue=queue("mine", -5), offset=-1),
            definition.BAD_REQUEST,
        ),
        "assignment of a group": (
            service.QueryAssignmentRequest(topic=resource("mine"), group=resource("billing")),
            DENIED,
        ),
        "lite topics of a group": (
            service.SyncLiteSubscriptionRequest(topic=resource("mine"), group=resource("billing")),
            DENIED,
        ),
    }


def attempts_at_borders() -> Mapping[str, tuple[Any, definition.Code]]:
    """Requests of a user within its rights, with values that are hardly allowed, or just not."""
    bad_time, bad_delay = definition.ILLEGAL_INVISIBLE_TIME, definition.ILLEGAL_DELIVERY_TIME
    bad_filter = definition.ILLEGAL_FILTER_EXPRESSION
    return {
        "delay to the year 9999": (later(253_402_300_799), bad_delay),
        "delay of all seconds": (later(2**63 - 1, 999_999_999), bad_delay),
        "delay into the past": (later(-(2**63)), definition.OK),
        "delay of nanoseconds alone": (later(0, -(2**31)), definition.OK),
        "hide for all seconds": (hidden(2**63 - 1, 999_999_999), bad_time),
        "hide for less than nothing": (hidden(-(2**63)), bad_time),
        "hide for nanoseconds alone": (hidden(0, -(2**31)), bad_time),
        "least priority": (send(topic="ranked", priority=-(2**31)), definition.BAD_REQUEST),
        "highest priority": (send(topic="ranked", priority=2**31 - 1), definition.OK),
        "deep expression": (receive(topic="mine", group="mallory", expression="NOT " * 1_000, sql=True), bad_filter),
        "many parentheses": (receive(topic="mine", group="mallory", expression="(" * 4_000, sql=True), bad_filter),
        "large number": (receive(topic="mine", group="mallory", expression="a=" + "9" * 3_000, sql=True), bad_filter),
        "forged group of a dead letter": (
            send(topic="mine", properties={"ORIGIN_GROUP": "billing"}),
            definition.ILLEGAL_MESSAGE_PROPERTY_KEY,
        ),
        "forged topic of a dead letter": (
            send(topic="mine", properties={"RETRY_TOPIC": "paid"}),
            definition.ILLEGAL_MESSAGE_PROPERTY_KEY,
        ),
    }


def prepare(broker: RunningBroker) -> None:
    for name, kind in (("paid", "normal"), ("mine", "normal"), ("later", "delay"), ("ranked", "priority")):
        broker.topic(name, TopicType(kind))
    for name in ("billing", "mallory"):
        broker.group(name)
    own = [f"topic:{name} pub sub" for name in ("mine", "mine-*", "later", "ranked")]
    add_user(broker, "alice", "topic:paid pub sub", "group:billing sub")
    add_user(broker, "mallory", *own, "group:mallory sub", "topic:orders get")
    add_user(broker, "ops", kind=UserKind.SUPER)


def has(broker: RunningBroker) -> tuple[object, ...]:
    """What others have."""
    store = broker.store
    return (
        [each.name for each in store.topics.list()],
        [each.name for each in store.groups.list()],
        [store.messages.bounds(each) for each in store.messages.queues_of("paid")],
        [store.offsets.get("billing", each) for each in store.messages.queues_of("paid")],
        broker.delivery.inflight_count,
    )


@both_ways
@fronts
def test_no_attempt_reaches_what_others_have(with_broker: WithBroker, front: str) -> None:
    async def test(broker: RunningBroker) -> None:
        prepare(broker)
        async with client_of(broker, "alice", "alice@1") as alice, client_of(broker, "mallory", "mallory@1") as mallory:
            await alice.declare(consumer_settings("billing", "paid"))
            await alice.sent(message("paid", b"a", message_id="a"))
            received = await alice.receive("billing", "paid", polling_s=PATIENCE_S, deadline_s=PATIENCE_S * 2)
            before, wrong = has(broker), {}
            tried = {**attempts_at_others(received.handles[0]), **attempts_at_borders()}
            for name, (request, code) in tried.items():
                found = await status(mallory, request)
                if found.code != code or len(found.message) > 1_000:
                    wrong[name] = (definition.Code.Name(found.code), found.message[:200])
            assert wrong == {}
            assert has(broker) == before
            assert (await alice.ack("billing", "paid", *received.handles)).status.code == definition.OK

    with_broker(test, security=SECURED, network={"front": front}, delivery={"new_group_start": "earliest"})


@both_ways
@fronts
def test_nobody_calls_as_the_client_of_another_user(with_broker: WithBroker, front: str) -> None:
    """With the client's id, with two ids, or with two signatures."""

    async def test(broker: RunningBroker) -> None:
        prepare(broker)
        signed = signed_messaging_headers("mallory", SECRET, now_ms=broker.clock.wall_ms())
        forged = [(name, value.replace("mallory", "alice")) for name, value in signed if name == "authorization"]
        own, other = ("x-mq-client-id", "mallory@1"), ("x-mq-client-id", "alice@1")
        end = service.NotifyClientTerminationRequest(group=resource("billing"))
        async with client_of(broker, "alice", "alice@1") as alice:
            await alice.declare(consumer_settings("billing", "paid"))
            known = broker.broker._clients.find("alice@1")
            assert known is not None
            headers = (
                [other, *signed],
                [own, other, *signed],
                [other, own, *signed],
                [own, *forged],
                [own, *forged, *signed],
            )
            for each in headers:
                async with Client(broker.endpoint, None, headers=each) as mallory:
                    for request in (end, send(topic="paid")):
                        assert (await status(mallory, request)).code == DENIED, each
            async with client_of(broker, "mallory", "alice@1") as mallory:
                told = await mallory.declare(consumer_settings("mallory", "mine"))
                assert told.status.code == DENIED
            assert broker.broker._clients.find("alice@1") is known

    with_broker(test, security={**SECURED, "failures_per_minute": 1_000}, network={"front": front})


def test_a_sender_does_not_say_whose_its_dead_letter_is(with_broker: WithBroker) -> None:
    """Records of before hold such a property: what is sent again is for the group that it is a dead letter of."""

    async def test(broker: RunningBroker) -> None:
        broker.topic("orders", queues=1)
        async with Client(broker.endpoint) as client:
            await client.sent(message("orders", b"a"))
            received = await client.receive("billing", "orders", polling_s=PATIENCE_S, deadline_s=PATIENCE_S * 2)
            await dead_letter(client, "billing", "orders", *received.handles)
            async with grpc.aio.insecure_channel(broker.admin) as channel:
                box = DeadLetterServiceStub(channel)
                await box.ResendDeadLetters(dead_letters_pb2.ResendDeadLettersRequest(group="billing"))
            [entry] = broker.store.messages.entries(
                broker.store.messages.queues_of("%RETRY%billing_orders")[0], QueueOffset(0), 1
            )
            assert broker.store.messages.read(entry).properties["ORIGIN_GROUP"] == "billing"
            received = await client.receive("billing", "orders", polling_s=PATIENCE_S, deadline_s=PATIENCE_S * 2)
            assert [each.body for each in received.messages] == [b"a"]
            assert not received.messages[0].user_properties

    with_broker(test, delivery={"new_group_start": "earliest"})


def entries(number: int, count: int = 450_000) -> bytes:
    """So many empty ones of a field."""
    return bytes([number << 3 | 2, 0]) * count


TOO_MANY: Final[Mapping[str, bytes]] = {
    f"{QUARRY}AdminService/UpdateTopic": entries(pb.UpdateTopicRequest.ATTRIBUTES_FIELD_NUMBER),
    f"{QUARRY}AdminService/CreateGroup": entries(pb.CreateGroupRequest.ATTRIBUTES_FIELD_NUMBER),
    f"{QUARRY}DeadLetterService/ResendDeadLetters": dead_letters_pb2.ResendDeadLettersRequest(
        group="billing", offsets=[1] * 1_000_000
    ).SerializeToString(),
    "/apache.rocketmq.v2.Admin/DescribeGroupAccumulation": entries(
        official.DescribeGroupAccumulationRequest.TOPICS_FIELD_NUMBER
    ),
    "/apache.rocketmq.v2.Admin/AdminSendMessage": entries(
        official.AdminSendMessageRequest.USER_PROPERTIES_FIELD_NUMBER
    ),
}


def test_many_entries_are_counted_on_the_admin_port_before_there_are_objects(with_broker: WithBroker) -> None:
    """By strangers, by users without a right, and by those who may do everything."""

    async def test(broker: RunningBroker) -> None:
        prepare(broker)
        async with grpc.aio.insecure_channel(broker.admin) as opened:
            channel: Any = opened
            for path, body in TOO_MANY.items():
                for caller in ("mallory", "ops"):
                    call = channel.unary_unary(path)(body, metadata=Operator(broker, caller).headers(path))
                    with pytest.raises(grpc.aio.AioRpcError, match="16384 fields and entries") as caught:
                        await call
                    assert caught.value.code() == grpc.StatusCode.INVALID_ARGUMENT
            path = f"{QUARRY}DeadLetterService/ResendDeadLetters"
            some = dead_letters_pb2.ResendDeadLettersRequest(group="billing", offsets=[1] * 7_000).SerializeToString()
            call = channel.unary_unary(path)(some, metadata=Operator(broker, "ops").headers(path))
            with pytest.raises(grpc.aio.AioRpcError, match="one call sends at most 1000"):
                await call

    with_broker(test, security=SECURED)


def test_the_admin_port_tells_users_and_strangers_nothing(with_broker: WithBroker) -> None:
    """Calls of members, reflection, and a cursor of somebody else's answer."""

    async def test(broker: RunningBroker) -> None:
        prepare(broker)
        broker.topic("orders")
        async with client_of(broker, "alice") as alice:
            for _ in range(3):
                await alice.sent(message("paid", b"secret"))
        ops, mallory = Operator(broker, "ops"), Operator(broker, "mallory")
        async with grpc.aio.insecure_channel(broker.admin) as opened:
            channel: Any = opened

            async def code(path: str, body: bytes, headers: Any) -> grpc.StatusCode:
                with pytest.raises(grpc.aio.AioRpcError) as caught:
                    await channel.unary_unary(path)(body, metadata=headers)
                found: grpc.StatusCode = caught.value.code()
                return found

            for method in ("Exchange", "LeftInOrder", "Forward", "Overview"):
                path = f"/quarry.cluster.v1.ClusterService/{method}"
                assert await code(path, b"", ops.headers(path)) is grpc.StatusCode.UNIMPLEMENTED
            for version in ("v1", "v1alpha"):
                path = f"/grpc.reflection.{version}.ServerReflection/ServerReflectionInfo"
                with pytest.raises(grpc.aio.AioRpcError, match=r"UNAUTHENTICATED|UNIMPLEMENTED"):
                    [each async for each in channel.unary_stream(path)(b"")]
            path = f"{QUARRY}BrowsingService/BrowseMessages"
            request = browsing_pb2.BrowseMessagesRequest(topic="paid", limit=1)
            answer = await channel.unary_unary(path)(request.SerializeToString(), metadata=ops.headers(path))
            cursor = browsing_pb2.BrowseMessagesResponse.FromString(answer).next
            assert cursor
            for forged in (cursor, b"\0", b"x" * 5_000, cursor[:-1], cursor + b"\0", bytes(len(cursor))):
                request = browsing_pb2.BrowseMessagesRequest(topic="orders", cursor=forged, limit=1)
                body = request.SerializeToString()
                assert await code(path, body, mallory.headers(path)) is grpc.StatusCode.INVALID_ARGUMENT
            body = browsing_pb2.BrowseMessagesRequest(topic="paid", cursor=cursor).SerializeToString()
            assert await code(path, body, mallory.headers(path)) is grpc.StatusCode.PERMISSION_DENIED

    with_broker(test, security=SECURED)
