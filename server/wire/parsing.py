"""Parsing of requests, with bounds on the objects that one request can create, and on the size of every text.

Names, tags, keys, properties and expressions have rules of their own, which are stricter and have better messages. The
bounds here are for all texts, so that none is kept, repeated or passed on at the size of a whole request.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from functools import cache
from typing import Any, Final, NamedTuple, TypeVar

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import DecodeError, Message

from quarry_mq.protocol.limits import BORN_HOST_SIZE_MAX, ENTRIES_MAX, MESSAGE_ID_SIZE_MAX, TRACE_CONTEXT_SIZE_MAX
from quarry_mq.protocol.proto.apache.rocketmq.v2 import definition_pb2 as definition
from quarry_mq.protocol.proto.apache.rocketmq.v2 import service_pb2 as service
from quarry_mq.server.wire.status import Refused
from quarry_mq.store.errors import Invalid
from quarry_mq.store.native import Native
from quarry_mq.store.record.layout import PROPERTIES_LENGTH_MAXIMUM

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


RequestT = TypeVar("RequestT", bound=Message)

SHORT_MAX: Final = 512
"""Bytes of texts that have no other bound. A request of at most this size has no text that is too long."""

_EXPRESSION_SIZE_MAX: Final = 16 * 1024
"""Bytes of a filter expression here. Its own check limits its characters."""
_STORED_ID_SIZE_MAX: Final = PROPERTIES_LENGTH_MAXIMUM
"""Bytes of the ids of stored messages: in stores written by others they may fill the properties of a record."""
_HANDLE_SIZE_MAX: Final = 64 * 1024
"""Bytes of a recall handle. It holds such an id, and takes four bytes for each three of it."""
_SAID_SIZE_MAX: Final = 1024 * 1024
"""Bytes of texts that a client sends for people to read, such as the stacks of its threads."""


class _Bound(NamedTuple):
    """The bound of a text. `size` is in bytes of UTF-8; None if another rule bounds the text together with others."""

    size: int | None
    code: definition.Code = definition.BAD_REQUEST


_SHORT: Final = _Bound(SHORT_MAX)
_BOUNDS: Final[Mapping[str, _Bound]] = {
    "Resource.name": _Bound(SHORT_MAX, definition.ILLEGAL_TOPIC),
    "Resource.resource_namespace": _Bound(SHORT_MAX, definition.ILLEGAL_TOPIC),
    "Address.host": _Bound(SHORT_MAX, definition.ILLEGAL_ACCESS_POINT),
    "Message.body": _Bound(None),
    "Message.UserPropertiesEntry.key": _Bound(None),
    "Message.UserPropertiesEntry.value": _Bound(None),
    "SystemProperties.tag": _Bound(None),
    "SystemProperties.keys": _Bound(None),
    "SystemProperties.message_group": _Bound(None),
    "SystemProperties.lite_topic": _Bound(None),
    "SystemProperties.message_id": _Bound(MESSAGE_ID_SIZE_MAX, definition.ILLEGAL_MESSAGE_ID),
    "SystemProperties.born_host": _Bound(BORN_HOST_SIZE_MAX),
    "SystemProperties.store_host": _Bound(BORN_HOST_SIZE_MAX),
    "SystemProperties.trace_context": _Bound(TRACE_CONTEXT_SIZE_MAX),
    "EndTransactionRequest.trace_context": _Bound(TRACE_CONTEXT_SIZE_MAX),
    "EndTransactionRequest.transaction_id": _Bound(SHORT_MAX, definition.INVALID_TRANSACTION_ID),
    "EndTransactionRequest.message_id": _Bound(_STORED_ID_SIZE_MAX),
    "AckMessageEntry.message_id": _Bound(_STORED_ID_SIZE_MAX),
    "ChangeInvisibleDurationRequest.message_id": _Bound(_STORED_ID_SIZE_MAX),
    "ForwardMessageToDeadLetterQueueRequest.message_id": _Bound(_STORED_ID_SIZE_MAX),
    "AckMessageEntry.receipt_handle": _Bound(SHORT_MAX, definition.INVALID_RECEIPT_HANDLE),
    "ChangeInvisibleDurationRequest.receipt_handle": _Bound(SHORT_MAX, definition.INVALID_RECEIPT_HANDLE),
    "ForwardMessageToDeadLetterQueueRequest.receipt_handle": _Bound(SHORT_MAX, definition.INVALID_RECEIPT_HANDLE),
    "RecallMessageRequest.recall_handle": _Bound(_HANDLE_SIZE_MAX),
    "FilterExpression.expression": _Bound(_EXPRESSION_SIZE_MAX, definition.ILLEGAL_FILTER_EXPRESSION),
    "Settings.ClientPropertiesEntry.value": _Bound(_EXPRESSION_SIZE_MAX),
    "Status.message": _Bound(_SAID_SIZE_MAX),
    "ThreadStackTrace.thread_stack_trace": _Bound(_SAID_SIZE_MAX),
}
"""Bounds by the field's name without the package; all other texts are bounded by `SHORT_MAX`."""

_CODES_OF_TOO_MANY: Final[Mapping[str, definition.Code]] = {"addresses": definition.ILLEGAL_ACCESS_POINT}

_PACKAGE: Final = f"{definition.DESCRIPTOR.package}."


class _Field(NamedTuple):
    """The checks that apply to a field of a request."""

    bound: _Bound | None
    is_repeated: bool
    is_map: bool


def parse_bounded(request_type: type[RequestT], body: bytes, native: Native | None = None) -> RequestT:
    """Parse a request and check the size of its texts. Raises DecodeError, Refused.

    Messages of sends are not checked here: `check_send` does that.
    """
    request = request_of(request_type, body, native=native)
    if len(body) > SHORT_MAX and request_type is not service.SendMessageRequest:
        check_texts(request)
    return request


def check_texts(request: Message, *, is_group: bool = False) -> None:
    """Raise Refused, which names the field, if a text is too long.

    Bodies and properties of messages that are sent have rules of their own (`server.wire.validate`). `is_group` says
    that the resource is a consumer group.
    """
    for field, value in request.ListFields():
        bound, is_repeated, is_map = _known(field)
        if is_repeated and len(value) > ENTRIES_MAX:
            code = _CODES_OF_TOO_MANY.get(field.name, definition.PAYLOAD_TOO_LARGE)
            raise Refused(code, f"{len(value)} {field.name}, at most {ENTRIES_MAX} are allowed")
        if is_map and field.message_type is not None:
            _check_map(field, field.message_type, value)
        elif bound is not None:
            if bound.size is not None:
                code = definition.ILLEGAL_CONSUMER_GROUP if is_group else bound.code
                for text in value if is_repeated else (value,):
                    _check_size(field, text, bound.size, code)
        elif field.message_type is not None:
            for each in value if is_repeated else (value,):
                check_texts(each, is_group=field.name == "group")


def is_text(field: FieldDescriptor) -> bool:
    return field.type in (FieldDescriptor.TYPE_STRING, FieldDescriptor.TYPE_BYTES)


def bound_of(field: FieldDescriptor) -> _Bound:
    """Return the bound of a text in this field."""
    return _BOUNDS.get(field.full_name.removeprefix(_PACKAGE), _SHORT)


@cache
def _known(field: FieldDescriptor) -> _Field:
    is_map = field.message_type is not None and field.message_type.GetOptions().map_entry
    return _Field(bound_of(field) if is_text(field) else None, field.is_repeated, is_map)


def _check_map(field: FieldDescriptor, entry: Descriptor, entries: Mapping[Any, Any]) -> None:
    parts = entry.fields_by_name
    texts: Iterable[tuple[FieldDescriptor, Iterable[Any]]] = (
        (parts["key"], entries.keys()),
        (parts["value"], entries.values()),
    )
    for part, values in texts:
        bound = bound_of(part)
        if is_text(part) and bound.size is not None:
            for text in values:
                _check_size(field, text, bound.size, bound.code)


def _check_size(field: FieldDescriptor, text: str | bytes, size_max: int, code: definition.Code) -> None:
    size = len(text)
    if isinstance(text, str) and size <= size_max < 4 * size and not text.isascii():
        size = len(text.encode())
    if size <= size_max:
        return
    raise Refused(code, f"{field.name} of more than {size_max} bytes")
