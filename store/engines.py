"""The module says which engine holds the databases of a store. Tests replace it by an engine that crashes."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

from quarry_mq.kv import KeyValueEngine
from quarry_mq.store.consumequeue import open_consume_queue_engine
from quarry_mq.store.pending import open_pending_engine
from quarry_mq.store.state.identity import open_state_engine


class StoreEngines(Protocol):
    """The engines of a store open its databases. All methods raise kv.EngineMissing, kv.EngineLocked or
    kv.EngineCorrupt.
    """

    def open_queues(self, directory: Path, *, create: bool) -> KeyValueEngine:
        """Open the database of the consume queues, which has no write-ahead log."""

    def open_state(self, directory: Path, *, create: bool, read_only: bool = False) -> KeyValueEngine:
        """Open the database of metadata and delivery state, which has a write-ahead log.

        With `read_only` nothing in the directory is changed.
        """

    def open_pending(self, directory: Path, *, create: bool) -> KeyValueEngine:
        """Open the database of pending messages, which has no write-ahead log."""


class RocksStoreEngines:
    """The default engines are RocksDB databases in directories of the store."""

    def open_queues(self, directory: Path, *, create: bool) -> KeyValueEngine:
        return open_consume_queue_engine(directory, create=create)

    def open_state(self, directory: Path, *, create: bool, read_only: bool = False) -> KeyValueEngine:
        return open_state_engine(directory, create=create, read_only=read_only)

    def open_pending(self, directory: Path, *, create: bool) -> KeyValueEngine:
        return open_pending_engine(directory, create=create)
