"""The consume queues of an open store, which may move from files to RocksDB while it is open."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from quarry_mq.kv import KeyValueEngine
from quarry_mq.store.consumequeue import (
    ConsumeQueueStore,
    DoubleWriteConsumeQueues,
    FileConsumeQueues,
    RocksConsumeQueues,
)
from quarry_mq.store.consumequeue.dispatch import LightQueueNumbering
from quarry_mq.store.layout.queue_phase import QueuePhase, QueuePlaces
from quarry_mq.store.native import Native


class OpenQueues:
    """Where the queues are, who reads and who numbers them.

    Belongs to the thread that dispatches, which alone may change anything; others may look at it. A store that was
    opened in phase `rocksdb` has RocksConsumeQueues for its `store`, any other one queues that can be switched.
    """

    def __init__(
        self,
        phase: QueuePhase,
        places: QueuePlaces,
        *,
        files: FileConsumeQueues | None,
        rocks: RocksConsumeQueues | None,
        engine: KeyValueEngine | None,
        file_directory: Path,
        rocks_directory: Path,
        numbering: LightQueueNumbering,
        doubled: Callable[[str], bool] | None = None,
    ) -> None:
        """`engine` is the database of `rocks`. `doubled` tells the topics that are written twice; None: all are."""
        self._phase = phase
        self.places = places
        self.engine = engine
        self.file_directory = file_directory
        self.rocks_directory = rocks_directory
        self.numbering = numbering
        """For records that are read back from the log when the store is opened."""
        self.doubled = doubled
        self._rocks = rocks
        self._native: Native | None = None
        self._switchable: DoubleWriteConsumeQueues | None = None
        if phase is not QueuePhase.ROCKSDB:
            self._switchable = DoubleWriteConsumeQueues(files, rocks, doubled=doubled)
            self.phase = phase

    @property
    def store(self) -> ConsumeQueueStore:
        """What is written, read and recovered. Stays the same object."""
        if self._switchable is not None:
            return self._switchable
        assert self._rocks is not None
        return self._rocks

    def use(self, native: Native) -> None:
        """Remember more of queues in RocksDB, with the native part; also of such as are added later."""
        self._native = native
        if self.rocks is not None:
            self.rocks.use(native)

    def warm(self, behind: bytes) -> bytes | None:
        """Have some more of queues in RocksDB at hand, see `KnownQueues.warm`."""
        return None if self.rocks is None else self.rocks.warm(behind)

    @property
    def files(self) -> FileConsumeQueues | None:
        return None if self._switchable is None else self._switchable.files

    @property
    def rocks(self) -> RocksConsumeQueues | None:
        return self._rocks if self._switchable is None else self._switchable.rocks

    @property
    def directory(self) -> Path:
        """Where most of it lies: its file system is one that can be full."""
        return self.rocks_directory if self.engine is not None else self.file_directory

    @property
    def phase(self) -> QueuePhase:
        return self._phase

    @phase.setter
    def phase(self, phase: QueuePhase) -> None:
        """Read and number as the phase says from now on. Nothing is opened or closed."""
        self._phase = phase
        if self._switchable is not None:
            self._switchable.read_rocks = self.places.reads_rocksdb(phase)
            # the next offsets that are cached stay good: both hold the same units, and so have the same maxima
            self._switchable.assign_rocks = self.places.assigns_rocksdb(phase)
            if self._switchable.rocks is not None:
                self._switchable.rocks.is_complete = phase.rocksdb_is_complete

    @property
    def lag_bytes(self) -> int:
        """How much of the log one of the two has and the other has not: a put has failed in one. Any thread."""
        with self.using_rocks() as rocks:
            files = self.files
            if files is None or rocks is None:
                return 0
            return abs((files.dispatched_up_to() or 0) - (rocks.dispatched_up_to() or 0))

    @property
    def removals(self) -> int:
        """See `DoubleWriteConsumeQueues.removals`."""
        return 0 if self._switchable is None else self._switchable.removals

    # -- on other threads

    @contextmanager
    def using_rocks(self) -> Iterator[RocksConsumeQueues | None]:
        """RocksDB's queues, which are not closed before the block is left; None when there are none (any more)."""
        if self._switchable is None:
            yield self._rocks
            return
        with self._switchable.in_use.using():
            yield self._switchable.rocks

    def statistics(self) -> dict[str, int]:
        """Figures of the database, see `KeyValueEngine.statistics`. Any thread."""
        with self.using_rocks():
            engine = self.engine
            return {} if engine is None else engine.statistics()

    def wait_for_users(self) -> None:
        """Blocks until no other thread uses what was dropped before this call. Not on the thread that dispatches."""
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
        """Neither read nor write RocksDB any more; files hold everything."""
        assert self._switchable is not None
        assert self._switchable.files is not None
        self.engine, self._switchable.rocks = None, None

    def drop_files(self) -> None:
        """Neither read nor write files any more; RocksDB holds everything."""
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
