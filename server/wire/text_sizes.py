"""Bounds for the size of every text in every request.

Names, tags, keys, properties and expressions have rules of their own, which are stricter and have better messages.
These bounds are for all texts, so that none is kept, repeated or passed on at the size of a whole request.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cache
from typing import Any, Final, NamedTuple, TypeVar

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message

from quarry_mq.protocol.limits import BORN_HOST_SIZE_MAX, ENTRIES_MAX, MESSAGE_ID_SIZE_MAX, TRACE_CONTEXT_SIZE_MAX
from quarry_mq.protocol.proto.apache.rocketmq.v2 import definition_pb2 as definition
from quarry_mq.protocol.proto.apache.rocketmq.v2 import service_pb2 as service
from quarry_mq.server.wire.parsing import request_of
from quarry_mq.server.wire.status import Refused
from quarry_mq.store.native import Native
from quarry_mq.store.record.layout import PROPERTIES_LENGTH_MAXIMUM

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
