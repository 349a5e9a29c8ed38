"""Which engine holds the two databases of a store: the seam at which tests put one that crashes."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

from kv import KeyValueEngine
from store.consumequeue import open_consume_queue_engine
from store.state import open_state_engine


class StoreEngines(Protocol):
    """Opens the databases. Both methods raise kv.EngineMissing, kv.EngineLocked or kv.EngineCorrupt."""

    def open_queues(self, directory: Path, *, create: bool) -> KeyValueEngine:
        """The consume queues, without a write-ahead log."""

    def open_state(self, directory: Path, *, create: bool, read_only: bool = False) -> KeyValueEngine:
        """Metadata and delivery state, with a write-ahead log. `read_only` changes nothing in the directory."""


class RocksStoreEngines:
    """RocksDB in directories of the store."""

    def open_queues(self, directory: Path, *, create: bool) -> KeyValueEngine:
        return open_consume_queue_engine(directory, create=create)

    def open_state(self, directory: Path, *, create: bool, read_only: bool = False) -> KeyValueEngine:
        return open_state_engine(directory, create=create, read_only=read_only)
