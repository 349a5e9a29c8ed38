"""Parsing of requests, with a bound on the objects that one request can create."""

from __future__ import annotations

import re
from functools import cache
from typing import Any, Final, TypeVar

from google.protobuf.descriptor import Descriptor
from google.protobuf.message import DecodeError, Message

from quarry_mq.protocol.proto.apache.rocketmq.v2 import definition_pb2 as definition
from quarry_mq.server.wire.status import Refused
from quarry_mq.store.errors import Invalid
from quarry_mq.store.native import Native

UNCOUNTED_SIZE: Final = 64 * 1024
"""Bytes of a request up to which its fields are not counted. There are at most half as many fields as bytes; parsing
them costs a millisecond, which is less than counting them.
"""

FIELDS_LEAST: Final = 8 * 1024
BYTES_PER_FIELD: Final = 4
FIELDS_MOST: Final = 128 * 1024
"""Upper bound of the fields that a larger request may have: `FIELDS_LEAST`, and one for each `BYTES_PER_FIELD` bytes. A
message with a body of one byte has up to 20 fields beside its properties, and 6 bytes for each of them: the largest
batch of such messages is allowed. An empty entry has two bytes on the wire and some 80 in memory.
"""

Request = TypeVar("Request", bound=Message)


def parsed(request_type: type[Request], body: bytes) -> Request:
    """Parse bytes that did not come in through a front. Raises Invalid, which names the type."""
    try:
        return request_type.FromString(body)
    except DecodeError:
        raise Invalid(f"no {request_type.__name__}") from None


def request_of(
    request_type: type[Request], body: bytes, *, fields_most: int = FIELDS_MOST, native: Native | None = None
) -> Request:
    """Parse a client's request, after counting its fields without creating any object.

    Raises Refused (PAYLOAD_TOO_LARGE) if there are too many, DecodeError for bytes that are not such a request.
    """
    if len(body) > UNCOUNTED_SIZE:
        require_few_fields(request_type, body, fields_most, native)
    return request_type.FromString(body)


def require_few_fields(
    request_type: type[Message], body: bytes, fields_most: int = FIELDS_MOST, native: Native | None = None
) -> None:
    """Raise Refused (PAYLOAD_TOO_LARGE) if a request of these bytes has too many fields and entries."""
    most = min(fields_most, FIELDS_LEAST + len(body) // BYTES_PER_FIELD)
    count = fields_left if native is None else native.fields_left
    if count(body, shape_of(request_type.DESCRIPTOR), most) < 0:
        raise Refused(
            definition.PAYLOAD_TOO_LARGE, f"a request of {len(body)} bytes with more than {most} fields and entries"
        )


Shape = dict[int, Any]
"""Maps the number of a field that holds messages to their shape, and that of a packed field to None."""

_LAST_OF_NUMBER: Final = bytes(range(0x80))
_NUMBER: Final = re.compile(rb"[\x80-\xff]{0,9}[\x00-\x7f]")
_OTHER: Final[Shape] = {}
"""Shape of a field that holds no message: the field numbers within it mean nothing."""


@cache
def shape_of(descriptor: Descriptor) -> Shape:
    """Return which fields of this message type hold messages or packed numbers."""
    shape: Shape = {
        field.number: shape_of(field.message_type) for field in descriptor.fields if field.message_type is not None
    }
    shape.update((field.number, None) for field in descriptor.fields if field.is_packed)
    return shape


def fields_left(body: bytes, shape: Shape, most: int) -> int:
    """Return how many fields and entries are still allowed after those of the body; negative if it has too many.

    Malformed bytes end the count of the message they are in: the parser creates nothing from it.
    """
    return _left(body, 0, len(body), shape, most)


def _left(body: bytes, position: int, end: int, shape: Shape, left: int) -> int:
    """Count the fields of one message, as `fields_left`. A client can make the loop wait for what each field costs
    here.
    """
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
    """Return a tag or a size of which `first` is the first byte, and the position after it.

    Raises IndexError at the end of the bytes, and for a number of more than 5 bytes, which the parser refuses.
    """
    value = first & 0x7F
    for shift in (7, 14, 21, 28):
        byte = body[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
    raise IndexError
