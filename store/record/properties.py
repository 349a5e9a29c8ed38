"""Message properties and tags codes of records, and the ways that reading a record can end.

Properties are encoded as `name 0x01 value 0x02` for each entry (docs/formats/commit-log.md). The tags code is the 8
bytes of a consume queue entry that let a reader filter without reading the record.

Every way that reading a record can end has a type (see "Reading a record" in docs/formats/commit-log.md).
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Final, NamedTuple

from quarry_mq.protocol.messages.property_names import CRC_PROPERTY, DELAY_LEVEL, TAGS, TRANSIENT_PREFIX
from quarry_mq.protocol.names import SCHEDULE_TOPIC
from quarry_mq.store.errors import Invalid
from quarry_mq.store.message import Host, PhysicalOffset, QueueOffset
from quarry_mq.store.record import layout
from quarry_mq.store.record.layout import PROPERTIES_LENGTH_MAXIMUM

NAME_END: Final = chr(layout.NAME_END)
ENTRY_END: Final = chr(layout.ENTRY_END)
_RESERVED: Final = b"\x00\x01\x02"


def encode_properties(properties: Mapping[str, str]) -> bytes:
    """Return the stored form, at most 32,767 bytes, in the mapping's order.

    `__CRC32#` is left out, because only the record encoder knows its value, and so are transient properties. An entry
    with an empty value is written, but readers (RocketMQ's too) drop it.

    Raises Invalid naming the property when a name is empty, when a name or value holds 0x00, 0x01, 0x02 or a lone
    surrogate, and when the whole is too long. Zero bytes are refused so that a hole left by a crash can be told from a
    property.
    """
    text = _joined(properties)
    if CRC_PROPERTY in properties or TRANSIENT_PREFIX in text:
        properties = _storable(properties)
        text = _joined(properties)
    try:
        encoded = text.encode()
    except UnicodeEncodeError:
        raise Invalid(_problem(properties)) from None
    length = len(encoded)
    # One pass over all of it instead of three: the only reserved bytes must be the two that follow each name and value.
    if length - len(encoded.translate(None, _RESERVED)) != 2 * len(properties) or "" in properties:
        raise Invalid(_problem(properties))
    if length > PROPERTIES_LENGTH_MAXIMUM:
        raise too_long(length)
    return encoded


def too_long(length: int) -> Invalid:
    """Return the error for properties whose stored form takes `length` bytes."""
    return Invalid(f"properties: {length} bytes when encoded, at most {PROPERTIES_LENGTH_MAXIMUM} are allowed")


def decode_properties(raw: bytes) -> dict[str, str]:
    """Return the entries of the stored form, in stored order; if a name is repeated, its last value.

    Any stored bytes are read, as RocketMQ reads them: an entry without a name or without a value is skipped, the last
    0x02 may be missing, bytes that are no UTF-8 become U+FFFD.
    """
    properties = {}
    for entry in raw.decode("utf-8", "replace").split(ENTRY_END):
        name, _, value = entry.partition(NAME_END)
        if name and value:
            properties[name] = value
    return properties


class EncodedProperties(Mapping[str, str]):
    """The encoded properties are decoded at the first access only: those of most messages are never accessed."""

    __slots__ = ("_decoded", "raw")

    def __init__(self, raw: bytes) -> None:
        self.raw = raw
        self._decoded: dict[str, str] | None = None

    def _entries(self) -> dict[str, str]:
        if self._decoded is None:
            self._decoded = decode_properties(self.raw)
        return self._decoded

    def __contains__(self, name: object) -> bool:
        # called for every message with names that hardly any message has
        if self._decoded is None and isinstance(name, str) and name.encode() not in self.raw:
            return False
        return name in self._entries()

    def __getitem__(self, name: str) -> str:
        return self._entries()[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries())

    def __len__(self) -> int:
        return len(self._entries())


def has_property(properties: Mapping[str, str], name: str, encoded: bytes) -> bool:
    """Return `name in properties`, for a caller that asks this of every message and has the name in UTF-8."""
    if isinstance(properties, EncodedProperties) and encoded not in properties.raw:
        return False
    return name in properties


def _joined(properties: Mapping[str, str]) -> str:
    text = ""
    for name, value in properties.items():
        text += f"{name}\x01{value}\x02"  # grows in place, which is faster than a list and a join
    return text


def _storable(properties: Mapping[str, str]) -> dict[str, str]:
    return {
        name: value
        for name, value in properties.items()
        if name != CRC_PROPERTY and not name.startswith(TRANSIENT_PREFIX)
    }


def _problem(properties: Mapping[str, str]) -> str:
    for name, value in properties.items():
        if not name:
            return "properties: a name is empty"
        for what, text in (("name", name), ("value", value)):
            if not text.isprintable() and any(forbidden in text for forbidden in "\x00\x01\x02"):
                return f"property {name!r}: its {what} contains one of the bytes 0x00, 0x01, 0x02"
            if any("\ud800" <= character <= "\udfff" for character in text):
                return f"property {name!r}: its {what} is not valid Unicode"
    raise AssertionError("no fault found in the properties")


class StoredMessage(NamedTuple):
    """A stored message is one whole record of the commit log. `body` is a view into the segment, everything else is a
    copy.

    It is a NamedTuple because one is made per record read: a frozen dataclass of seventeen fields takes four times as
    long to build.
    """

    size: int
    magic: int
    body_crc: int
    queue_number: int
    flag: int
    queue_offset: QueueOffset
    physical_offset: PhysicalOffset
    system_flag: int
    born_timestamp_ms: int
    born_host: Host
    store_timestamp_ms: int
    store_host: Host
    reconsume_times: int
    prepared_transaction_offset: int
    body: memoryview
    topic: str
    raw_properties: bytes

    @property
    def properties(self) -> dict[str, str]:
        """Return the decoded properties; they are decoded at each access."""
        return decode_properties(self.raw_properties)


@dataclass(frozen=True, slots=True)
class Blank:
    """A blank is the filler at the end of a segment: reading continues at the next segment's start."""

    physical_offset: PhysicalOffset
    size: int


@dataclass(frozen=True, slots=True)
class EndOfData:
    """The bytes are zero: nothing was ever written here."""

    physical_offset: PhysicalOffset


@dataclass(frozen=True, slots=True)
class Torn:
    """A part of the record is missing: still zero, or beyond the end of the segment."""

    physical_offset: PhysicalOffset
    reason: str


@dataclass(frozen=True, slots=True)
class Corrupt:
    """The bytes are no record, or a record whose checks fail."""

    physical_offset: PhysicalOffset
    reason: str


Decoded = StoredMessage | Blank | EndOfData | Torn | Corrupt


_SECOND: Final = 1_000
_MINUTE: Final = 60 * _SECOND
_HOUR: Final = 60 * _MINUTE

DELAY_LEVELS_MS: Final = (
    *(seconds * _SECOND for seconds in (1, 5, 10, 30)),
    *(minutes * _MINUTE for minutes in (1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 20, 30)),
    *(hours * _HOUR for hours in (1, 2)),
)
"""The delays of RocketMQ's default `messageDelayLevel`: that of level n is at index n - 1."""

_LATEST_MS: Final = 2**63 - 1 - DELAY_LEVELS_MS[-1]
"""The latest time that is used: a record's time may be any number, but the sum with a delay must fit into an entry."""

assert len(DELAY_LEVELS_MS) == 18

_CACHED_LENGTH_MAXIMUM: Final = 256
"""Longer texts are hashed each time: few tags are so long, and caching them would cost megabytes."""


def java_hash(text: str) -> int:
    """Return Java's `String.hashCode`: h = 31 * h + unit over the UTF-16 units, as a signed 32-bit integer."""
    if len(text) <= _CACHED_LENGTH_MAXIMUM:
        return _cached_hash(text)
    return _hash(text)


def tags_code(topic: str, properties: Mapping[str, str], store_timestamp_ms: int) -> int:
    """Return the tags code of a record with these properties, a signed 64-bit integer.

    It is the hash of the whole `TAGS` property, 0 without one. For the schedule topic with a delay level above 0 it is
    the time of delivery in ms; levels above the highest count as the highest. The topic decides first, because
    delivered copies still carry the level.
    """
    if topic == SCHEDULE_TOPIC and (level := _delay_level(properties)):
        return min(store_timestamp_ms, _LATEST_MS) + DELAY_LEVELS_MS[min(level, len(DELAY_LEVELS_MS)) - 1]
    tags = properties.get(TAGS)
    return java_hash(tags) if tags else 0


def _delay_level(properties: Mapping[str, str]) -> int | None:
    """Return the level when it is a positive number. Anything else was written by no broker and counts as absent."""
    text = properties.get(DELAY_LEVEL, "")
    if not (text.isascii() and text.isdecimal()):
        return None
    return int(text[:10]) or None  # ten digits: enough to exceed every level, few enough to be fast


def _hash(text: str) -> int:
    entries = array("H", text.encode("utf-16-le", "surrogatepass"))
    if sys.byteorder == "big":
        entries.byteswap()
    value = 0
    for entry in entries:
        value = (31 * value + entry) & 0xFFFFFFFF
    return value - 0x1_0000_0000 if value & 0x8000_0000 else value


_cached_hash = lru_cache(maxsize=8192)(_hash)
