"""Ordered key-value storage. `kv` knows nothing of topics, queues or messages.

Public face of the package: other packages import from here. `kv.keys` (key fields) and `kv.memory` (an engine for
tests) are imported as modules.
"""

from kv.descriptors import descriptor_limit, descriptor_share, raise_descriptor_limit
from kv.engine import Family, KeyRange, KeyValueEngine, Snapshot, WriteBatch
from kv.errors import EngineClosed, EngineCorrupt, EngineFull, EngineLocked, EngineMissing, EngineStarved, KvError
from kv.options import CompactionStyle, Compression, FamilyOptions
from kv.rocks import RocksEngine, list_families, write_table
from kv.rocks_directory import is_scratch, is_table

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
