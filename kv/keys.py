"""Key fields whose bytewise order is the order of their values.

A key made of such fields, one after the other, sorts by its first field, then its second, and so on.
Each maker has a reader that takes the key and the field's position and gives the value and the next position.
"""

from __future__ import annotations

from struct import Struct
from typing import Final

from kv.engine import KeyRange

_U32: Final = Struct(">I")
_U64: Final = Struct(">Q")
_SIGN: Final = 1 << 63


def u32(value: int) -> bytes:
    """Four bytes. Raises struct.error outside 0 … 2^32 - 1."""
    return _U32.pack(value)


def read_u32(key: bytes, at: int) -> tuple[int, int]:
    """The value and the position after it."""
    return _U32.unpack_from(key, at)[0], at + 4


def i64(value: int) -> bytes:
    """Eight bytes: two's complement with the sign bit turned over, so that negative values sort first.

    Not RocketMQ's i64: its keys hold plain two's complement, which is in order only from zero upwards.
    Raises struct.error outside the range.
    """
    return _U64.pack(value + _SIGN)


def read_i64(key: bytes, at: int) -> tuple[int, int]:
    """The value and the position after it."""
    return _U64.unpack_from(key, at)[0] - _SIGN, at + 8


def counted(value: bytes) -> bytes:
    """A u32 length and the bytes. Shorter values sort first, equally long ones bytewise.

    No value is the beginning of another one's field, so whatever follows can never be mistaken for it.
    """
    return _U32.pack(len(value)) + value


def read_counted(key: bytes, at: int) -> tuple[bytes, int]:
    """The bytes and the position after them. Raises ValueError when the key ends inside the field."""
    length, start = read_u32(key, at)
    end = start + length
    if end > len(key):
        raise ValueError(f"key of {len(key)} bytes ends inside a field of {length} bytes at {start}")
    return key[start:end], end


def prefix_end(prefix: bytes) -> bytes | None:
    """The smallest key greater than every key with this prefix; None when there is none (only 0xFF bytes)."""
    kept = prefix.rstrip(b"\xff")
    if not kept:
        return None
    return kept[:-1] + bytes((kept[-1] + 1,))


def prefix_range(prefix: bytes) -> KeyRange:
    """All keys that begin with the prefix."""
    return KeyRange(prefix, prefix_end(prefix))
