"""How a column family lays out and caches its tables. Values only: no engine names in here.

The defaults suit small tables that are read by key (`<store>/quarry/`); consume queues state their own in
`store/consumequeue/rocks/engine.py`.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Final

KIB: Final = 1024
MIB: Final = 1024 * KIB
MEMTABLE_FILTER_SHARE_MAX: Final = 0.25


class Compression(Enum):
    """The codec of table blocks. All of them are in RocketMQ's RocksDB build too."""

    NONE = "none"
    LZ4 = "lz4"
    ZSTD = "zstd"


class CompactionStyle(Enum):
    """LEVEL keeps read and space costs low, UNIVERSAL keeps write cost low."""

    LEVEL = "level"
    UNIVERSAL = "universal"


@dataclass(frozen=True, kw_only=True, slots=True)
class FamilyOptions:
    """Settings of one family. They change speed and size, never what is read."""

    memtable_bytes: int = 8 * MIB
    """A memtable of this size is flushed to a table."""
    memtables_max: int = 3
    """Writers wait when this many memtables of the family are in memory."""
    compaction_style: CompactionStyle = CompactionStyle.LEVEL
    level_zero_tables: int = 4
    """This many freshly flushed tables start a compaction."""
    target_file_bytes: int = 32 * MIB
    """Compactions cut their output into tables of about this size."""
    compression: Compression = Compression.LZ4
    bottommost_compression: Compression = Compression.LZ4
    """For the last level, where most bytes lie and are seldom rewritten."""
    block_bytes: int = 8 * KIB
    """Unit of reading and compression: larger is denser, smaller is cheaper for reads of one key."""
    bloom_bits_per_key: int = 10
    """0 for none. 10 bits spare about 99 of 100 table reads for a key that is not there."""
    memtable_filter_share: float = 0.0
    """This share of a memtable's size goes into a filter over its keys, for reads of many different keys: it spares the
    search for those that the memtable does not hold. Writes cost a little more."""
    block_cache_bytes: int = 8 * MIB
    """Decompressed blocks, indexes and filters; all table memory of the family comes out of it."""

    later_puts: bool = False
    """Whether `KeyValueEngine.put_later` may keep puts in memory for a while."""

    def __post_init__(self) -> None:
        for name, least in (
            ("memtable_bytes", 64 * KIB),
            ("memtables_max", 2),
            ("level_zero_tables", 1),
            ("target_file_bytes", 64 * KIB),
            ("block_bytes", KIB),
            ("bloom_bits_per_key", 0),
            ("block_cache_bytes", 0),
        ):
            if getattr(self, name) < least:
                raise ValueError(f"{name} is {getattr(self, name)}; it must be at least {least}")
        if not 0 <= self.memtable_filter_share <= MEMTABLE_FILTER_SHARE_MAX:
            raise ValueError(f"memtable_filter_share is {self.memtable_filter_share}; it must be 0 to 0.25")
