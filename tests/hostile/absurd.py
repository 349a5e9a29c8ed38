"""Requests that parse and make no sense: every field of every type, with values at and beyond its limits."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message
from hypothesis import strategies as st

from quarry_mq.protocol.proto.apache.rocketmq.v2 import service_pb2 as service

GOOD_NAME: Final = "orders"
TEXTS: Final = (
    GOOD_NAME, "", " ", "a b", "a|b", "*", "\0", "a\x01b", "\u2028", "名", "😀" * 40, "../../etc/passwd", "%RETRY%g",
    "%DLQ%g", "rmq_sys_x", "TBW102", "CID_RMQ_SYS_x", "x" * 127, "x" * 128, "x" * 70_000, "x=1; y=2", "-1",
    "KEYS", "__CRC32#", "A==", "AQ" * 24 + "AA", "%s%n{}", "NaN", "9" * 30,
)  # fmt: skip
INTEGERS_32: Final = (0, 1, -1, 2, 32, 10_000, 2**31 - 1, -(2**31))
INTEGERS_64: Final = (*INTEGERS_32, 2**53, 253_402_300_800, 2**63 - 1, -(2**63))
FLOATS: Final = (0.0, -1.0, float("inf"), float("nan"), 1e38)
BODIES: Final = (b"", b"x", b"\0" * 1000, b"\xff" * 70_000)
MANY: Final = 10_000
DEPTH_MAX: Final = 6

_SCALARS: Final[dict[int, st.SearchStrategy[object]]] = {
    FieldDescriptor.CPPTYPE_INT32: st.sampled_from(INTEGERS_32),
    FieldDescriptor.CPPTYPE_INT64: st.sampled_from(INTEGERS_64),
    FieldDescriptor.CPPTYPE_BOOL: st.booleans(),
    FieldDescriptor.CPPTYPE_FLOAT: st.sampled_from(FLOATS),
}


def _scalar(field: FieldDescriptor) -> st.SearchStrategy[Any]:
    if field.type == FieldDescriptor.TYPE_BYTES:
        return st.sampled_from(BODIES)
    if field.type == FieldDescriptor.TYPE_STRING:
        # good names often, or nothing would get beyond the first check
        return st.sampled_from((GOOD_NAME,) * len(TEXTS) + TEXTS)
    if field.enum_type is not None:
        return st.sampled_from((*field.enum_type.values_by_number, 77, -1))
    return _SCALARS[field.cpp_type]


def _fill(message: Message, draw: Callable[[st.SearchStrategy[Any]], Any], depth: int) -> None:
    descriptor: Descriptor = message.DESCRIPTOR  # type: ignore[assignment]
    for field in descriptor.fields:
        if not draw(st.sampled_from((True, True, True, False))):
            continue
        value = getattr(message, field.name)
        if field.message_type is not None and field.message_type.GetOptions().map_entry:
            for _ in range(draw(st.sampled_from((0, 1, 3)))):
                value[draw(_scalar(field.message_type.fields_by_name["key"]))] = draw(st.sampled_from(TEXTS))
        elif field.is_repeated:
            _fill_repeated(value, field, draw, depth)
        elif field.message_type is None:
            setattr(message, field.name, draw(_scalar(field)))
        elif depth < DEPTH_MAX:
            value.SetInParent()
            _fill(value, draw, depth + 1)


def _fill_repeated(
    value: Any, field: FieldDescriptor, draw: Callable[[st.SearchStrategy[Any]], Any], depth: int
) -> None:
    count = draw(st.sampled_from((0, 1, 1, 1, 2, MANY if depth == 0 else 3)))
    if field.message_type is None:
        value.extend([draw(_scalar(field)) for _ in range(min(count, 3))])
    elif depth < DEPTH_MAX and count:
        one = value.add()
        _fill(one, draw, depth + 1)
        while one.ByteSize() * count > 8 << 20:
            count //= 2
        for _ in range(count - 1):
            value.append(one)


@st.composite
def absurd_request(draw: Callable[[st.SearchStrategy[Any]], Any], method: str) -> bytes:
    """A serialized request of the method (for Telemetry: a command)."""
    message = request_type(method)()
    _fill(message, draw, 0)
    return message.SerializeToString()


def request_type(method: str) -> type[Message]:
    found: type[Message] = getattr(service, "TelemetryCommand" if method == "Telemetry" else f"{method}Request")
    return found


def answer_type(method: str) -> type[Message]:
    found: type[Message] = getattr(service, "TelemetryCommand" if method == "Telemetry" else f"{method}Response")
    return found
