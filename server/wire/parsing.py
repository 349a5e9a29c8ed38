"""Requests out of bytes."""

from __future__ import annotations

from functools import cache
from typing import Any, Final, TypeVar

from google.protobuf.descriptor import Descriptor
from google.protobuf.message import DecodeError, Message

from server._generated.apache.rocketmq.v2 import definition_pb2 as definition
from server.wire.status import Refused
from store.errors import Invalid

UNCOUNTED_SIZE: Final = 64 * 1024
"""Bytes of a request whose fields need no counting: there are half as many at most, which cost a millisecond, and less
than to count them."""

FIELDS_LEAST: Final = 8 * 1024
BYTES_PER_FIELD: Final = 8
FIELDS_MOST: Final = 64 * 1024
"""Fields that a larger request may have: so many to begin with, and one for so many bytes, up to a bound. A message has
a dozen beside its properties, and 80 bytes of them. An empty entry has two bytes on the wire and some 80 in memory."""

Request = TypeVar("Request", bound=Message)


def parsed(request_type: type[Request], body: bytes) -> Request:
    """For what came another way than through a front. Raises Invalid that names the type."""
    try:
        return request_type.FromString(body)
    except DecodeError:
        raise Invalid(f"no {request_type.__name__}") from None


def request_of(request_type: type[Request], body: bytes, *, fields_most: int = FIELDS_MOST) -> Request:
    """What a client asks for. Its fields are counted before an object is made of any.

    Raises Refused (PAYLOAD_TOO_LARGE) when there are too many, DecodeError for bytes that are no such request.
    """
    if len(body) > UNCOUNTED_SIZE:
        require_few_fields(request_type, body, fields_most)
    return request_type.FromString(body)


def require_few_fields(request_type: type[Message], body: bytes, fields_most: int = FIELDS_MOST) -> None:
    """Raises Refused (PAYLOAD_TOO_LARGE)."""
    most = min(fields_most, FIELDS_LEAST + len(body) // BYTES_PER_FIELD)
    if _fields_left(body, 0, len(body), _messages_in(request_type.DESCRIPTOR), most) < 0:
        raise Refused(
            definition.PAYLOAD_TOO_LARGE, f"a request of {len(body)} bytes with more than {most} fields and entries"
        )


_PACKED: Final = object()
_LAST_OF_NUMBER: Final = bytes(range(0x80))
_Shape = dict[int, Any]
"""Number of a field that holds messages to the shape of those, of one with many numbers in it to `_PACKED`."""


@cache
def _messages_in(descriptor: Descriptor) -> _Shape:
    shape: _Shape = {
        field.number: _messages_in(field.message_type) for field in descriptor.fields if field.message_type is not None
    }
    shape.update((field.number, _PACKED) for field in descriptor.fields if field.is_packed)
    return shape


def _fields_left(body: bytes, position: int, end: int, shape: _Shape, left: int) -> int:
    """How many fields may still come behind these; less than none as soon as there are too many.

    What is malformed ends the count: nothing is made of it.
    """
    try:
        while position < end and left >= 0:
            left -= 1
            tag = body[position]
            position += 1
            if tag >= 0x80:
                tag, position = _varint(body, position - 1)
            kind = tag & 7
            if kind == 2:
                size = body[position]
                position += 1
                if size >= 0x80:
                    size, position = _varint(body, position - 1)
                inner = shape.get(tag >> 3)
                if inner is _PACKED:
                    packed = body[position : position + size]
                    left -= len(packed) - len(packed.translate(None, _LAST_OF_NUMBER))
                elif inner is not None:
                    left = _fields_left(body, position, min(end, position + size), inner, left)
                position += size
            elif kind == 0:
                _, position = _varint(body, position)
            elif kind in (1, 5):
                position += 8 if kind == 1 else 4
    except IndexError:
        pass
    return left


def _varint(body: bytes, position: int) -> tuple[int, int]:
    """An integer and the position behind it. Raises IndexError at the end, and for one that has none."""
    value = 0
    for shift in range(0, 70, 7):
        byte = body[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
    raise IndexError
