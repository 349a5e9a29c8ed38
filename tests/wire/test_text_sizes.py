"""Every text of every request has a bound, and what is longer is refused by the field's name."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final, cast

import pytest
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message

from quarry_mq.protocol.limits import (
    BORN_HOST_SIZE_MAX,
    DEFAULT_LIMITS,
    ENTRIES_MAX,
    MESSAGE_ID_SIZE_MAX,
    NAME_SIZE_MAX,
    TRACE_CONTEXT_SIZE_MAX,
)
from quarry_mq.protocol.proto.apache.rocketmq.v2 import definition_pb2 as definition
from quarry_mq.protocol.proto.apache.rocketmq.v2 import service_pb2 as service
from quarry_mq.server.rpc.access import NEEDS
from quarry_mq.server.wire.parsing import SHORT_MAX, bound_of, check_texts, is_text, parse_bounded
from quarry_mq.server.wire.status import Refused
from quarry_mq.server.wire.validate import check_send
from tests.wire.builders import NOW_MS, message, send

Path = tuple[FieldDescriptor, ...]

BOUNDED_BY_SENDS: Final = {
    "Message.body",
    "Message.UserPropertiesEntry.key",
    "Message.UserPropertiesEntry.value",
    "SystemProperties.tag",
    "SystemProperties.keys",
    "SystemProperties.message_group",
    "SystemProperties.lite_topic",
}
"""By rules of their own, which `test_send_limits` has."""


def texts_of(descriptor: Descriptor, above: Path = ()) -> Iterator[Path]:
    for field in descriptor.fields:
        if is_text(field):
            yield (*above, field)
        elif field.message_type is not None and field.message_type not in [each.message_type for each in above]:
            yield from texts_of(field.message_type, (*above, field))


ALL: Final = [(kind, path) for kind in NEEDS for path in texts_of(cast(Descriptor, kind.DESCRIPTOR))]
BOUNDED: Final = [(kind, path) for kind, path in ALL if bound_of(path[-1]).size is not None]


def name_of(case: tuple[type[Message], Path]) -> str:
    return ".".join([case[0].__name__, *(field.name for field in case[1])])


def request_with(kind: type[Message], path: Path, text: str) -> Message:
    """A request of this kind that has nothing but the text."""
    request = kind()
    _fill(request, path, text)
    return request


def _fill(target: Any, path: Path, text: str) -> None:
    field, *rest = path
    value = getattr(target, field.name)
    if field.message_type is not None and field.message_type.GetOptions().map_entry:
        if rest[0].name == "key":
            value[text] = "value"
        else:
            value["key"] = text
    elif field.message_type is not None:
        _fill(value.add() if field.is_repeated else value, tuple(rest), text)
    elif field.is_repeated:
        value.append(text)
    else:
        setattr(target, field.name, text)


def test_every_text_has_a_bound() -> None:
    without = {path[-1].full_name.removeprefix("apache.rocketmq.v2.") for _, path in ALL} - {
        path[-1].full_name.removeprefix("apache.rocketmq.v2.") for _, path in BOUNDED
    }
    assert without == BOUNDED_BY_SENDS
    assert len(ALL) > 150, "the requests have that many"


@pytest.mark.parametrize("case", BOUNDED, ids=name_of)
def test_one_byte_more_is_refused(case: tuple[type[Message], Path]) -> None:
    kind, path = case
    size = bound_of(path[-1]).size
    assert size is not None
    check_texts(request_with(kind, path, "x" * size))
    field = path[-2] if path[-1].name in ("key", "value") else path[-1]
    with pytest.raises(Refused, match=f"{field.name} of more than {size} bytes"):
        check_texts(request_with(kind, path, "x" * (size + 1)))
    with pytest.raises(Refused):
        check_texts(request_with(kind, path, "é" * (size // 2 + 1)))


def test_names_are_refused_as_what_they_name() -> None:
    long = definition.Resource(name="x" * 600)
    for request, code in (
        (service.QueryRouteRequest(topic=long), definition.ILLEGAL_TOPIC),
        (service.HeartbeatRequest(group=long), definition.ILLEGAL_CONSUMER_GROUP),
    ):
        with pytest.raises(Refused) as refused:
            parse_bounded(type(request), request.SerializeToString())
        assert refused.value.code == code


def test_a_request_without_room_for_a_long_text_is_not_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nearly all are so small: it would cost them microseconds."""
    monkeypatch.setattr("quarry_mq.server.wire.parsing.check_texts", lambda _request: pytest.fail("looked at"))
    request = service.ReceiveMessageRequest(attempt_id="x" * (SHORT_MAX - 3))
    assert request.ByteSize() == SHORT_MAX
    parse_bounded(service.ReceiveMessageRequest, request.SerializeToString())


def test_no_bound_is_smaller_than_what_is_not_looked_at() -> None:
    """Properties of messages are looked at as soon as they are larger than the smallest of their bounds."""
    for _, path in BOUNDED:
        size = bound_of(path[-1]).size
        is_of_message = "system_properties" in [field.name for field in path]
        assert size is not None
        assert size >= (MESSAGE_ID_SIZE_MAX if is_of_message else SHORT_MAX)


def test_too_many_to_look_at_are_refused_by_number() -> None:
    request = service.SyncLiteSubscriptionRequest(lite_topic_set=["x"] * (ENTRIES_MAX + 1))
    with pytest.raises(Refused) as refused:
        check_texts(request)
    assert refused.value.code == definition.PAYLOAD_TOO_LARGE


@pytest.mark.parametrize(
    ("field", "size", "code"),
    [
        ("message_id", MESSAGE_ID_SIZE_MAX, definition.ILLEGAL_MESSAGE_ID),
        ("born_host", BORN_HOST_SIZE_MAX, definition.BAD_REQUEST),
        ("store_host", BORN_HOST_SIZE_MAX, definition.BAD_REQUEST),
        ("trace_context", TRACE_CONTEXT_SIZE_MAX, definition.BAD_REQUEST),
        ("receipt_handle", SHORT_MAX, definition.BAD_REQUEST),
    ],
)
def test_texts_of_messages_that_are_sent(field: str, size: int, code: definition.Code) -> None:
    check_send(send(message(**{field: "x" * size})), DEFAULT_LIMITS, NOW_MS)  # type: ignore[arg-type]
    for text in ("x" * (size + 1), "é" * (size // 2 + 1), "x" * 33_000):
        with pytest.raises(Refused, match=field) as refused:
            check_send(send(message(), message(**{field: text})), DEFAULT_LIMITS, NOW_MS)  # type: ignore[arg-type]
        assert refused.value.code == code


def test_names_of_light_queues_are_as_long_as_those_of_topics() -> None:
    for size in (NAME_SIZE_MAX, NAME_SIZE_MAX + 1):
        names = "%LMQ%a," + "%LMQ%".ljust(size, "x")
        request = send(message(user_properties={"INNER_MULTI_DISPATCH": names}))
        if size == NAME_SIZE_MAX:
            check_send(request, DEFAULT_LIMITS, NOW_MS)
        else:
            with pytest.raises(Refused, match="INNER_MULTI_DISPATCH"):
                check_send(request, DEFAULT_LIMITS, NOW_MS)


def test_the_offsets_of_light_queues_count_as_properties() -> None:
    """They are added when the message is stored: twenty bytes for each name, however short."""
    names = ",".join(f"%LMQ%{number}" for number in range(900))
    assert len(names) < DEFAULT_LIMITS.user_properties_size_max / 1.7
    with pytest.raises(Refused) as refused:
        check_send(send(message(user_properties={"INNER_MULTI_DISPATCH": names})), DEFAULT_LIMITS, NOW_MS)
    assert refused.value.code == definition.MESSAGE_PROPERTIES_TOO_LARGE


def test_the_namespace_of_a_topic_is_bounded_in_each_message() -> None:
    other = message()
    other.topic.resource_namespace = "x" * (SHORT_MAX + 1)
    with pytest.raises(Refused, match="resource_namespace"):
        check_send(send(message(), other), DEFAULT_LIMITS, NOW_MS)
