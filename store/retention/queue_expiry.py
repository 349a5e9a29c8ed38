"""What of the consume queues lies below the log's minimum: which rounds are due, and when the tables are rewritten.

How far each kind of queues is cleaned up is a row (`store.state.identity`), written when a round is through and
durable. So a start knows whether one is due.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from quarry_mq.kv import EngineFull, KeyRange
from quarry_mq.store.consumequeue import FileConsumeQueues, RocksConsumeQueues
from quarry_mq.store.consumequeue.rocks_layout import UNITS_FAMILY
from quarry_mq.store.fs import Disk
from quarry_mq.store.migration.open_queues import OpenQueues
from quarry_mq.store.offsets import PhysicalOffset
from quarry_mq.store.retention.queue_rounds import FileRound, Pause, QueueRound, RocksRound
from quarry_mq.store.state.identity import StoreIdentity, UnitCounts

SPARE_BYTES: Final = 64 << 20
"""Room that a rewrite of the tables leaves to others."""

GATHERED_TABLES: Final = 64
"""A round flushes often, and range deletes are large: merged after every other flush, they would have the tables of
all entries rewritten again and again (ADR 15). Enough for a million queues; each costs a read one microsecond.
"""


class DueRound:
    """A round that is to be done. It ends, without being through, when a migration exchanges its queues."""

    def __init__(
        self,
        kind: str,
        round_: QueueRound,
        queues: OpenQueues,
        is_current: Callable[[], bool],
        done: Callable[[], None],
    ) -> None:
        self.kind: Final = kind
        """`files` or `rocksdb`."""
        self._round = round_
        self._queues = queues
        self._is_current = is_current
        self._done = done

    @property
    def units(self) -> int:
        return self._round.units

    @property
    def files(self) -> int:
        return self._round.files

    def prepare(self) -> bool:
        """See `QueueRound`."""
        with self._queues.using_rocks():
            return self._is_current() and self._round.prepare()

    def carry_out(self) -> bool:
        """See `QueueRound`."""
        return self._is_current() and self._round.carry_out()

    def finish(self) -> bool:
        """Write down that it is through; False when it is not. Blocks."""
        if not self._is_current():
            return False
        self._done()
        return True


class QueueExpiry:
    """The expiry of one store's queues. Methods block for the disk, one at a time, except where they say otherwise."""

    def __init__(self, disk: Disk, identity: StoreIdentity, queues: OpenQueues) -> None:
        self._disk = disk
        self._identity = identity
        self._queues = queues
        self._is_gathering = False

    # -- rounds

    def expired_below(self) -> PhysicalOffset:
        """Up to where all queues are cleaned up, but for a RocksDB that is not complete. For any thread."""
        identity = self._identity
        done = [] if self._queues.files is None else [identity.files_expired_below]
        if self._expiring_rocks() is not None:
            done.append(identity.rocksdb_expired_below)
        return min((each or PhysicalOffset(0) for each in done), default=PhysicalOffset(0))

    def due(self, minimum: PhysicalOffset, pause: Pause) -> DueRound | None:
        """The next round to be done for a log that begins at `minimum`. To be called on the thread of `carry_out`."""
        files, rocks = self._queues.files, self._expiring_rocks()
        if files is not None and (self._identity.files_expired_below or 0) < minimum:
            return self._due_files(files, minimum, pause)
        if rocks is not None and (self._identity.rocksdb_expired_below or 0) < minimum:
            return self._due_rocks(rocks, pause)
        return None

    def begin(self) -> None:
        """Rounds follow. Repeatable."""
        if not self._is_gathering:
            self._gather_tables(GATHERED_TABLES)

    def end(self) -> None:
        """No round and no rewrite is under way any more. Repeatable."""
        if self._is_gathering:
            self._gather_tables(None)

    # -- the tables

    def table_bytes(self) -> int:
        """What RocksDB's tables of entries take; 0 without RocksDB. May be called from any thread."""
        return self._queues.statistics().get(f"{UNITS_FAMILY}.table_bytes", 0)

    @property
    def has_tables(self) -> bool:
        """Whether there is a RocksDB."""
        return self._queues.engine is not None

    def is_sparse(self, gone_ratio: float) -> bool:
        """Whether at least that share of the entries went since RocksDB's tables were rewritten."""
        counts = self._identity.rocksdb_units
        return counts.gone > 0 and counts.gone_ratio >= gone_ratio

    def rewrite_tables(self) -> None:
        """Rewrite RocksDB's tables of entries without what went. May take minutes; closing the engine ends it.

        Raises kv.EngineFull where there is no room for old and new tables, kv.EngineClosed, kv.KvError.
        """
        engine = self._queues.engine
        if engine is None:
            return
        before = self._identity.rocksdb_units
        needed_bytes = int(self.table_bytes() * (1 - before.gone_ratio)) + SPARE_BYTES
        free_bytes = self._disk.free_bytes(self._queues.rocks_directory)
        if free_bytes is not None and free_bytes < needed_bytes:
            # no figures: they are others at each try, and the same complaint is told once
            raise EngineFull("the disk has no room for the tables of queue entries beside those that they replace")
        engine.compact(engine.family(UNITS_FAMILY), KeyRange(b"", None))
        self._identity.rocksdb_units = UnitCounts(0, before.kept)

    # -- inside

    def _expiring_rocks(self) -> RocksConsumeQueues | None:
        """Not a RocksDB whose older entries are still being brought over: stored minima would hide them."""
        rocks = self._queues.rocks
        return rocks if rocks is not None and rocks.is_complete else None

    def _due_files(self, files: FileConsumeQueues, minimum: PhysicalOffset, pause: Pause) -> DueRound:
        def done() -> None:
            self._identity.files_expired_below = minimum

        round_ = FileRound(files, minimum, pause=pause)
        return DueRound("files", round_, self._queues, lambda: self._queues.files is files, done)

    def _due_rocks(self, rocks: RocksConsumeQueues, pause: Pause) -> DueRound:
        identity = self._identity

        def dropped(units: int) -> None:
            counts = identity.rocksdb_units
            identity.rocksdb_units = counts._replace(gone=counts.gone + units)

        def done() -> None:
            identity.rocksdb_units = identity.rocksdb_units._replace(kept=round_.kept_units)
            identity.rocksdb_expired_below = round_.minimum

        round_ = RocksRound(rocks, dropped=dropped, pause=pause)
        return DueRound("rocksdb", round_, self._queues, lambda: self._expiring_rocks() is rocks, done)

    def _gather_tables(self, count: int | None) -> None:
        with self._queues.using_rocks():
            engine = self._queues.engine
            if engine is not None:
                engine.gather_tables(engine.family(UNITS_FAMILY), count)
        self._is_gathering = count is not None
