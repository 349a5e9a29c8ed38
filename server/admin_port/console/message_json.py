"""Convert a record of the log to the JSON object that pages show."""

from __future__ import annotations

import base64
from typing import Final, NamedTuple

from quarry_mq.protocol.messages.bodies import body_text, compression_name, inflated
from quarry_mq.protocol.messages.property_names import DELIVER_AT_MS, KEYS, LITE_TOPIC, MESSAGE_GROUP, TAGS
from quarry_mq.protocol.messages.system_flag import TransactionState, compression, transaction_state
from quarry_mq.store.index.keys import KEY_END
from quarry_mq.store.message import host_text
from quarry_mq.store.offsets import PhysicalOffset
from quarry_mq.store.record import StoredMessage, client_message_id, decode_record, offset_message_id

BODY_IN_LIST_MAX: Final = 64 * 1024
BODY_MAX: Final = 4 * 1024 * 1024
"""Bytes of a body that are shown, uncompressed: of one among many, and of one that was asked for alone."""

BODIES_MAX: Final = 4 * 1024 * 1024
BODY_BEYOND_MAX: Final = 256
"""Bytes of all bodies of one answer; once they are used up, only the beginning of each further body is shown."""

UTF8_REST_MAX: Final = 3
"""Bytes at the end of a cut text that may be the beginning of a character."""


class Room:
    """The bytes of bodies that one answer may still show."""

    def __init__(self, body_max: int) -> None:
        self._body_max = body_max
        self._left = BODIES_MAX

    @property
    def next_max(self) -> int:
        """Return how many bytes of the next body may be shown."""
        return max(min(self._body_max, self._left), BODY_BEYOND_MAX)

    def take(self, size: int) -> None:
        self._left -= size


def message_fields(record: bytes, physical_offset: int, room: Room) -> dict[str, object]:
    """Return the fields of the message in a record, without absent ones; or `problem` if the record is not whole."""
    at = PhysicalOffset(physical_offset)
    stored = decode_record(memoryview(record), 0, at, check_crc=True)
    if not isinstance(stored, StoredMessage):
        return {"physicalOffset": physical_offset, "problem": "the answer contains no complete record"}
    properties = stored.properties
    offset_id = offset_message_id(stored.store_host, at)
    state = transaction_state(stored.system_flag)
    fields: dict[str, object | None] = {
        "messageId": client_message_id(properties) or offset_id,
        "offsetId": offset_id,
        "topic": stored.topic,
        "queue": stored.queue_number,
        "offset": stored.queue_offset,
        "physicalOffset": physical_offset,
        "storedAtMs": stored.store_timestamp_ms,
        "bornAtMs": stored.born_timestamp_ms,
        "bornHost": host_text(stored.born_host),
        "storeHost": host_text(stored.store_host),
        "tag": properties.get(TAGS),
        "keys": [key for key in properties.get(KEYS, "").split(KEY_END) if key],
        "messageGroup": properties.get(MESSAGE_GROUP),
        "liteTopic": properties.get(LITE_TOPIC),
        "deliverAtMs": _number(properties.get(DELIVER_AT_MS)),
        "reconsumeTimes": stored.reconsume_times,
        "transactionState": None if state is TransactionState.NONE else state.name.lower(),
        "properties": dict(properties),
        "bodySize": len(stored.body),
    }
    return {name: value for name, value in fields.items() if value is not None} | _body_fields(stored, room)


def _number(text: str | None) -> int | None:
    """Return a number that a client wrote as text; None if it is not a number."""
    return int(text) if text is not None and text.isascii() and text.isdecimal() and len(text) <= 15 else None


class _Shown(NamedTuple):
    """The part of a body to show. `plain_size` is None if the body is compressed and was not read to its end."""

    data: bytes
    is_cut: bool
    plain_size: int | None
    is_plain: bool


def _body_fields(stored: StoredMessage, room: Room) -> dict[str, object]:
    body = bytes(stored.body)
    data, is_cut, plain_size, is_plain = _shown(body, stored.system_flag, room.next_max)
    room.take(len(data))
    return {
        "compression": compression_name(stored.system_flag, body),
        "body": {
            "text": _text(data, is_cut=is_cut) if is_plain else None,
            "base64": base64.b64encode(data).decode(),
            "isCut": is_cut,
            "plainSize": plain_size,
        },
    }


def _shown(body: bytes, system_flag: int, size_max: int) -> _Shown:
    try:
        method = compression(system_flag)
    except ValueError:
        return _Shown(body[:size_max], len(body) > size_max, None, is_plain=False)
    if method is None:
        return _Shown(body[:size_max], len(body) > size_max, len(body), is_plain=True)
    found = inflated(body, size_max, method)
    if found is None:
        return _Shown(body[:size_max], len(body) > size_max, None, is_plain=False)
    return _Shown(found.plain, not found.is_whole, len(found.plain) if found.is_whole else None, is_plain=True)


def _text(shown: bytes, *, is_cut: bool) -> str | None:
    """Decode a text, without a character that was cut in the middle; None if it is no text."""
    text = body_text(shown)
    if text is None and is_cut:
        for rest in range(1, UTF8_REST_MAX + 1):
            text = body_text(shown[:-rest])
            if text is not None:
                break
    return text
