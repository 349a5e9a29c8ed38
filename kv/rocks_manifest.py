"""Checks of RocksDB's manifest that RocksDB leaves out. No RocksDB calls in here.

The manifest lists the tables of a database. It is a log in blocks of 32 KiB:

| field    | bytes | meaning                                                          |
|----------|-------|------------------------------------------------------------------|
| checksum | 4     | u32 little-endian, masked CRC-32C of kind and payload            |
| length   | 2     | u16 little-endian, of the payload                                |
| kind     | 1     | whole, first, middle or last part of an entry; 0: nothing follows |
| payload  | n     |                                                                  |

A record that reaches over the end of the file counts as torn, and everything from there on as never written: without
a word, since that is how a crash leaves it. One flipped bit in a length does the same to entries from long ago, and
the tables they name are gone. But then the whole record is still there, and its checksum tells its true length.

A kind that only other logs have, those whose files are used again, keeps RocksDB's reader going round for ever.
"""

from __future__ import annotations

import re
from pathlib import Path
from struct import Struct
from typing import Final

from kv.errors import EngineCorrupt
from kv.rocks_directory import CURRENT

MANIFEST_NAME: Final = re.compile(r"MANIFEST-[0-9]+", re.ASCII)
BLOCK_SIZE: Final = 32 * 1024
HEAD: Final = Struct("<IHB")
KIND_MAX: Final = 4
MASK_DELTA: Final = 0xA282EAD8
_POLYNOMIAL: Final = 0x82F63B78


def _table() -> list[int]:
    rows = []
    for row in range(256):
        for _ in range(8):
            row = row >> 1 ^ (_POLYNOMIAL if row & 1 else 0)  # noqa: PLW2901 - the register of the division
        rows.append(row)
    return rows


_TABLE: Final = _table()


def check_manifest(directory: Path) -> None:
    """Raises EngineCorrupt when the live manifest ends in a record that seems torn but is whole, or has one of a kind
    that no manifest has.

    A file that is missing or named wrongly is left to RocksDB, which tells.
    """
    name = (directory / CURRENT).read_text(errors="replace").removesuffix("\n")
    path = directory / name
    if not MANIFEST_NAME.fullmatch(name) or not path.is_file():
        return
    data = path.read_bytes()
    at = 0
    while at + HEAD.size <= len(data):
        block_end = at - at % BLOCK_SIZE + BLOCK_SIZE
        if block_end - at < HEAD.size:
            at = block_end
            continue
        checksum, length, kind = HEAD.unpack_from(data, at)
        payload_end = at + HEAD.size + length
        if payload_end > min(block_end, len(data)):
            # the checksum covers the kind, too
            if _ends_before(data[at + HEAD.size - 1 : block_end], checksum):
                raise EngineCorrupt(f"{path}: the length of the record at {at} is damaged")
            return
        if kind == 0 and length == 0:
            return
        if kind > KIND_MAX:
            raise EngineCorrupt(f"{path}: the kind of the record at {at} is damaged")
        at = payload_end


def _ends_before(data: bytes, checksum: int) -> bool:
    """Whether some beginning of the data has this checksum."""
    register = 0xFFFFFFFF
    for byte in data:
        register = _TABLE[(register ^ byte) & 0xFF] ^ register >> 8
        crc = register ^ 0xFFFFFFFF
        if ((crc >> 15 | crc << 17) + MASK_DELTA) & 0xFFFFFFFF == checksum:
            return True
    return False
