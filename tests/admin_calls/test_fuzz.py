"""Whatever bytes come as the request of a call of the admin port, the answer says what is wrong; the broker lives."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any, Final

import grpc
import pytest
from google.protobuf import message_factory
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from hypothesis import given, settings
from hypothesis import strategies as st

from quarry_mq.protocol.proto.apache.rocketmq.v2 import definition_pb2 as definition
from tests.admin_calls.bench import (
    CLIENT_ID,
    GROUP,
    KEY,
    LITE_PARENT,
    LITE_TOPIC,
    METHODS,
    TOPIC,
    USER,
    Bench,
    running_bench,
)
from tests.admin_calls.rows import request_of
from tests.admin_calls.table import TABLE
from tests.admin_calls.test_calls import said

OURS_TO_EXPLAIN: Final = {
    grpc.StatusCode.UNKNOWN,
    grpc.StatusCode.INTERNAL,
    grpc.StatusCode.DATA_LOSS,
    grpc.StatusCode.DEADLINE_EXCEEDED,
    definition.INTERNAL_SERVER_ERROR,
}
"""Status codes with which no call may end, whatever it asks for."""

NESTED_MAX: Final = 3
NUMBERS: Final = st.sampled_from([-(2**63), -(2**31), -1, 0, 1, 2, 7, 1_000, 2**31 - 1, 2**63 - 1])
TEXTS: Final = st.sampled_from(
    [TOPIC, GROUP, LITE_PARENT, LITE_TOPIC, USER, KEY, CLIENT_ID, "", "*", "topic:*", "a\x00", "%DLQ%" + GROUP, "1-1"]
) | st.text(max_size=12)


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    with asyncio.Runner() as runner, running_bench(runner, tmp_path_factory.mktemp("fuzz")) as bench:
        yield bench
        broker = bench.call("quarry.admin.v1.AdminService/GetBroker", b"")
        assert broker.answers[0].name == "quarry-here"


@settings(max_examples=300)
@given(path=st.sampled_from(sorted(METHODS)), body=st.binary(max_size=64))
def test_random_bytes(bench: Bench, path: str, body: bytes) -> None:
    assert said(bench.call(path, body))[0] not in OURS_TO_EXPLAIN


@settings(max_examples=400)
@given(path=st.sampled_from(sorted(METHODS)), data=st.data())
def test_random_requests(bench: Bench, path: str, data: st.DataObject) -> None:
    is_near = data.draw(st.booleans())
    request: Any = request_of(path, TABLE[path], bench=bench) if is_near else _empty(path)
    fill(request, data, 0)
    if path.endswith("/TailMessages"):
        request.ends_after_ms = 1 + request.ends_after_ms % 20  # nobody ends it otherwise
    ending = bench.call(path, request)
    assert said(ending)[0] not in OURS_TO_EXPLAIN, (request, ending)


def _empty(path: str) -> Any:
    return message_factory.GetMessageClass(METHODS[path].input_type)()


def fill(message: Any, data: st.DataObject, depth: int) -> None:
    """Give some of its fields a value, of messages in it as well."""
    descriptor: Descriptor = message.DESCRIPTOR
    for field in data.draw(st.lists(st.sampled_from(list(descriptor.fields)), max_size=6)) if descriptor.fields else []:
        if field.message_type is None:
            value = data.draw(_scalar(field))
            if field.is_repeated:
                getattr(message, field.name).append(value)
            else:
                setattr(message, field.name, value)
        elif field.message_type.GetOptions().map_entry:
            getattr(message, field.name)[data.draw(TEXTS)] = data.draw(TEXTS)
        elif depth < NESTED_MAX:
            inside = getattr(message, field.name)
            inside = inside.add() if field.is_repeated else inside
            inside.SetInParent()
            fill(inside, data, depth + 1)


def _scalar(field: FieldDescriptor) -> st.SearchStrategy[Any]:
    match field.cpp_type:
        case FieldDescriptor.CPPTYPE_STRING:
            return TEXTS.map(str.encode) if field.type == FieldDescriptor.TYPE_BYTES else TEXTS
        case FieldDescriptor.CPPTYPE_BOOL:
            return st.booleans()
        case FieldDescriptor.CPPTYPE_DOUBLE | FieldDescriptor.CPPTYPE_FLOAT:
            return st.floats()
        case FieldDescriptor.CPPTYPE_ENUM:
            return st.integers(0, 9)
        case FieldDescriptor.CPPTYPE_INT32:
            return NUMBERS.map(lambda number: min(max(number, -(2**31)), 2**31 - 1))
        case FieldDescriptor.CPPTYPE_UINT32:
            return NUMBERS.map(lambda number: number % 2**32)
        case FieldDescriptor.CPPTYPE_UINT64:
            return NUMBERS.map(lambda number: number % 2**64)
        case _:
            return NUMBERS
