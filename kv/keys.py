"""The module encodes key fields whose bytewise order is the order of their values.

A key made of such fields, one after the other, sorts by its first field, then its second, and so on. Each maker has a
reader that takes the key and the field's position and gives the value and the next position.
"""

from __future__ import annotations

from struct import Struct
from typing import Final

from quarry_mq.kv.engine import KeyRange

_U32: Final = Struct(">I")


def u32(value: int) -> bytes:
    """Encode four bytes. Raises struct.error outside 0 … 2^32 - 1."""
    return _U32.pack(value)


def read_u32(key: bytes, at: int) -> tuple[int, int]:
    """Return the value and the position after it."""
    return _U32.unpack_from(key, at)[0], at + 4


def counted(value: bytes) -> bytes:
    """Encode a u32 length and the bytes. Shorter values sort first, equally long ones bytewise.

    No value is the beginning of another one's field, so whatever follows can never be mistaken for it.
    """
    return _U32.pack(len(value)) + value


def read_counted(key: bytes, at: int) -> tuple[bytes, int]:
    """Return the bytes and the position after them. Raises ValueError when the key ends inside the field."""
    length, start = read_u32(key, at)
    end = start + length
    if end > len(key):
        raise ValueError(f"key of {len(key)} bytes ends inside a field of {length} bytes at {start}")
    return key[start:end], end


def prefix_end(prefix: bytes) -> bytes:
    """Return the smallest key greater than every key with this prefix. Raises ValueError when all its
    bytes are 0xFF.
    """
    kept = prefix.rstrip(b"\xff")
    if not kept:
        raise ValueError(f"no key is greater than all that begin with {len(prefix)} bytes 0xFF")
    return kept[:-1] + bytes((kept[-1] + 1,))


def prefix_range(prefix: bytes) -> KeyRange:
    """Return the range of all keys that begin with the prefix."""
    return KeyRange(prefix, prefix_end(prefix) if prefix.rstrip(b"\xff") else None)
