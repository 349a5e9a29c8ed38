"""Plain sends, receives and acknowledgements, read and answered in Python: what the native part does where it is
installed.

A plain request is what nearly all clients send nearly always. A reader returns what the store takes in, or None for any
other request, which then takes the slow path. So a reader checks that a request is plain, and never says what is wrong
with it. A plain message is what nearly all receives bring: the writer returns None for any other message.
"""

from __future__ import annotations

from collections.abc import Sequence, Set
from functools import lru_cache
from hashlib import md5
from typing import TYPE_CHECKING, Final, Protocol
from zlib import crc32

from google.protobuf.message import DecodeError

from quarry_mq.protocol.limits import BORN_HOST_SIZE_MAX, ENTRIES_MAX, MESSAGE_ID_SIZE_MAX, NAME_SIZE_MAX, WireLimits
from quarry_mq.protocol.messages.property_names import (
    BORN_HOST,
    BORN_TIMESTAMP,
    KEYS,
    LIGHT_QUEUES,
    PRODUCER_GROUP,
    RESERVED_PREFIX,
    RESERVED_PROPERTIES,
    TAGS,
    UNIQUE_KEY,
)
from quarry_mq.protocol.messages.system_flag import COMPRESSED
from quarry_mq.protocol.proto.apache.rocketmq.v2 import definition_pb2 as definition
from quarry_mq.protocol.proto.apache.rocketmq.v2 import service_pb2 as service
from quarry_mq.protocol.times import TIME_MS_MAX
from quarry_mq.server.delivery.handles import LITE_TOPIC_BEGIN, HandleKey, ReceiptHandle
from quarry_mq.server.errors import InvalidReceiptHandle
from quarry_mq.server.wire.parsing import UNCOUNTED_SIZE
from quarry_mq.server.wire.validate import MARKS
from quarry_mq.store.message import Host, PhysicalOffset, host_text
from quarry_mq.store.native import Native, PlainAck, PlainMessage, PlainSend, SendReader
from quarry_mq.store.record.properties import java_hash

if TYPE_CHECKING:
    from quarry_mq.store.native import HandedOut

UNUSUAL_NAMES: Final = RESERVED_PROPERTIES | {LIGHT_QUEUES, *MARKS}
"""User properties of these names are not plain."""

_NANOS_PER_MS: Final = 1_000_000
_NANOS_PER_S: Final = 1_000_000_000
_TEXTS_SIZE: Final = 256
"""Bytes of system properties up to which none of their texts can be too long."""


class PlainCalls(Protocol):
    """Reads and answers plain calls: the native module, or `PythonCalls`. See `store.native.Native`."""

    def send_answer(self, message_ids: list[str], first_offset: int, /) -> bytes: ...

    def read_ack(self, request: bytes, text_size_max: int, key: bytes, /) -> PlainAck | None: ...

    def ack_answer(self, message_id: str, receipt_handle: str, /) -> bytes: ...


class PlainSendReader:
    """Reads requests to send, as `store.native.SendReader`."""

    def __init__(self, limits: WireLimits) -> None:
        self._limits = limits

    def read(self, request: bytes, peer: str, now_ms: int) -> PlainSend | None:
        """Return the messages of a plain request, as `store.native.SendReader.read` does.

        A large one takes the slow path, which counts its fields before protobuf makes objects of them.
        """
        if len(request) > UNCOUNTED_SIZE:
            return None
        try:
            messages = service.SendMessageRequest.FromString(request).messages
        except DecodeError:
            return None
        if not 0 < len(messages) <= ENTRIES_MAX:
            return None
        topic = messages[0].topic.name
        if not topic or not topic.isprintable() or len(topic.encode()) > NAME_SIZE_MAX:
            return None
        plain = []
        for message in messages:
            found = self._plain(message, topic, peer, now_ms)
            if found is None:
                return None
            plain.append(found)
        return topic, plain

    def _plain(self, message: definition.Message, topic: str, peer: str, now_ms: int) -> PlainMessage | None:
        body, system, resource = message.body, message.system_properties, message.topic
        message_id = system.message_id
        # printable: without control characters, and so without the separators of properties
        if (
            not 0 < len(body) <= self._limits.body_size_max
            or resource.name != topic
            or resource.resource_namespace
            or not message_id.isprintable()
            or not message_id.strip()
            or len(message_id.encode()) > MESSAGE_ID_SIZE_MAX
            or not _is_normal(system)
        ):
            return None
        labels = self._labels(message, system)
        born_ms = _born_ms(system, now_ms)
        born_host = system.born_host or peer
        if labels is None or born_ms is None or not born_host.isprintable():
            return None
        if born_host is not peer and len(born_host.encode()) > BORN_HOST_SIZE_MAX:
            return None
        properties = (
            f"{labels}{UNIQUE_KEY}\x01{message_id}\x02{PRODUCER_GROUP}\x01{topic}\x02"
            f"{BORN_TIMESTAMP}\x01{born_ms}\x02{BORN_HOST}\x01{born_host}\x02"
        )
        tag = system.tag
        system_flag = COMPRESSED if system.body_encoding == definition.GZIP else 0
        return message_id, body, properties.encode(), java_hash(tag) if tag else 0, born_ms, system_flag

    def _labels(self, message: definition.Message, system: definition.SystemProperties) -> str | None:
        """Return the stored form of user properties, tag and keys; None if one of them is not plain."""
        tag, keys = system.tag, system.keys[:]
        found = message.user_properties
        stored, texts = "", tag
        if found:
            if len(found) > self._limits.user_properties_max or not UNUSUAL_NAMES.isdisjoint(found):
                return None
            for name in found:
                value = found[name]
                if not name or name.startswith(RESERVED_PREFIX):
                    return None
                texts += name + value
                stored += f"{name}\x01{value}\x02"
        if tag:
            if "|" in tag or tag.isspace():
                return None
            stored += f"{TAGS}\x01{tag}\x02"
        if keys:
            if len(keys) > ENTRIES_MAX or not all(keys) or any(key.isspace() for key in keys):
                return None
            texts += "".join(keys)
            stored += f"{KEYS}\x01{' '.join(keys)}\x02"
        size = len(texts) if texts.isascii() else len(texts.encode())
        return stored if texts.isprintable() and size <= self._limits.user_properties_size_max else None


def make_send_reader(native: Native | None, limits: WireLimits) -> SendReader:
    """Return the native reader of plain sends if there is a native part, or else the one in Python."""
    if native is None:
        return PlainSendReader(limits)
    return native.SendReader(
        messages_max=ENTRIES_MAX,
        body_size_max=limits.body_size_max,
        properties_max=limits.user_properties_max,
        properties_size_max=limits.user_properties_size_max,
        keys_max=ENTRIES_MAX,
        topic_size_max=NAME_SIZE_MAX,
        message_id_size_max=MESSAGE_ID_SIZE_MAX,
        born_host_size_max=BORN_HOST_SIZE_MAX,
        unusual_names=UNUSUAL_NAMES,
        unusual_prefix=RESERVED_PREFIX,
    )


def _is_normal(system: definition.SystemProperties) -> bool:
    """Return whether a message is NORMAL and has no field that gives it properties of its own."""
    return not (
        system.message_type > definition.NORMAL
        or system.message_group
        or system.lite_topic
        or system.trace_context
        or system.delivery_attempt
        or system.HasField("delivery_timestamp")
        or system.HasField("priority")
        or (system.ByteSize() > _TEXTS_SIZE and _has_more_texts(system))
    )


def _has_more_texts(system: definition.SystemProperties) -> bool:
    """Return whether there are texts that are not stored; their sizes are checked elsewhere."""
    return bool(
        system.HasField("body_digest")
        or system.store_host
        or system.receipt_handle
        or system.HasField("dead_letter_queue")
    )


def _born_ms(system: definition.SystemProperties, now_ms: int) -> int | None:
    if not system.HasField("born_timestamp"):
        return now_ms
    born = system.born_timestamp
    seconds, nanos = born.seconds, born.nanos
    born_ms = seconds * 1000 + nanos // _NANOS_PER_MS
    return born_ms if seconds >= 0 and 0 <= nanos < _NANOS_PER_S and born_ms <= TIME_MS_MAX else None


@lru_cache(maxsize=16)
def _handle_key(raw: bytes) -> HandleKey:
    """Return the key object of a store's secret, with the owners of handles that it has met."""
    return HandleKey(raw, PhysicalOffset(0))


_OK: Final = definition.Status(code=definition.OK, message="OK").SerializeToString()
_OK_FIELD: Final = bytes([len(_OK)]) + _OK
"""The status OK as protobuf writes it in a field, behind the number of the field."""


class PythonCalls:
    """The class offers `PlainCalls` in Python.

    Answers are written field by field, in a third of the time that protobuf takes to make an object for each. An object
    that is kept and gets other values for each answer would be as fast, but its memory grows with each value.
    """

    def send_answer(self, message_ids: list[str], first_offset: int) -> bytes:
        """Return the serialized `SendMessageResponse` of messages that are stored from a queue offset on."""
        answer = b"\x0a" + _OK_FIELD
        for offset, message_id in enumerate(message_ids, first_offset):
            entry = b"\x0a" + _OK_FIELD + _text(b"\x12", message_id)
            if offset:
                entry += b"\x20" + _number(offset)
            answer += b"\x12" + _number(len(entry)) + entry
        return answer

    def read_ack(self, request: bytes, text_size_max: int, key: bytes) -> PlainAck | None:
        """Return the delivery that a plain acknowledgement names, as `store.native.Native.read_ack` does."""
        if len(request) > text_size_max:
            return None
        try:
            parsed = service.AckMessageRequest.FromString(request)
        except DecodeError:
            return None
        entries = parsed.entries
        if len(entries) != 1:
            return None
        entry = entries[0]
        group, topic, handle = parsed.group.name, parsed.topic.name, entry.receipt_handle
        if entry.lite_topic or LITE_TOPIC_BEGIN in handle:
            return None
        try:
            delivery = ReceiptHandle.decode(handle, group, topic, _handle_key(key))
        except InvalidReceiptHandle:
            return None
        return group, topic, entry.message_id, handle, *delivery

    def ack_answer(self, message_id: str, receipt_handle: str) -> bytes:
        """Return the serialized `AckMessageResponse` for one message that is acknowledged."""
        entry = _text(b"\x0a", message_id) + _text(b"\x12", receipt_handle) + b"\x1a" + _OK_FIELD
        return b"\x0a" + _OK_FIELD + b"\x12" + _number(len(entry)) + entry


def _text(key: bytes, text: str) -> bytes:
    """Return a field of text as protobuf writes it; an empty one is not written."""
    octets = text.encode()
    return key + _number(len(octets)) + octets if octets else b""


def _number(value: int) -> bytes:
    """Return a number as protobuf writes it: seven bits in each byte, the lowest first."""
    if value < len(_NUMBERS):
        return _NUMBERS[value]
    octets = bytearray()
    while value >= 0x80:
        octets.append(value & 0x7F | 0x80)
        value >>= 7
    octets.append(value)
    return bytes(octets)


_NUMBERS: tuple[bytes, ...] = tuple(bytes((value,)) for value in range(0x80))
_NUMBERS = tuple(_number(value) for value in range(4_096))
"""The numbers that most lengths are, as protobuf writes them. A message with a longer text is not plain."""
_HIDDEN, _TAG, _KEYS, _MESSAGE_ID, _UNUSUAL = range(5)
_IDENTITY_AND_NORMAL: Final = b"\x28\x01\x30\x01"
"""The fields for the encoding of the body and for the type of the message."""


@lru_cache(maxsize=4_096)
def _time(milliseconds: int) -> bytes:
    """Return a point or a span of time, with its length before."""
    seconds, rest = divmod(min(milliseconds, TIME_MS_MAX), 1_000)
    time = b"\x08" + _number(seconds) if seconds else b""
    if rest:
        time += b"\x10" + _number(rest * _NANOS_PER_MS)
    return _NUMBERS[len(time)] + time


@lru_cache(maxsize=4_096)
def _host(host: Host) -> bytes:
    """Return the text of a host, with its length before."""
    text = host_text(host).encode()
    return _NUMBERS[len(text)] + text


class PlainReceiveWriter:
    """Writes messages of receives, as `store.native.ReceiveWriter`.

    They are written field by field, in two thirds of the time that protobuf takes to make an object for each.
    """

    def __init__(self, hidden_names: Set[str], unusual_names: Set[str]) -> None:
        kinds = {**dict.fromkeys(hidden_names, _HIDDEN), TAGS: _TAG, KEYS: _KEYS, UNIQUE_KEY: _MESSAGE_ID}
        self._kind_of = {**kinds, **dict.fromkeys(unusual_names, _UNUSUAL)}.get

    def write(self, topic: str, messages: Sequence[HandedOut], digest: int) -> list[bytes | None]:
        """Return the serialized `ReceiveMessageResponse` of each message; None if it is not plain."""
        resource = _text(b"\x12", topic)
        topic_field = b"\x0a" + _number(len(resource)) + resource
        items: list[bytes | None] = []
        for message in messages:
            try:
                items.append(self._item(topic_field, message, digest))
            except (UnicodeError, IndexError):  # no text, or a long one
                items.append(None)
        return items

    def _item(self, topic_field: bytes, message: HandedOut, digest: int) -> bytes | None:
        record, handle, attempt, invisible_ms = message
        if record.system_flag & COMPRESSED or record.born_timestamp_ms < 0 or invisible_ms < 0 or attempt < 0:
            return None
        numbers, body, queue_number = _NUMBERS, record.body, record.queue_number
        found = self._texts(record.raw_properties)
        if found is None:
            return None
        user_properties, labels, message_id = found
        if digest == definition.CRC32:
            checksum, kind = b"%X" % crc32(body), b"\x08\x01\x12"
        else:
            checksum, kind = md5(body, usedforsecurity=False).hexdigest().upper().encode(), b"\x08\x02\x12"
        checksum_size, handle_text = len(checksum), handle.encode()
        system = b"".join(
            (
                labels,
                *(b"\x1a", numbers[len(message_id)], message_id),
                *(b"\x22", numbers[4 + checksum_size], kind, numbers[checksum_size], checksum),
                _IDENTITY_AND_NORMAL,
                *(b"\x3a", _time(record.born_timestamp_ms), b"\x42", _host(record.born_host)),
                *(b"\x4a", _time(record.store_timestamp_ms), b"\x52", _host(record.store_host)),
                *(b"\x62", numbers[len(handle_text)], handle_text),
                b"\x68" + numbers[queue_number] if queue_number else b"",
                *(b"\x70", _number(record.queue_offset), b"\x7a", _time(invisible_ms), b"\x80\x01", numbers[attempt]),
            )
        )
        before = b"".join((topic_field, user_properties, b"\x1a", numbers[len(system)], system))
        if body:
            before += b"\x22" + _number(len(body))
        return b"".join((b"\x12", _number(len(before) + len(body)), before, body))

    def _texts(self, properties: bytes) -> tuple[bytes, bytes, bytes] | None:
        """Return the fields of user properties, those of tag and keys, and the message id; None if one is unusual."""
        numbers, kind_of = _NUMBERS, self._kind_of
        user_properties = tag = message_id = b""
        keys = ""
        for entry in properties.decode().split("\x02"):
            name, _, value = entry.partition("\x01")
            if not name or not value:
                continue
            kind = kind_of(name)
            if kind is None:
                key, text = name.encode(), value.encode()
                key_size, text_size = numbers[len(key)], numbers[len(text)]
                size = 2 + len(key_size) + len(key) + len(text_size) + len(text)
                user_properties += b"".join((b"\x12", numbers[size], b"\x0a", key_size, key, b"\x12", text_size, text))
            elif kind == _MESSAGE_ID:
                message_id = value.encode()
            elif kind == _TAG:
                text = value.encode()
                tag = b"\x0a" + numbers[len(text)] + text
            elif kind == _KEYS:
                keys = value
            elif kind == _UNUSUAL:
                return None
        if not message_id:
            return None
        labels = tag + b"".join([_text(b"\x12", key) for key in keys.split(" ")]) if keys else tag
        return user_properties, labels, message_id
