"""The package `kv` is ordered key-value storage. It knows nothing of topics, queues or messages.

Other packages import from here. `kv.keys` (key fields) and `kv.memory` (an engine for tests) are imported as modules.
"""

from quarry_mq.kv.engine import Family, KeyRange, KeyValueEngine, Snapshot, WriteBatch
from quarry_mq.kv.errors import (
    EngineClosed,
    EngineCorrupt,
    EngineFull,
    EngineLocked,
    EngineMissing,
    EngineStarved,
    KvError,
)
from quarry_mq.kv.options import CompactionStyle, Compression, FamilyOptions
from quarry_mq.kv.rocks import RocksEngine, list_families, write_table
from quarry_mq.kv.rocks_directory import (
    descriptor_limit,
    descriptor_share,
    is_scratch,
    is_table,
    raise_descriptor_limit,
)

__all__ = [
    "CompactionStyle",
    "Compression",
    "EngineClosed",
    "EngineCorrupt",
    "EngineFull",
    "EngineLocked",
    "EngineMissing",
    "EngineStarved",
    "Family",
    "FamilyOptions",
    "KeyRange",
    "KeyValueEngine",
    "KvError",
    "RocksEngine",
    "Snapshot",
    "WriteBatch",
    "descriptor_limit",
    "descriptor_share",
    "is_scratch",
    "is_table",
    "list_families",
    "raise_descriptor_limit",
    "write_table",
]
