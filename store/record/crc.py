"""CRC-32 of bodies and records.

The polynomial is zlib's. Computed by `isal`, which gives the same values several times faster (figures: docs/adr/0010).
Recovery is bound by this, and every append pays it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from isal import isal_zlib

from store.record.layout import CRC_DIGITS, CRC_PROPERTY_START

_crc32: Final = isal_zlib.crc32
_PROPERTY_BACKWARDS: Final = b"\x02%%0%dd" % CRC_DIGITS + CRC_PROPERTY_START[::-1]

Buffer = bytes | bytearray | memoryview


def checksum(data: Buffer) -> int:
    """CRC-32 with the top bit cleared, as records hold it (0..0x7FFFFFFF; 0 for no bytes)."""
    value: int = _crc32(data)
    return value & 0x7FFFFFFF


def crc32_of_each(data: memoryview, starts: Sequence[int], ends: Sequence[int]) -> list[int]:
    """The plain CRC-32 (all 32 bits) of each range of `data`. Long ranges let other threads run meanwhile."""
    return [_crc32(data[start:end]) for start, end in zip(starts, ends, strict=True)]


def crc_property_of(covered: Buffer) -> bytes:
    """The 20-byte property that closes a record and covers all bytes before it.

    The decimal digits come lowest first, padded with zeros: that is how RocketMQ writes them. So the whole
    property is made back to front and then turned round.
    """
    return (_PROPERTY_BACKWARDS % (_crc32(covered) & 0x7FFFFFFF))[::-1]
