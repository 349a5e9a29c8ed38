"""Every method with requests that no client library sends."""

from __future__ import annotations

import random
from typing import Any, Final

import grpc
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from quarry_mq.protocol.limits import ENTRIES_MAX
from quarry_mq.protocol.proto.apache.rocketmq.v2 import definition_pb2 as definition
from quarry_mq.protocol.proto.apache.rocketmq.v2 import service_pb2 as service
from tests.e2e.broker import Broker, until
from tests.hostile.absurd import GOOD_NAME, absurd_request, request_type
from tests.hostile.caller import CLIENT, METHODS, Caller, assert_unharmed

MIB: Final = 1024 * 1024
quick = settings(max_examples=30, suppress_health_check=list(HealthCheck))


def good_request(method: str) -> Any:
    """One that an ordinary client could send."""
    request: Any = request_type(method)()
    if method == "SendMessage":
        message = request.messages.add(body=b"body")
        message.topic.name = GOOD_NAME
        message.system_properties.message_id = "id"
    if method == "Telemetry":
        request.settings.client_type = definition.SIMPLE_CONSUMER
        request.settings.subscription.group.name = GOOD_NAME
    if method == "ReceiveMessage":
        request.message_queue.topic.name = GOOD_NAME
        request.invisible_duration.seconds = 10
        request.long_polling_timeout.seconds = 0
    if method == "AckMessage":
        request.entries.add(receipt_handle="handle")
    for name in ("topic", "group"):
        if name in request.DESCRIPTOR.fields_by_name:
            getattr(request, name).name = GOOD_NAME
    return request


@pytest.mark.parametrize("method", METHODS)
@quick
@given(data=st.data())
def test_absurd_values_are_answered(caller: Caller, method: str, data: st.DataObject) -> None:
    caller.code(method, data.draw(absurd_request(method)))


@pytest.mark.parametrize("method", METHODS)
@quick
@given(body=st.binary(max_size=300))
def test_random_bytes_are_answered(caller: Caller, method: str, body: bytes) -> None:
    caller.code(method, body)


@pytest.mark.parametrize("method", METHODS)
@quick
@given(data=st.data())
def test_ordinary_requests_with_wrong_bytes_are_answered(caller: Caller, method: str, data: st.DataObject) -> None:
    body = bytearray(good_request(method).SerializeToString())
    for _ in range(data.draw(st.integers(1, 4))):
        if body:
            body[data.draw(st.integers(0, len(body) - 1))] = data.draw(st.integers(0, 255))
    caller.code(method, bytes(body[: data.draw(st.integers(0, len(body)))] if data.draw(st.booleans()) else body))


@pytest.mark.parametrize("method", METHODS)
def test_text_that_is_no_utf8_is_refused(caller: Caller, method: str) -> None:
    body = good_request(method).SerializeToString()
    damaged = body.replace(GOOD_NAME.encode(), b"\xff\xfe\xfd\xc3\x28\x80")
    if damaged != body:
        expected = "INVALID_ARGUMENT" if method == "Telemetry" else "BAD_REQUEST"
        assert caller.code(method, damaged) == expected


@pytest.mark.parametrize("method", METHODS)
def test_an_empty_request_is_answered(caller: Caller, method: str) -> None:
    assert caller.code(method, b"") != "OK"


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("client_id", [None, "", "  "])
def test_who_does_not_say_who_he_is_is_told_so(caller: Caller, method: str, client_id: str | None) -> None:
    """Point 1."""
    metadata = () if client_id is None else (("x-mq-client-id", client_id),)
    for body in (good_request(method).SerializeToString(), b"\xff\xff\xff"):
        assert caller.code(method, body, metadata=metadata) == "CLIENT_ID_REQUIRED"


def test_headers_of_15_kib_pass_and_larger_ones_are_refused(caller: Caller) -> None:
    body = good_request("QueryRoute").SerializeToString()
    assert caller.code("QueryRoute", body, metadata=(*CLIENT, ("x-more", "h" * 15_000))) == "OK"
    with pytest.raises(grpc.RpcError) as refused:
        caller.call("QueryRoute", body, metadata=(*CLIENT, ("x-more", "h" * 30_000)))
    assert refused.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert caller.code("QueryRoute", body, metadata=(("x-mq-client-id", "h" * 15_000),)) == "BAD_REQUEST"


@pytest.mark.parametrize("method", METHODS)
def test_a_deadline_of_a_millisecond_is_kept(caller: Caller, method: str) -> None:
    for _ in range(10):
        try:
            caller.call(method, good_request(method).SerializeToString(), timeout_s=0.001)
        except grpc.RpcError as error:
            assert error.code() is grpc.StatusCode.DEADLINE_EXCEEDED  # noqa: PT017 - most calls are in time


@pytest.mark.parametrize("timeout_s", [1e9, 1e15])
def test_a_deadline_in_many_years_is_no_trouble(caller: Caller, timeout_s: float) -> None:
    request = good_request("ReceiveMessage")
    request.ClearField("long_polling_timeout")
    try:
        caller.call("ReceiveMessage", request.SerializeToString(), timeout_s=timeout_s)
    except grpc.RpcError as error:
        assert error.code() is grpc.StatusCode.DEADLINE_EXCEEDED  # noqa: PT017 - the library's own overflow


def test_countless_entries_are_counted_and_not_read(caller: Caller, broker: Broker) -> None:
    """16 MiB of empty entries: the loop looked at them for 46 s, and memory grew to 4.8 GB."""
    before = broker.resident_kib()
    bomb = (16 * MIB - 1000) // 2
    ack = good_request("AckMessage").SerializeToString()
    assert caller.code("SendMessage", b"\x0a\x00" * bomb) == "PAYLOAD_TOO_LARGE"
    assert caller.code("AckMessage", ack + b"\x1a\x00" * bomb) == "RESOURCE_EXHAUSTED"
    assert caller.code("AckMessage", ack + b"\x1a\x00" * (bomb // 10)) == "PAYLOAD_TOO_LARGE"
    route = good_request("QueryRoute")
    route.endpoints.addresses.add()
    for count, code in ((5_000, "ILLEGAL_ACCESS_POINT"), (bomb, "RESOURCE_EXHAUSTED")):
        addresses = service.QueryRouteRequest(topic=route.topic).SerializeToString() + (
            b"\x12" + _varint(2 * count) + b"\x12\x00" * count
        )
        assert caller.code("QueryRoute", addresses) == code
    settings = good_request("Telemetry")
    settings.settings.subscription.subscriptions.extend(
        [definition.SubscriptionEntry(topic=definition.Resource(name=GOOD_NAME))] * (ENTRIES_MAX + 1)
    )
    assert caller.code("Telemetry", settings.SerializeToString()) == "INVALID_ARGUMENT"
    assert broker.resident_kib() - before < 128 * 1024  # buffers of what came; nothing is made of it


def test_long_expressions_and_endpoints_are_not_read(caller: Caller) -> None:
    """A tag expression of 16 MB held the loop up for two seconds, and a thousand of them were remembered."""
    caller.code("QueryRoute", good_request("QueryRoute").SerializeToString())
    receive = good_request("ReceiveMessage")
    receive.filter_expression.expression = "x" * 16_384
    assert caller.code("ReceiveMessage", receive.SerializeToString()) in {"OK", "MESSAGE_NOT_FOUND"}
    for kind, expression in (("TAG", "x" * 16_385), ("TAG", "a||" * 20_000), ("SQL", "a = 1 OR " * 1_000 + "b = 1")):
        receive.filter_expression.type = definition.FilterType.Value(kind)
        receive.filter_expression.expression = expression
        assert caller.code("ReceiveMessage", receive.SerializeToString()) == "ILLEGAL_FILTER_EXPRESSION"
    receive.filter_expression.expression = "a||" * 5_000_000
    assert caller.code("ReceiveMessage", receive.SerializeToString()) == "RESOURCE_EXHAUSTED"
    settings = good_request("Telemetry")
    for number in range(20):
        entry = settings.settings.subscription.subscriptions.add()
        entry.topic.name = GOOD_NAME
        entry.expression.type = definition.SQL
        entry.expression.expression = f"a{number} IN ('" + "x" * 4_000 + "')"
    assert caller.code("Telemetry", settings.SerializeToString()) == "INVALID_ARGUMENT"
    del settings.settings.subscription.subscriptions[10:]
    assert caller.code("Telemetry", settings.SerializeToString()) == "OK"
    route = good_request("QueryRoute")
    for number in range(10):
        route.endpoints.addresses.add(host=f"{number}" + "h" * 100, port=8081)
    assert caller.code("QueryRoute", route.SerializeToString()) == "ILLEGAL_ACCESS_POINT"


def test_bodies_and_requests_above_their_limits_are_refused(caller: Caller) -> None:
    request = good_request("SendMessage")
    request.messages[0].body = bytes(4 * MIB)
    assert caller.code("SendMessage", request.SerializeToString()) == "OK"
    request.messages[0].body = bytes(4 * MIB + 1)
    assert caller.code("SendMessage", request.SerializeToString()) == "MESSAGE_BODY_TOO_LARGE"
    with pytest.raises(grpc.RpcError) as refused:
        caller.call("SendMessage", bytes(16 * MIB + 1))
    assert refused.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED


def test_what_unpacks_to_much_more_is_refused_while_unpacking(broker: Broker) -> None:
    """A request of 300 KB that gzip makes 256 MiB of."""
    before = broker.resident_kib()
    with grpc.insecure_channel(broker.endpoint, options=[("grpc.max_send_message_length", -1)]) as channel:
        send: Any = channel.unary_unary("/apache.rocketmq.v2.MessagingService/SendMessage")
        with pytest.raises(grpc.RpcError) as refused:
            send(bytes(256 * MIB), metadata=CLIENT, timeout=30, compression=grpc.Compression.Gzip)
    assert refused.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert broker.resident_kib() - before < 64 * 1024


def test_unknown_methods_are_told_so(broker: Broker) -> None:
    with grpc.insecure_channel(broker.endpoint) as channel:
        for path in ("/apache.rocketmq.v2.MessagingService/Nothing", "/x", "/", "/grpc.reflection.v1.X/Y"):
            call: Any = channel.unary_unary(path)
            with pytest.raises(grpc.RpcError) as refused:
                call(b"", timeout=10)
            assert refused.value.code() is grpc.StatusCode.UNIMPLEMENTED


def test_absurd_times_in_settings_do_not_outlive_their_client(caller: Caller, broker: Broker) -> None:
    receive = good_request("ReceiveMessage")
    receive.ClearField("long_polling_timeout")
    for seconds in (2**62, -(2**62), 0):
        request = good_request("Telemetry")
        request.settings.request_timeout.seconds = seconds
        assert caller.code("Telemetry", request.SerializeToString()) == "OK"
        assert caller.code("ReceiveMessage", receive.SerializeToString()) in {"OK", "MESSAGE_NOT_FOUND"}
    assert_unharmed(broker)


def test_streams_that_are_cancelled_at_any_moment_leave_nothing(caller: Caller, broker: Broker) -> None:
    receive = good_request("ReceiveMessage")
    receive.long_polling_timeout.seconds = 1
    chance = random.Random(7)
    for method, request in (("ReceiveMessage", receive), ("Telemetry", good_request("Telemetry"))):
        for _ in range(24):
            call = caller.begin(method, request.SerializeToString())
            if chance.random() < 0.5:
                next(iter(call), None)
            call.cancel()
    assert_unharmed(broker)
    until(lambda: broker.stat("quarry_waiting_polls") == 0, "no receive waits")


def _varint(value: int) -> bytes:
    encoded = bytearray()
    while value > 127:
        encoded.append(value & 127 | 128)
        value >>= 7
    return bytes([*encoded, value])
