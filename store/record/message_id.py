"""The module handles two kinds of message ids: the offset id says where a record lies, the client id is the client's
name.
"""

from __future__ import annotations

from collections.abc import Mapping
from struct import Struct
from typing import Final

from quarry_mq.protocol.messages.property_names import UNIQUE_KEY
from quarry_mq.store.errors import Invalid
from quarry_mq.store.message import Host, PhysicalOffset
from quarry_mq.store.record.layout import IPV4_LENGTH, IPV6_LENGTH, PORT_MAXIMUM

_PORT_AND_OFFSET: Final = Struct(">iq")
_TEXT_LENGTHS: Final = {2 * (length + _PORT_AND_OFFSET.size): length for length in (IPV4_LENGTH, IPV6_LENGTH)}

assert sorted(_TEXT_LENGTHS) == [32, 56]


def offset_message_id(store_host: Host, physical_offset: PhysicalOffset) -> str:
    """Return address (4 or 16 bytes), port i32 and physical offset i64 as 32 or 56 upper-case hex digits."""
    return (store_host.address + _PORT_AND_OFFSET.pack(store_host.port, physical_offset)).hex().upper()


def parse_offset_message_id(text: str) -> tuple[Host, PhysicalOffset]:
    """Return the host and offset that an offset id was made of. Raises Invalid for any other text."""
    address_length = _TEXT_LENGTHS.get(len(text))
    if address_length is None or not text.isalnum():
        raise Invalid(f"message id {text!r}: not 32 or 56 hex digits")
    try:
        data = bytes.fromhex(text)
    except ValueError:
        raise Invalid(f"message id {text!r}: not 32 or 56 hex digits") from None
    port, physical_offset = _PORT_AND_OFFSET.unpack_from(data, address_length)
    if not 0 <= port <= PORT_MAXIMUM or physical_offset < 0:
        raise Invalid(f"message id {text!r}: port or offset out of range")
    return Host(data[:address_length], port), PhysicalOffset(physical_offset)


def client_message_id(properties: Mapping[str, str]) -> str | None:
    """Return the id that the client gave the message; None when it sent none.

    The id is an opaque text: clients of several generations use different layouts, and none may be relied upon.
    """
    return properties.get(UNIQUE_KEY) or None
