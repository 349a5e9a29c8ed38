"""The module encodes message properties: `name 0x01 value 0x02` for each entry (docs/formats/commit-log.md)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from quarry_mq.protocol.messages.property_names import CRC_PROPERTY, TRANSIENT_PREFIX
from quarry_mq.store.errors import Invalid
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
