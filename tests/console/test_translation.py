"""Requests of every call come through JSON unchanged, and answers are JSON whatever they hold."""

from __future__ import annotations

import json
from math import nan
from typing import Any, Final

import pytest
from google.protobuf import json_format, message_factory
from google.protobuf.descriptor import Descriptor, FieldDescriptor, MethodDescriptor
from google.protobuf.message import Message
from hypothesis import given, settings
from hypothesis import strategies as st

from quarry_mq.protocol.admin_methods import methods, methods_by_short_name
from quarry_mq.protocol.proto.apache.rocketmq.v2 import admin_pb2 as official
from quarry_mq.protocol.proto.apache.rocketmq.v2 import definition_pb2 as definition
from quarry_mq.protocol.proto.quarry.admin.v1 import admin_pb2, browsing_pb2, overview_pb2, query_pb2
from quarry_mq.server.admin_port.console import answer_text, request_from
from quarry_mq.server.console.calls import CallFailed
from tests.console.test_message_json import AT, record

METHODS: Final = methods()
_TYPES: Final[dict[int, st.SearchStrategy[Any]]] = {
    FieldDescriptor.TYPE_BOOL: st.booleans(),
    FieldDescriptor.TYPE_BYTES: st.binary(max_size=20),
    # JSON has one NaN, and a number has many: the other bits of one that is no number are lost
    FieldDescriptor.TYPE_DOUBLE: st.floats(allow_nan=False) | st.just(nan),
    FieldDescriptor.TYPE_FLOAT: st.floats(width=32, allow_nan=False) | st.just(nan),
    FieldDescriptor.TYPE_INT32: st.integers(-(2**31), 2**31 - 1),
    FieldDescriptor.TYPE_INT64: st.integers(-(2**63), 2**63 - 1),
    FieldDescriptor.TYPE_STRING: st.text(max_size=20),
    FieldDescriptor.TYPE_UINT32: st.integers(0, 2**32 - 1),
    FieldDescriptor.TYPE_UINT64: st.integers(0, 2**64 - 1),
}
EXAMPLES: Final = 5
"""Of each call: there are many, and they have fields of the same kinds."""

TIMES: Final = {"google.protobuf.Timestamp": st.integers(0, 2**31), "google.protobuf.Duration": st.integers(0, 2**31)}


@st.composite
def messages(draw: st.DrawFn, descriptor: Descriptor, depth: int = 0) -> Message:
    made: Any = message_factory.GetMessageClass(descriptor)()
    if descriptor.full_name in TIMES:
        made.seconds = draw(TIMES[descriptor.full_name])
        return made  # type: ignore[no-any-return]
    for field in descriptor.fields:
        if draw(st.booleans()) and depth < 5:
            _fill(draw, made, field, depth)
    return made  # type: ignore[no-any-return]


def _fill(draw: st.DrawFn, made: Any, field: FieldDescriptor, depth: int) -> None:
    if field.message_type is not None and field.message_type.GetOptions().map_entry:
        key, value = (field.message_type.fields_by_name[each] for each in ("key", "value"))
        if value.message_type is None:
            getattr(made, field.name).update(draw(st.dictionaries(_of(key), _of(value), max_size=2)))
        else:
            getattr(made, field.name)[draw(_of(key))].CopyFrom(draw(messages(value.message_type, depth + 1)))
    elif field.message_type is not None:
        values = [draw(messages(field.message_type, depth + 1)) for _ in range(draw(st.integers(1, 2)))]
        if field.is_repeated:
            getattr(made, field.name).extend(values)
        else:
            getattr(made, field.name).CopyFrom(values[0])
    elif field.is_repeated:
        getattr(made, field.name).extend(draw(st.lists(_of(field), max_size=2)))
    else:
        setattr(made, field.name, draw(_of(field)))


def _of(field: FieldDescriptor) -> st.SearchStrategy[Any]:
    if field.enum_type is not None:
        return st.sampled_from([each.number for each in field.enum_type.values])
    return _TYPES[field.type]


@pytest.mark.parametrize("path", METHODS)
def test_every_request_comes_through(path: str) -> None:
    method = METHODS[path]

    @settings(max_examples=EXAMPLES)
    @given(messages(method.input_type))
    def comes_through(request: Message) -> None:
        text = json.dumps(json_format.MessageToDict(request)).encode()
        assert request_from(method, text).SerializeToString(deterministic=True) == request.SerializeToString(
            deterministic=True
        )

    comes_through()


@pytest.mark.parametrize("path", METHODS)
def test_every_answer_is_json_in_one_line(path: str) -> None:
    """Also records that are none, and numbers that JSON does not have."""

    @settings(max_examples=EXAMPLES)
    @given(messages(METHODS[path].output_type))
    def is_json(answer: Any) -> None:
        if isinstance(getattr(answer, "status", None), definition.Status):
            answer.status.code = definition.OK
        text = answer_text(answer)
        assert b"\n" not in text
        json.loads(text, parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))

    is_json()


def test_short_names_are_names() -> None:
    assert len(methods_by_short_name()) == len(METHODS)
    assert methods_by_short_name()["AdminService/GetTopic"].full_name == "quarry.admin.v1.AdminService.GetTopic"


def method(name: str) -> MethodDescriptor:
    return methods_by_short_name()[name]


@given(st.binary(max_size=200))
@settings(max_examples=200)
def test_any_bytes_are_a_request_or_refused(text: bytes) -> None:
    try:
        request_from(method("BrowsingService/BrowseMessages"), text)
    except CallFailed as failure:
        refused = failure
    else:
        return
    assert refused.code == "INVALID_ARGUMENT"
    assert "quarry.admin.v1.BrowseMessagesRequest" in refused.message


def test_what_is_not_known_is_absent_and_what_is_zero_is_there() -> None:
    fields = json.loads(answer_text(overview_pb2.Overview(sent=0, sent_today=5, sent_per_second=float("nan"))))
    assert fields["sent"] == "0"
    assert fields["sentToday"] == "5"
    assert fields["sentPerSecond"] == "NaN"
    assert fields["concerns"] == []
    assert not fields.keys() & {"receivedToday", "lagMs", "broker"}


def test_records_are_put_in_wherever_they_are() -> None:
    found = query_pb2.FoundMessage(physical_offset=AT, record=record(b"hello"))
    browsed = browsing_pb2.BrowseMessagesResponse(
        messages=[browsing_pb2.BrowsedMessage(topic="orders", queue=3, offset=7, message=found)], next=b"\x01"
    )
    fields = json.loads(answer_text(browsed))
    (row,) = fields["messages"]
    assert row["message"]["physicalOffset"] == str(AT)
    assert "record" not in row["message"]
    assert row["message"]["message"]["body"]["text"] == "hello"
    assert fields["next"] == "AQ=="
    traced = query_pb2.GetMessageResponse(
        message=query_pb2.MessageTrace(physical_offset=AT, record=record(b"x" * 70_000))
    )
    shown = json.loads(answer_text(traced))["message"]["message"]["body"]
    assert not shown["isCut"], "it was asked for alone"
    listed = query_pb2.QueryMessagesResponse(
        messages=[query_pb2.FoundMessage(physical_offset=AT, record=record(b"x" * 70_000))]
    )
    assert json.loads(answer_text(listed))["messages"][0]["message"]["body"]["isCut"]
    assert "message" not in json.loads(answer_text(query_pb2.FoundMessage(physical_offset=AT)))


def test_every_record_has_its_offset_and_no_field_stands_in_the_way() -> None:
    seen: set[str] = set()

    def look(message: Descriptor) -> None:
        if message.full_name in seen:
            return
        seen.add(message.full_name)
        if "record" in message.fields_by_name:
            assert "physical_offset" in message.fields_by_name, message.full_name
            assert "message" not in message.fields_by_name, message.full_name
        for field in message.fields:
            if field.message_type is not None:
                look(field.message_type)

    for each in METHODS.values():
        look(each.output_type)
    assert {"quarry.admin.v1.FoundMessage", "quarry.admin.v1.MessageTrace"} <= seen


@pytest.mark.parametrize(
    ("code", "status"),
    [
        (definition.TOPIC_NOT_FOUND, 404),
        (definition.ILLEGAL_TOPIC, 400),
        (definition.TOO_MANY_REQUESTS, 429),
        (definition.INTERNAL_SERVER_ERROR, 500),
        (definition.CODE_UNSPECIFIED, 500),
    ],
)
def test_a_status_that_is_not_ok_is_an_error(code: definition.Code, status: int) -> None:
    answer = official.DescribeTopicStatusResponse(status=definition.Status(code=code, message="why"))
    with pytest.raises(CallFailed, match="why") as failed:
        answer_text(answer)
    assert (failed.value.code, failed.value.status) == (definition.Code.Name(code), status)


def test_an_empty_request_may_be_no_text_at_all() -> None:
    for text in (b"", b" \n", b"{}"):
        assert request_from(method("AdminService/GetBroker"), text) == admin_pb2.GetBrokerRequest()
