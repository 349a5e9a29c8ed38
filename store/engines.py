"""Which engine holds the databases of a store: the seam at which tests put one that crashes."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

from quarry_mq.kv import KeyValueEngine
from quarry_mq.store.consumequeue import open_consume_queue_engine
from quarry_mq.store.pending import open_held_engine
from quarry_mq.store.state.engine import open_state_engine


class StoreEngines(Protocol):
    """Opens the databases. All methods raise kv.EngineMissing, kv.EngineLocked or kv.EngineCorrupt."""

    def open_queues(self, directory: Path, *, create: bool) -> KeyValueEngine:
        """The consume queues, without a write-ahead log."""

    def open_state(self, directory: Path, *, create: bool, read_only: bool = False) -> KeyValueEngine:
        """Metadata and delivery state, with a write-ahead log. `read_only` changes nothing in the directory."""

    def open_held(self, directory: Path, *, create: bool) -> KeyValueEngine:
        """Which messages are held back, without a write-ahead log."""


class RocksStoreEngines:
    """RocksDB in directories of the store."""

    def open_queues(self, directory: Path, *, create: bool) -> KeyValueEngine:
        return open_consume_queue_engine(directory, create=create)

    def open_state(self, directory: Path, *, create: bool, read_only: bool = False) -> KeyValueEngine:
        return open_state_engine(directory, create=create, read_only=read_only)

    def open_held(self, directory: Path, *, create: bool) -> KeyValueEngine:
        return open_held_engine(directory, create=create)
