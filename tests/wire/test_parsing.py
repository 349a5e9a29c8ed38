"""Fields and entries are counted on the wire: nothing is made of a request that has too many."""

from __future__ import annotations

from bisect import bisect_left
from random import Random
from typing import Any

import pytest
from google.protobuf.message import DecodeError, Message
from google.protobuf.timestamp_pb2 import Timestamp

from quarry_mq.protocol.limits import ENTRIES_MAX
from quarry_mq.protocol.proto.apache.rocketmq.v2 import definition_pb2 as definition
from quarry_mq.protocol.proto.apache.rocketmq.v2 import service_pb2 as service
from quarry_mq.server.wire.parsing import BYTES_PER_FIELD, FIELDS_LEAST, FIELDS_MOST, UNCOUNTED_SIZE, request_of
from quarry_mq.server.wire.status import Refused
from tests.wire.builders import NOW_MS, message

MIB = 1 << 20


def number(message: type[Message], field: str) -> int:
    """What begins the field on the wire."""
    return message.DESCRIPTOR.fields_by_name[field].number << 3 | 2


def nested(tag: int, inner: bytes) -> bytes:
    size = len(inner)
    encoded = b""
    while size >= 0x80:
        encoded, size = encoded + bytes((size & 0x7F | 0x80,)), size >> 7
    return bytes((tag,)) + encoded + bytes((size,)) + inner


EMPTY_ENTRIES = {
    "messages": (service.SendMessageRequest, b"\x0a\x00" * 8 * MIB),
    "properties of a message": (service.SendMessageRequest, nested(0x0A, b"\x12\x00" * MIB)),
    "keys of a message": (service.SendMessageRequest, nested(0x0A, nested(0x1A, b"\x12\x00" * MIB))),
    "messages with some properties each": (
        service.SendMessageRequest,
        nested(0x0A, b"\x12\x00" * 20) * ENTRIES_MAX * 2,
    ),
    "acknowledgements": (service.AckMessageRequest, b"\x1a\x00" * MIB),
    "lite topics": (service.SyncLiteSubscriptionRequest, b"\x22\x00" * MIB),
    "topics of settings": (
        service.TelemetryCommand,
        nested(
            number(service.TelemetryCommand, "settings"),
            nested(
                number(definition.Settings, "publishing"),
                bytes((number(definition.Publishing, "topics"), 0)) * MIB,
            ),
        ),
    ),
    "numbers": (service.SendMessageRequest, b"\x38\x01" * MIB),
}


@pytest.mark.parametrize("name", EMPTY_ENTRIES)
def test_too_many_entries_are_refused_before_anything_is_made_of_them(
    name: str,
) -> None:
    request_type, body = EMPTY_ENTRIES[name]
    with pytest.raises(Refused, match="fields and entries") as refused:
        request_of(request_type, body)
    assert refused.value.code == definition.PAYLOAD_TOO_LARGE


ALL_SYSTEM_FIELDS: dict[str, Any] = {
    "tag": "r",
    "keys": ["k"],
    "born_timestamp": Timestamp(seconds=NOW_MS // 1000, nanos=1_000_000),
    "born_host": "h",
    "queue_id": 1,
    "body_digest": definition.Digest(type=definition.CRC32, checksum="1A2B3C4D"),
    "body_encoding": definition.GZIP,
    "message_type": definition.NORMAL,
}
"""The system properties that a client sets for a normal message."""

LARGE: dict[str, Message] = {
    "one message of 4 MiB": service.SendMessageRequest(messages=[message(body=bytes(4 * MIB))]),
    "a message with as many properties as may be": service.SendMessageRequest(
        messages=[message(user_properties={f"property-{number}": "v" * 600 for number in range(128)})]
    ),
    "4,096 of the smallest messages": service.SendMessageRequest(
        messages=[message(body=b"b", topic="t", **ALL_SYSTEM_FIELDS) for _ in range(ENTRIES_MAX)]
    ),
    "4,096 messages": service.SendMessageRequest(messages=[message(body=bytes(64)) for _ in range(ENTRIES_MAX)]),
    "4,096 acknowledgements": service.AckMessageRequest(
        entries=[
            service.AckMessageEntry(message_id="01" + "A" * 32, receipt_handle="h" * 50, lite_topic="l")
            for _ in range(ENTRIES_MAX)
        ]
    ),
    "2,300 lite topics": service.SyncLiteSubscriptionRequest(lite_topic_set=[f"lite-{n:060}" for n in range(2_300)]),
    "settings of 4,096 topics": service.TelemetryCommand(
        settings=definition.Settings(
            publishing=definition.Publishing(
                topics=[definition.Resource(name=f"topic-{n:012}") for n in range(ENTRIES_MAX)]
            )
        )
    ),
}


@pytest.mark.parametrize("name", LARGE)
def test_large_requests_within_all_limits_are_taken(name: str) -> None:
    request = LARGE[name]
    body = request.SerializeToString()
    assert len(body) > UNCOUNTED_SIZE
    assert request_of(type(request), body) == request


def test_how_many_there_may_be_goes_with_the_size() -> None:
    def refused(size: int) -> int:
        """Return how many empty messages are too many beside one with a body of `size` bytes."""
        body = nested(0x0A, nested(0x22, bytes(size)))

        def is_refused(count: int) -> bool:
            try:
                request_of(service.SendMessageRequest, b"\x0a\x00" * count + body)
            except Refused:
                return True
            return False

        return bisect_left(range(FIELDS_MOST + 4_096), True, key=is_refused)

    # an empty message has two bytes, which allow for a part of it
    allowed = (FIELDS_LEAST + 70_000 / BYTES_PER_FIELD) / (1 - 2 / BYTES_PER_FIELD)
    assert abs(refused(70_000) - allowed) <= 256
    assert abs(refused(2 * MIB) - FIELDS_MOST) <= 256


@pytest.mark.parametrize("seed", range(20))
def test_what_is_malformed_is_for_the_parser_to_refuse(seed: int) -> None:
    random = Random(seed)
    whole = bytearray(LARGE["4,096 acknowledgements"].SerializeToString()[: random.randrange(70_000, 160_000)])
    for _ in range(random.randrange(1, 50)):
        whole[random.randrange(len(whole))] = random.randrange(256)
    body = bytes(whole)
    try:
        expected: Message | None = service.AckMessageRequest.FromString(body)
    except DecodeError:
        expected = None
    try:
        found: Message | None = request_of(service.AckMessageRequest, body)
    except DecodeError:
        found = None
    assert found == expected


def test_a_number_without_an_end_is_not_read_to_it() -> None:
    with pytest.raises(DecodeError):
        request_of(service.AckMessageRequest, b"\xff" * 8 * MIB)
