"""Readers of plain acknowledgements read a request as the slow path does, or leave it to the slow path."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quarry_mq.protocol.proto.apache.rocketmq.v2 import definition_pb2 as definition
from quarry_mq.protocol.proto.apache.rocketmq.v2 import service_pb2 as service
from quarry_mq.server.delivery.handles import HandleKey, ReceiptHandle, encode_all
from quarry_mq.server.rpc.plain import PlainCalls, PythonCalls
from quarry_mq.server.wire.parsing import SHORT_MAX
from quarry_mq.server.wire.status import fill_ok
from quarry_mq.store.message import PhysicalOffset
from quarry_mq.store.native import NATIVE, PlainAck
from tests.handles import HANDLE_KEY

needs_native = pytest.mark.skipif(NATIVE is None, reason="no native part")
both = pytest.mark.parametrize(
    "calls", [pytest.param(NATIVE, marks=needs_native, id="native"), pytest.param(PythonCalls(), id="python")]
)

NAMES = st.sampled_from(["billing", "orders", "", "%RETRY%a_b", "ö", "t" * 127])
NUMBERS = st.one_of(st.integers(0, 20), st.integers(0, 2**63 - 1))
HANDLES = st.builds(ReceiptHandle, st.integers(0, 2**32 - 1), NUMBERS, NUMBERS, NUMBERS)
TEXTS = st.one_of(st.text("0123456789ABCDEF", max_size=40), st.sampled_from(["", "ä", "\x01", "\x85"]))


def request(group: str, topic: str, *entries: tuple[str, str]) -> service.AckMessageRequest:
    return service.AckMessageRequest(
        group=definition.Resource(name=group),
        topic=definition.Resource(name=topic),
        entries=[service.AckMessageEntry(message_id=name, receipt_handle=handle) for name, handle in entries],
    )


def of_python(body: bytes) -> PlainAck:
    """The same of a request that Python takes. Raises what it is refused for."""
    parsed = service.AckMessageRequest.FromString(body)
    [entry] = parsed.entries
    assert not entry.lite_topic
    group, topic = parsed.group.name, parsed.topic.name
    delivery = ReceiptHandle.decode(entry.receipt_handle, group, topic, HANDLE_KEY)
    return (group, topic, entry.message_id, entry.receipt_handle, *delivery)


def agrees(calls: PlainCalls, body: bytes) -> bool:
    plain = calls.read_ack(body, SHORT_MAX, HANDLE_KEY.raw)
    return plain is None or plain == of_python(body)


@both
@settings(max_examples=400)
@given(NAMES, NAMES, TEXTS, HANDLES)
def test_plain_ones_are_read(calls: PlainCalls, group: str, topic: str, message_id: str, handle: ReceiptHandle) -> None:
    body = request(group, topic, (message_id, handle.encode(group, topic, HANDLE_KEY))).SerializeToString()
    plain = calls.read_ack(body, SHORT_MAX, HANDLE_KEY.raw)
    if plain is None:
        assert not (group and topic) or not message_id.isprintable()
    else:
        assert plain == of_python(body)


@both
@settings(max_examples=800)
@given(NAMES, NAMES, HANDLES, st.data())
def test_bytes_that_went_wrong_are_read_as_python_reads_them_or_not_at_all(
    calls: PlainCalls, group: str, topic: str, handle: ReceiptHandle, data: st.DataObject
) -> None:
    body = bytearray(request(group, topic, ("id", handle.encode(group, topic, HANDLE_KEY))).SerializeToString())
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(body) - 1))
        if data.draw(st.booleans()):
            body[at] = data.draw(st.integers(0, 255))
        else:
            del body[at]
    assert agrees(calls, bytes(body))


HANDLE = ReceiptHandle(1, 2, 3, 4).encode("billing", "orders", HANDLE_KEY)
ENTRY = ("id", HANDLE)


@both
@settings(max_examples=400)
@given(st.one_of(st.text(max_size=60), st.text("AQ-_+/=.", min_size=50, max_size=54)))
def test_handles_that_are_none_are_left_to_python(calls: PlainCalls, text: str) -> None:
    body = request("billing", "orders", ("id", text)).SerializeToString()
    assert calls.read_ack(body, SHORT_MAX, HANDLE_KEY.raw) is None


@pytest.mark.parametrize(
    "unusual",
    [
        service.AckMessageRequest(),
        request("billing", "orders"),
        request("billing", "orders", ENTRY, ENTRY),
        request("other", "orders", ENTRY),
        request("billing", "other", ENTRY),
        request("", "orders", ENTRY),
        request("billing", "orders", ("id", f"{HANDLE}.lite")),
        request("billing", "orders", ("id", HANDLE.replace("=", ""))),
        service.AckMessageRequest(
            group=definition.Resource(name="billing"),
            topic=definition.Resource(name="orders"),
            entries=[service.AckMessageEntry(receipt_handle=HANDLE, lite_topic="l")],
        ),
    ],
)
def test_what_is_unusual_is_left_to_python(plain_calls: PlainCalls, unusual: service.AckMessageRequest) -> None:
    plain = request("billing", "orders", ENTRY).SerializeToString()
    assert plain_calls.read_ack(plain, SHORT_MAX, HANDLE_KEY.raw) is not None
    assert plain_calls.read_ack(plain, SHORT_MAX, bytes(32)) is None, "of another store"
    assert plain_calls.read_ack(unusual.SerializeToString(), SHORT_MAX, HANDLE_KEY.raw) is None


@pytest.mark.parametrize(
    "odd",
    [
        request("billing", "orders", ("id", f"{HANDLE[:-2]}\n==")),
        service.AckMessageRequest(
            group=definition.Resource(name="billing", resource_namespace="n"),
            topic=definition.Resource(name="orders"),
            entries=[service.AckMessageEntry(receipt_handle=HANDLE)],
        ),
    ],
    ids=["a line break in the handle", "a namespace"],
)
def test_what_is_odd_is_read_as_the_slow_path_reads_it(plain_calls: PlainCalls, odd: service.AckMessageRequest) -> None:
    body = odd.SerializeToString()
    assert plain_calls.read_ack(body, SHORT_MAX, HANDLE_KEY.raw) in (None, of_python(body))


@pytest.mark.parametrize("message_id", ["", "0156F7E71C361B21BC024CCDBE00000000", "ä", "x" * 300])
def test_an_answer_is_what_protobuf_writes(plain_calls: PlainCalls, message_id: str) -> None:
    entry = service.AckMessageResultEntry(message_id=message_id, receipt_handle=HANDLE)
    expected = service.AckMessageResponse(entries=[entry])
    fill_ok(expected.status)
    fill_ok(expected.entries[0].status)
    assert plain_calls.ack_answer(message_id, HANDLE) == expected.SerializeToString()


@needs_native
@settings(max_examples=200)
@given(
    NAMES,
    NAMES,
    st.integers(0, 2**32 - 1),
    st.lists(st.tuples(NUMBERS, NUMBERS), max_size=5),
    NUMBERS,
    st.binary(min_size=16, max_size=64),
)
def test_handles_are_what_python_makes(
    group: str, topic: str, number: int, deliveries: list[tuple[int, int]], expires_at_ms: int, raw: bytes
) -> None:
    made = [
        encode_all(
            number, deliveries, expires_at_ms, group=group, topic=topic, key=HandleKey(raw, PhysicalOffset(0), native)
        )
        for native in (NATIVE, None)
    ]
    assert made[0] == made[1]
