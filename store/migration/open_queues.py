"""The consume queues of an open store, which may move from files to RocksDB while it is open."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from quarry_mq.kv import KeyValueEngine
from quarry_mq.store.consumequeue import (
    ConsumeQueueStore,
    DoubleWriteConsumeQueues,
    FileConsumeQueues,
    RocksConsumeQueues,
)
from quarry_mq.store.consumequeue.dispatch import OffsetAssignment
from quarry_mq.store.layout.paths import StorePaths
from quarry_mq.store.layout.queue_phase import QueuePhase
from quarry_mq.store.native import Native
from quarry_mq.store.settings import StoreSettings


class OpenQueues:
    """Holds the queues of an open store, and which of them are read and which assign offsets.

    Belongs to the thread that dispatches, which alone may change anything; other threads may read. `store` is a
    RocksConsumeQueues if the store was opened in phase `rocksdb`, otherwise queues that can be switched.
    """

    def __init__(
        self,
        settings: StoreSettings,
        phase: QueuePhase,
        *,
        files: FileConsumeQueues | None,
        rocks: RocksConsumeQueues | None,
        engine: KeyValueEngine | None,
        rocks_directory: Path,
        assignment: OffsetAssignment,
        doubled: Callable[[str], bool] | None = None,
    ) -> None:
        """Hold queues. `engine` is the database of `rocks`; `doubled` selects double-written topics, None: all are."""
        self._phase = phase
        self.places: Final = settings.queue_places
        self.engine = engine
        self.file_directory: Final = StorePaths(settings.root).consume_queue
        self.rocks_directory = rocks_directory
        self.assignment = assignment
        """The offsets of light queues for records that are read back from the log when the store is opened."""
        self.doubled = doubled
        self._rocks = rocks
        self._native: Native | None = None
        self._switchable: DoubleWriteConsumeQueues | None = None
        if phase is not QueuePhase.ROCKSDB:
            self._switchable = DoubleWriteConsumeQueues(files, rocks, doubled=doubled)
            self.phase = phase

    @property
    def store(self) -> ConsumeQueueStore:
        """The queues that are written, read and recovered. Always the same object."""
        if self._switchable is not None:
            return self._switchable
        assert self._rocks is not None
        return self._rocks

    def use(self, native: Native) -> None:
        """Cache more of RocksDB's queues with the native part, including queues that are added later."""
        self._native = native
        if self.rocks is not None:
            self.rocks.use(native)

    def warm(self, after: bytes) -> bytes | None:
        """Load more of RocksDB's queues into the cache, see `RocksBounds.warm`."""
        return None if self.rocks is None else self.rocks.warm(after)

    @property
    def files(self) -> FileConsumeQueues | None:
        return None if self._switchable is None else self._switchable.files

    @property
    def rocks(self) -> RocksConsumeQueues | None:
        return self._rocks if self._switchable is None else self._switchable.rocks

    @property
    def directory(self) -> Path:
        """The directory with most of the queues: its file system is one that can be full."""
        return self.rocks_directory if self.engine is not None else self.file_directory

    @property
    def phase(self) -> QueuePhase:
        return self._phase

    @phase.setter
    def phase(self, phase: QueuePhase) -> None:
        """Read and assign offsets as the phase requires from now on. Nothing is opened or closed."""
        self._phase = phase
        if self._switchable is not None:
            self._switchable.read_rocks = self.places.reads_rocksdb(phase)
            # the cached next offsets stay valid: both hold the same entries, and so have the same max offsets
            self._switchable.assign_rocks = self.places.assigns_rocksdb(phase)
            if self._switchable.rocks is not None:
                self._switchable.rocks.is_complete = phase.rocksdb_is_complete

    @property
    def lag_bytes(self) -> int:
        """Bytes of the log that only one of the two covers, because a put has failed in the other. Any thread."""
        with self.using_rocks() as rocks:
            files = self.files
            if files is None or rocks is None:
                return 0
            return abs((files.dispatched_up_to() or 0) - (rocks.dispatched_up_to() or 0))

    @property
    def removals(self) -> int:
        """The counter `DoubleWriteConsumeQueues.removals`; 0 when queues cannot be switched."""
        return 0 if self._switchable is None else self._switchable.removals

    # -- on other threads

    @contextmanager
    def using_rocks(self) -> Iterator[RocksConsumeQueues | None]:
        """Give RocksDB's queues, which stay open until the block is left; None when there are none (any more)."""
        if self._switchable is None:
            yield self._rocks
            return
        with self._switchable.in_use.using():
            yield self._switchable.rocks

    def statistics(self) -> dict[str, int]:
        """Return statistics of the database, see `KeyValueEngine.statistics`. Any thread."""
        with self.using_rocks():
            engine = self.engine
            return {} if engine is None else engine.statistics()

    def wait_for_users(self) -> None:
        """Block until no other thread uses queues dropped before this call. Not on the thread that dispatches."""
        if self._switchable is not None:
            self._switchable.in_use.wait_for_users()

    # -- changes

    def add_rocks(self, rocks: RocksConsumeQueues, engine: KeyValueEngine) -> None:
        """Write RocksDB, too, from now on."""
        assert self._switchable is not None
        if self._native is not None:
            rocks.use(self._native)
        self.engine, self._switchable.rocks = engine, rocks

    def drop_rocks(self) -> None:
        """Stop reading and writing RocksDB; files hold everything."""
        assert self._switchable is not None
        assert self._switchable.files is not None
        self.engine, self._switchable.rocks = None, None

    def drop_files(self) -> None:
        """Stop reading and writing files; RocksDB holds everything."""
        assert self._switchable is not None
        assert self._switchable.rocks is not None
        self._switchable.files = None

    def close(self) -> None:
        """Close what is open."""
        files, engine = self.files, self.engine
        if files is not None:
            files.close()
        if engine is not None:
            engine.close()
