"""The database of held messages. Derived from the log, so it needs no write-ahead log of its own."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from kv.options import KIB, MIB, CompactionStyle, Compression, FamilyOptions
from kv.rocks import RocksEngine

FAMILY: Final = "default"
FAMILY_OPTIONS: Final = {
    FAMILY: FamilyOptions(
        memtable_bytes=16 * MIB,
        memtables_max=3,
        compaction_style=CompactionStyle.LEVEL,
        level_zero_tables=2,
        target_file_bytes=32 * MIB,
        compression=Compression.LZ4,
        bottommost_compression=Compression.LZ4,
        block_bytes=8 * KIB,
        bloom_bits_per_key=0,
        block_cache_bytes=16 * MIB,
    )
}


def open_held_engine(directory: Path, *, create: bool, read_only: bool = False) -> RocksEngine:
    """Raises kv.EngineMissing, kv.EngineLocked or kv.EngineCorrupt."""
    return RocksEngine.open(directory, FAMILY_OPTIONS, create=create, read_only=read_only, write_ahead_log=False)
