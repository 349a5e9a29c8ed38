"""The options say how a column family lays out and caches its tables. They are values only: no engine names in here.

The defaults suit small tables that are read by key (`<store>/quarry/`); consume queues have their own in
`store/consumequeue/rocks/store.py`.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Final

KIB: Final = 1024
MIB: Final = 1024 * KIB
MEMTABLE_FILTER_SHARE_MAX: Final = 0.25


class Compression(Enum):
    """The compression is the codec of table blocks. RocketMQ's RocksDB build has all of them, too."""

    NONE = "none"
    LZ4 = "lz4"
    ZSTD = "zstd"


class CompactionStyle(Enum):
    """LEVEL keeps the costs of reads and space low, UNIVERSAL those of writes."""

    LEVEL = "level"
    UNIVERSAL = "universal"


@dataclass(frozen=True, kw_only=True, slots=True)
class FamilyOptions:
    """The options are the settings of one family. They change speed and size, never the result of a read."""

    memtable_bytes: int = 8 * MIB
    """The size at which a memtable is flushed to a table."""
    memtables_max: int = 3
    """The number of memtables of the family in memory at which writers wait."""
    compaction_style: CompactionStyle = CompactionStyle.LEVEL
    level_zero_tables: int = 4
    """The number of freshly flushed tables that starts a compaction."""
    target_file_bytes: int = 32 * MIB
    """The approximate size of the tables that compactions write."""
    compression: Compression = Compression.LZ4
    bottommost_compression: Compression = Compression.LZ4
    """The codec of the last level, where most bytes lie and are seldom rewritten."""
    block_bytes: int = 8 * KIB
    """The unit of reading and compression: larger is denser, smaller is cheaper for reads of one key."""
    bloom_bits_per_key: int = 10
    """Bits per key of the filter; 0 for none. 10 bits save about 99 of 100 table reads for a missing key."""
    memtable_filter_share: float = 0.0
    """The share of a memtable's size that goes into a filter over its keys, for reads of many different keys: it saves
    the search for keys that the memtable does not hold. Writes cost a little more.
    """
    block_cache_bytes: int = 8 * MIB
    """Bytes of cache for decompressed blocks, indexes and filters; all table memory of the family comes out of it."""

    later_puts: bool = False
    """True if `KeyValueEngine.put_later` may keep puts in memory for a while."""

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
