"""Where a store keeps its consume queues, and the way from files to RocksDB.

    file ─► double_write ─► backfilling ─► verified ─► reading_rocksdb ─► rocksdb

| phase             | written       | read and numbered by | RocksDB holds                                  |
|-------------------|---------------|----------------------|------------------------------------------------|
| `file`            | files         | files                | nothing                                        |
| `double_write`    | both          | files                | what came since                                |
| `backfilling`     | both          | files                | ever more of what came before                  |
| `verified`        | both          | files                | all, and compared with the files unit by unit  |
| `reading_rocksdb` | both          | RocksDB              | all                                            |
| `rocksdb`         | RocksDB       | RocksDB              | all                                            |

The phase is the store's own (`queue_phase` in `quarry/`). A setting decides only where a store begins that has none.
One that contradicts a store is refused: by the other kind of queues its older messages would seem gone (rmq#8600).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import Enum
from fnmatch import translate
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from re import compile as compile_pattern
from typing import NamedTuple

from quarry_mq.store.errors import StoreUnusable
from quarry_mq.store.layout.kind import StoreKind


class QueueMode(Enum):
    """What the operator asks for."""

    ROCKSDB = "rocksdb"
    FILE = "file"
    DOUBLE_WRITE = "double_write"


class QueuePlace(Enum):
    """One of the two, where a store has both."""

    FILE = "file"
    ROCKSDB = "rocksdb"


class QueuePhase(Enum):
    """Where a store stands, in the order of a migration."""

    FILE = "file"
    DOUBLE_WRITE = "double_write"
    BACKFILLING = "backfilling"
    VERIFIED = "verified"
    READING_ROCKSDB = "reading_rocksdb"
    ROCKSDB = "rocksdb"

    @property
    def writes_files(self) -> bool:
        return self is not QueuePhase.ROCKSDB

    @property
    def writes_rocksdb(self) -> bool:
        return self is not QueuePhase.FILE

    @property
    def reads_rocksdb(self) -> bool:
        return self in (QueuePhase.READING_ROCKSDB, QueuePhase.ROCKSDB)

    @property
    def rocksdb_is_complete(self) -> bool:
        """Whether RocksDB is known to hold what the files hold."""
        return self in (QueuePhase.VERIFIED, QueuePhase.READING_ROCKSDB, QueuePhase.ROCKSDB)

    @property
    def next(self) -> QueuePhase | None:
        return _IN_ORDER.get(self)

    @property
    def previous(self) -> QueuePhase | None:
        return next((phase for phase, following in _IN_ORDER.items() if following is self), None)

    @property
    def mode(self) -> QueueMode:
        if self.writes_files and self.writes_rocksdb:
            return QueueMode.DOUBLE_WRITE
        return QueueMode.FILE if self.writes_files else QueueMode.ROCKSDB


_IN_ORDER = dict(pairwise(QueuePhase))


class QueuePlaces(NamedTuple):
    """Who is to be read and who is to number, where an operator has said so; None: as the phase says."""

    read: QueuePlace | None = None
    assign: QueuePlace | None = None

    def reads_rocksdb(self, phase: QueuePhase) -> bool:
        return self._is_rocksdb(self.read, phase)

    def assigns_rocksdb(self, phase: QueuePhase) -> bool:
        return self._is_rocksdb(self.assign, phase)

    def objection(self, phase: QueuePhase) -> str | None:
        """Why they do not go with the phase."""
        for name, place in (("read", self.read), ("assign", self.assign)):
            if place is QueuePlace.ROCKSDB and phase.mode is QueueMode.DOUBLE_WRITE and not phase.rocksdb_is_complete:
                return f"consume_queue.{name} says `rocksdb`, which in phase {phase.value} does not hold everything"
        return None

    @staticmethod
    def _is_rocksdb(place: QueuePlace | None, phase: QueuePhase) -> bool:
        if place is None or phase.mode is not QueueMode.DOUBLE_WRITE:
            return phase.reads_rocksdb
        return place is QueuePlace.ROCKSDB


AS_THE_PHASE_SAYS = QueuePlaces()


def doubled_topics(patterns: Sequence[str] | None) -> Callable[[str], bool] | None:
    """Whether a topic is to be written twice, by patterns as file names have them; None: all are."""
    if patterns is None:
        return None
    matches = compile_pattern("|".join(map(translate, patterns)) or r"(?!)").match
    return lru_cache(maxsize=65_536)(lambda topic: matches(topic) is not None)


_BEGINNINGS = {
    QueueMode.ROCKSDB: QueuePhase.ROCKSDB,
    QueueMode.FILE: QueuePhase.FILE,
    QueueMode.DOUBLE_WRITE: QueuePhase.DOUBLE_WRITE,
}


def parse_phase(stored: str | None, root: Path) -> QueuePhase:
    """A phase as stored; without one, Quarry keeps the queues in RocksDB. Raises StoreUnusable."""
    try:
        return QueuePhase(stored or QueuePhase.ROCKSDB)
    except ValueError:
        raise StoreUnusable(root, f"written by a newer Quarry (queue phase {stored!r})") from None


def phase_of(stored: str | None, layout: StoreKind, mode: QueueMode | None, root: Path) -> QueuePhase:
    """The phase of a store that is opened, `stored` or begun with.

    A store of RocketMQ's file queues begins where it is told; told nothing it becomes a RocksDB store at once, all
    queues made from the whole log. Raises StoreUnusable where the setting contradicts the store.
    """
    if stored is None and layout in (StoreKind.NEW, StoreKind.ROCKETMQ_FILE):
        return _BEGINNINGS[mode or QueueMode.ROCKSDB]
    phase = parse_phase(stored, root)
    if mode is None or mode is phase.mode:
        return phase
    if mode is QueueMode.DOUBLE_WRITE and phase is QueuePhase.FILE:
        return QueuePhase.DOUBLE_WRITE
    raise StoreUnusable(
        root,
        f"keeps its consume queues in `{phase.mode.value}` mode (phase {phase.value}), consume_queue.mode says "
        f"`{mode.value}`: leave the setting out",
    )
