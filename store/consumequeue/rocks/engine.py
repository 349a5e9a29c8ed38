"""The database of consume queues: RocketMQ's families and table formats, with smaller memory limits.

|                    | RocketMQ 5.5       | here    |                   | RocketMQ 5.5       | here    |
|--------------------|--------------------|---------|-------------------|--------------------|---------|
| units: memtables   | 4 x 128 MiB        | 6 x 8   | bounds: memtables | 4 x 64 MiB         | 6 x 4   |
| units: fresh files | 2                  | 4       | bounds: fresh     | 2                  | 8       |
| units: block cache | 1 GiB              | 128 MiB | bounds: cache     | 128 MiB            | 64 MiB  |
| units: filter      | bloom 16 bits/key  | none    | bounds: filter    | bloom 16 bits/key  | 10      |
| indexes, filters   | outside the cache  | inside  | memtable filter   | none               | 2 %     |

Units (entries) need no filter: they are read by scans, never by a key that may be missing. With indexes in the cache,
memory stays within these limits however many queues there are; the cache of bounds holds those of a million queues.
Blocks of units are half as large as RocketMQ's: reading a queue that was not used recently decompresses half as much,
for 4 % more bytes. Memtables are small, because the cost of a write is finding the position of its row in one of them.
More fresh tables are collected before a merge, so the amount written stays the same (ADR 50). Either broker reads the
other's tables.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from quarry_mq.kv.options import KIB, MIB, CompactionStyle, Compression, FamilyOptions
from quarry_mq.kv.rocks import RocksEngine
from quarry_mq.store.consumequeue.rocks_layout import ENTRIES_FAMILY, OFFSET_FAMILY

FAMILY_OPTIONS: Final = {
    ENTRIES_FAMILY: FamilyOptions(
        memtable_bytes=8 * MIB,
        memtables_max=6,
        compaction_style=CompactionStyle.UNIVERSAL,
        level_zero_tables=4,
        target_file_bytes=64 * MIB,
        compression=Compression.LZ4,
        bottommost_compression=Compression.ZSTD,
        block_bytes=16 * KIB,
        bloom_bits_per_key=0,
        block_cache_bytes=128 * MIB,
    ),
    OFFSET_FAMILY: FamilyOptions(
        memtable_bytes=4 * MIB,
        memtables_max=6,
        compaction_style=CompactionStyle.LEVEL,
        level_zero_tables=8,
        target_file_bytes=32 * MIB,
        compression=Compression.NONE,
        bottommost_compression=Compression.NONE,
        block_bytes=8 * KIB,
        bloom_bits_per_key=10,
        memtable_filter_share=0.02,
        later_puts=True,
        block_cache_bytes=64 * MIB,
    ),
}
"""The families in the order in which close() flushes them: entries before bounds and checkpoint."""


def open_consume_queue_engine(directory: Path, *, create: bool, read_only: bool = False) -> RocksEngine:
    """Open the database, RocketMQ's or our own. It has no write-ahead log: the commit log already is one.

    Raises kv.EngineMissing, kv.EngineLocked or kv.EngineCorrupt.
    """
    return RocksEngine.open(directory, FAMILY_OPTIONS, create=create, read_only=read_only, write_ahead_log=False)
