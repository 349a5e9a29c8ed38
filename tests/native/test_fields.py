"""Fields of requests are counted natively as Python counts them, whatever the bytes."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import pytest
from google.protobuf.message import DecodeError, Message
from hypothesis import given, settings
from hypothesis import strategies as st

from quarry_mq.protocol.proto.apache.rocketmq.v2 import definition_pb2 as definition
from quarry_mq.protocol.proto.apache.rocketmq.v2 import service_pb2 as service
from quarry_mq.server.wire.parsing import fields_left, request_of, shape_of
from quarry_mq.server.wire.status import Refused
from quarry_mq.store.native import NATIVE, Native
from tests.native.mutations import Field, Mutator, parsed
from tests.wire.builders import message
from tests.wire.test_parsing import EMPTY_ENTRIES, LARGE

needs_native = pytest.mark.skipif(NATIVE is None, reason="no native part")

ENOUGH: Final = 1 << 40
REQUESTS: Final[tuple[Message, ...]] = (
    service.SendMessageRequest(messages=[message(user_properties={"a": "1", "b": ""}), message(body=b"x" * 300)]),
    service.AckMessageRequest(
        group=definition.Resource(name="billing"),
        entries=[service.AckMessageEntry(message_id="id", receipt_handle="h" * 50)] * 3,
    ),
    service.TelemetryCommand(
        settings=definition.Settings(publishing=definition.Publishing(topics=[definition.Resource(name="orders")]))
    ),
    service.QueryRouteResponse(  # has numbers that are packed
        message_queues=[
            definition.MessageQueue(
                topic=definition.Resource(name="orders"), accept_message_types=[definition.NORMAL, definition.FIFO]
            )
        ]
    ),
)


def both(native: Native, request_type: type[Message], body: bytes, most: int = ENOUGH) -> int:
    """Return what is left; both implementations must agree."""
    shape = shape_of(request_type.DESCRIPTOR)
    left = fields_left(body, shape, most)
    assert native.fields_left(body, shape, most) == left
    return left


def written(fields: Iterable[Field]) -> int:
    """Return the number of fields, including those of nested messages, without packed numbers."""
    return sum(1 + (written(each.value) if isinstance(each.value, list) else 0) for each in fields)


def entries(request: Message) -> int:
    """Return how many objects and list elements the parser made of a request."""
    count = 0
    for field, value in request.ListFields():
        if field.message_type is not None and field.message_type.GetOptions().map_entry:
            count += len(value)
        elif field.message_type is not None:
            count += sum(1 + entries(each) for each in (value if field.is_repeated else (value,)))
        else:
            count += len(value) if field.is_repeated else 1
    return count


@pytest.mark.parametrize("request_", REQUESTS[:3], ids=lambda each: type(each).__name__)
def test_each_field_counts_once(native: Native, request_: Message) -> None:
    fields = written(parsed(request_))
    assert both(native, type(request_), request_.SerializeToString()) == ENOUGH - fields
    assert both(native, type(request_), request_.SerializeToString(), fields) == 0
    assert both(native, type(request_), request_.SerializeToString(), fields - 1) == -1


def test_each_packed_number_counts(native: Native) -> None:
    def with_types(count: int) -> bytes:
        queue = definition.MessageQueue(accept_message_types=[definition.NORMAL] * count)
        return service.QueryRouteResponse(message_queues=[queue]).SerializeToString()

    kind = service.QueryRouteResponse
    assert both(native, kind, with_types(7)) - both(native, kind, with_types(100)) == 93


@needs_native
@settings(max_examples=600)
@given(st.sampled_from(REQUESTS), st.integers(0, 2**32), st.sampled_from([0, 1, 5, 20, 100, ENOUGH]))
def test_what_went_wrong_counts_the_same_and_never_less_than_is_made_of_it(good: Message, seed: int, most: int) -> None:
    assert NATIVE is not None
    body = Mutator(seed).mutated(parsed(good))
    both(NATIVE, type(good), body, most)
    try:
        made = type(good).FromString(body)
    except DecodeError:
        return
    assert entries(made) <= ENOUGH - both(NATIVE, type(good), body)


@needs_native
@settings(max_examples=400)
@given(
    st.sampled_from(REQUESTS),
    st.one_of(
        st.binary(max_size=80),
        st.lists(st.sampled_from(b"\x0a\x12\x1a\x22\x2a\x08\x0d\x09\x0b\x80\xff\x00\x01\x03\x05\x0f"), max_size=60).map(
            bytes
        ),
    ),
    st.sampled_from([0, 1, 5, 20, ENOUGH]),
)
def test_any_bytes_count_the_same(good: Message, body: bytes, most: int) -> None:
    assert NATIVE is not None
    both(NATIVE, type(good), body, most)


@pytest.mark.parametrize(
    "endless",
    [
        b"\x8a\x80\x80\x80\x80\x00\x00",  # a tag
        b"\x0a\x80\x80\x80\x80\x80\x00",  # a size
        b"\x78\x80\x80\x80\x80\x80\x80\x80\x80\x80\x80\x00",  # a number
    ],
)
def test_numbers_that_are_too_long_end_the_count_where_the_parser_ends(native: Native, endless: bytes) -> None:
    """Numbers of that length cost more than others to read."""
    body = b"\x0a\x00" + endless + b"\x0a\x00" * 5
    assert both(native, service.SendMessageRequest, body) == ENOUGH - 2
    with pytest.raises(DecodeError):
        service.SendMessageRequest.FromString(body)


@pytest.mark.parametrize("name", EMPTY_ENTRIES)
def test_too_many_are_refused(native: Native, name: str) -> None:
    with pytest.raises(Refused, match="fields and entries"):
        request_of(*EMPTY_ENTRIES[name], native=native)


@pytest.mark.parametrize("name", LARGE)
def test_large_requests_within_all_limits_are_taken(native: Native, name: str) -> None:
    assert request_of(type(LARGE[name]), LARGE[name].SerializeToString(), native=native) == LARGE[name]
