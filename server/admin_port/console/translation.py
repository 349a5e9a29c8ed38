"""Translate requests and answers of the admin port between protobuf and JSON, with records decoded for pages."""

from __future__ import annotations

import json
from functools import cache
from typing import Any, Final

from google.protobuf import json_format, message_factory
from google.protobuf.descriptor import Descriptor, FieldDescriptor, MethodDescriptor
from google.protobuf.message import Message

from quarry_mq.protocol.proto.apache.rocketmq.v2 import definition_pb2 as definition
from quarry_mq.server.admin_port.console.message_json import BODY_IN_LIST_MAX, BODY_MAX, Room, message_fields
from quarry_mq.server.console.contract import CallFailed

RECORD: Final = "record"
"""The field that holds a record's bytes, in messages that also have its `physical_offset`."""

MESSAGE: Final = "message"
"""The field that replaces the record."""

HTTP_PER_CODE: Final = 100
"""The factor between RocketMQ's codes and those of HTTP, which have two digits less."""

ERRORS: Final = range(400, 600)


def request_from(method: MethodDescriptor, text: bytes) -> Message:
    """Parse a request. Raises CallFailed."""
    request = message_factory.GetMessageClass(method.input_type)()
    try:
        json_format.Parse(text.strip() or b"{}", request)
    except (json_format.ParseError, UnicodeDecodeError, RecursionError) as error:
        raise CallFailed("INVALID_ARGUMENT", f"not a {method.input_type.full_name}: {error}") from None
    return request


def answer_text(answer: Message) -> bytes:
    """Return the answer as one line of JSON. Raises CallFailed if the answer's own status says that the call failed."""
    _require_ok(answer)
    fields = json_format.MessageToDict(answer, always_print_fields_with_no_presence=True)
    if _leads_to_record(answer.DESCRIPTOR):
        is_alone = not _repeats_records(answer.DESCRIPTOR)
        _put_messages(answer, fields, Room(BODY_MAX if is_alone else BODY_IN_LIST_MAX))
    return json.dumps(fields, ensure_ascii=False, separators=(",", ":")).encode()


def _require_ok(answer: Any) -> None:
    status = getattr(answer, "status", None)
    if isinstance(status, definition.Status) and status.code != definition.OK:
        known = definition.Code.values()
        name = definition.Code.Name(status.code) if status.code in known else str(status.code)
        http = status.code // HTTP_PER_CODE
        raise CallFailed(name, status.message, status=http if http in ERRORS else 500)


def _put_messages(answer: Any, fields: dict[str, Any], room: Room) -> None:
    """Replace each record in `fields`, which are those of `answer`."""
    for field in answer.DESCRIPTOR.fields:
        if _is_record(field):
            record = fields.pop(RECORD, None)
            if record:
                fields[MESSAGE] = message_fields(answer.record, answer.physical_offset, room)
        elif field.json_name in fields and field.message_type is not None and _leads_to_record(field.message_type):
            inner, its_fields = getattr(answer, field.name), fields[field.json_name]
            pairs = zip(inner, its_fields, strict=True) if field.is_repeated else ((inner, its_fields),)
            for each, fields_of_each in pairs:
                _put_messages(each, fields_of_each, room)


def _is_record(field: FieldDescriptor) -> bool:
    return field.name == RECORD and field.type == FieldDescriptor.TYPE_BYTES


@cache
def _leads_to_record(message: Descriptor) -> bool:
    """Return whether a message holds records, also indirectly. No message of the admin port contains itself."""
    return any(
        _is_record(field) or (field.message_type is not None and _leads_to_record(field.message_type))
        for field in message.fields
    )


@cache
def _repeats_records(message: Descriptor) -> bool:
    return any(
        field.is_repeated or _repeats_records(field.message_type)
        for field in message.fields
        if field.message_type is not None and _leads_to_record(field.message_type)
    )
