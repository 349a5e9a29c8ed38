"""Requests out of bytes."""

from __future__ import annotations

import re
from functools import cache
from typing import Any, Final, TypeVar

from google.protobuf.descriptor import Descriptor
from google.protobuf.message import DecodeError, Message

from quarry_mq.server._generated.apache.rocketmq.v2 import definition_pb2 as definition
from quarry_mq.server.wire.status import Refused
from quarry_mq.store.errors import Invalid
from quarry_mq.store.native import Native

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


def request_of(
    request_type: type[Request], body: bytes, *, fields_most: int = FIELDS_MOST, native: Native | None = None
) -> Request:
    """What a client asks for. Its fields are counted before an object is made of any.

    Raises Refused (PAYLOAD_TOO_LARGE) when there are too many, DecodeError for bytes that are no such request.
    """
    if len(body) > UNCOUNTED_SIZE:
        require_few_fields(request_type, body, fields_most, native)
    return request_type.FromString(body)


def require_few_fields(
    request_type: type[Message], body: bytes, fields_most: int = FIELDS_MOST, native: Native | None = None
) -> None:
    """Raises Refused (PAYLOAD_TOO_LARGE)."""
    most = min(fields_most, FIELDS_LEAST + len(body) // BYTES_PER_FIELD)
    count = fields_left if native is None else native.fields_left
    if count(body, shape_of(request_type.DESCRIPTOR), most) < 0:
        raise Refused(
            definition.PAYLOAD_TOO_LARGE, f"a request of {len(body)} bytes with more than {most} fields and entries"
        )


Shape = dict[int, Any]
"""Number of a field that holds messages to the shape of those, of one with many numbers in it to None."""

_LAST_OF_NUMBER: Final = bytes(range(0x80))
_NUMBER: Final = re.compile(rb"[\x80-\xff]{0,9}[\x00-\x7f]")
_OTHER: Final[Shape] = {}
"""Stands for what is no message: the numbers of its fields say nothing."""


@cache
def shape_of(descriptor: Descriptor) -> Shape:
    """Where messages of this type have others in them."""
    shape: Shape = {
        field.number: shape_of(field.message_type) for field in descriptor.fields if field.message_type is not None
    }
    shape.update((field.number, None) for field in descriptor.fields if field.is_packed)
    return shape


def fields_left(body: bytes, shape: Shape, most: int) -> int:
    """How many fields and entries may still come behind those of the body; less than none when there are too many.

    What is malformed ends the count of the message it is in: nothing is made of it.
    """
    return _left(body, 0, len(body), shape, most)


def _left(body: bytes, position: int, end: int, shape: Shape, left: int) -> int:
    """The same for one message. What it costs for each field is what a client can make the loop wait for."""
    try:
        while position < end and left >= 0:
            left -= 1
            tag = body[position]
            position += 1
            if tag >= 0x80:
                tag, position = _number(body, position, tag)
            kind = tag & 7
            if kind == 2:
                size = body[position]
                position += 1
                if size >= 0x80:
                    size, position = _number(body, position, size)
                inner = shape.get(tag >> 3, _OTHER)
                if inner is None:
                    packed = body[position : position + size]
                    left -= len(packed) - len(packed.translate(None, _LAST_OF_NUMBER))
                elif size and inner is not _OTHER:
                    left = _left(body, position, min(end, position + size), inner, left)
                position += size
            elif kind == 0:
                if body[position] < 0x80:
                    position += 1
                else:
                    number = _NUMBER.match(body, position)
                    if number is None:
                        break
                    position = number.end()
            elif kind in (1, 5):
                position += 8 if kind == 1 else 4
    except IndexError:
        pass
    return left


def _number(body: bytes, position: int, first: int) -> tuple[int, int]:
    """A tag or a size whose first byte is not all of it, and the position behind it.

    Raises IndexError at the end, and for one of more than 5 bytes, which the parser refuses.
    """
    value = first & 0x7F
    for shift in (7, 14, 21, 28):
        byte = body[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
    raise IndexError
