"""The module defines the bits of a record's system flag (docs/formats/commit-log.md).

| bits | mask  | meaning                                                   |
|------|-------|-----------------------------------------------------------|
| 0    | 0x001 | the body is compressed                                    |
| 1    | 0x002 | the topic filters by several tags                         |
| 2-3  | 0x00C | transaction state                                         |
| 4    | 0x010 | the born host is IPv6                                     |
| 5    | 0x020 | the store host is IPv6                                    |
| 6    | 0x040 | the body is a batch that the consumer takes apart         |
| 7    | 0x080 | the record is an inner batch                              |
| 8-10 | 0x700 | compression method; 0 is ZLIB too (written by old clients)|
"""

from __future__ import annotations

from enum import IntEnum
from typing import Final

COMPRESSED: Final = 0x001
MULTIPLE_TAGS: Final = 0x002
TRANSACTION_MASK: Final = 0x00C
BORN_HOST_V6: Final = 0x010
STORE_HOST_V6: Final = 0x020
HOSTS_V6: Final = BORN_HOST_V6 | STORE_HOST_V6
BATCH: Final = 0x040
INNER_BATCH: Final = 0x080
COMPRESSION_MASK: Final = 0x700


class TransactionState(IntEnum):
    """The state is the role of a record in a transaction. Only `NONE` and `COMMIT` records enter consume queues."""

    NONE = 0x0
    PREPARED = 0x4
    COMMIT = 0x8
    ROLLBACK = 0xC


class Compression(IntEnum):
    """The compression is the method by which a body was compressed."""

    LZ4 = 0x100
    ZSTD = 0x200
    ZLIB = 0x300


def transaction_state(system_flag: int) -> TransactionState:
    return TransactionState(system_flag & TRANSACTION_MASK)


def compression(system_flag: int) -> Compression | None:
    """Return the body's compression, None when it is not compressed. Raises ValueError for an undefined method."""
    if not system_flag & COMPRESSED:
        return None
    method = system_flag & COMPRESSION_MASK
    return Compression(method) if method else Compression.ZLIB
