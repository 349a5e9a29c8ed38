"""Ordered key-value storage. `kv` knows nothing of topics, queues or messages.

Public face of the package: other packages import from here, never from its modules.
"""

from kv.engine import Family, KeyRange, KeyValueEngine, Snapshot, WriteBatch
from kv.errors import EngineClosed, EngineCorrupt, EngineLocked, EngineMissing, KvError

__all__ = [
    "EngineClosed",
    "EngineCorrupt",
    "EngineLocked",
    "EngineMissing",
    "Family",
    "KeyRange",
    "KeyValueEngine",
    "KvError",
    "Snapshot",
    "WriteBatch",
]
