"""The queue phase says where a store keeps its consume queues, and how far it has moved from files to RocksDB.

    file ─► double_write ─► backfilling ─► verified ─► reading_rocksdb ─► rocksdb

| phase             | written       | read and assigned by | RocksDB holds                                  |
|-------------------|---------------|----------------------|------------------------------------------------|
| `file`            | files         | files                | nothing                                        |
| `double_write`    | both          | files                | entries since then                             |
| `backfilling`     | both          | files                | ever more of the older entries                 |
| `verified`        | both          | files                | all, compared with the files entry by entry    |
| `reading_rocksdb` | both          | RocksDB              | all                                            |
| `rocksdb`         | RocksDB       | RocksDB              | all                                            |

The phase is stored in the store itself (`queue_phase` in `quarry/`). The setting decides only the first phase of a
store that has none. A setting that contradicts the store is refused: read through the other kind of queues, its older
messages would seem gone (rmq#8600).
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
    """The mode is what the operator asks for."""

    ROCKSDB = "rocksdb"
    FILE = "file"
    DOUBLE_WRITE = "double_write"


class QueuePlace(Enum):
    """The place is one of the two kinds of consume queues that a store may have at the same time."""

    FILE = "file"
    ROCKSDB = "rocksdb"


class QueuePhase(Enum):
    """The phase says where a store is in a migration; the members are in the order of one."""

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
        """Return whether RocksDB is known to hold everything that the files hold."""
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
    """The places say which kind of queues is read and which assigns offsets, if an operator chose; None: as the phase
    says.
    """

    read: QueuePlace | None = None
    assign: QueuePlace | None = None

    def reads_rocksdb(self, phase: QueuePhase) -> bool:
        return self._is_rocksdb(self.read, phase)

    def assigns_rocksdb(self, phase: QueuePhase) -> bool:
        return self._is_rocksdb(self.assign, phase)

    def objection(self, phase: QueuePhase) -> str | None:
        """Return why these places contradict the phase; None if they do not."""
        for name, place in (("read", self.read), ("assign", self.assign)):
            if place is QueuePlace.ROCKSDB and phase.mode is QueueMode.DOUBLE_WRITE and not phase.rocksdb_is_complete:
                return (
                    f"consume_queue.{name} says `rocksdb`, but in phase {phase.value} RocksDB does not hold everything"
                )
        return None

    @staticmethod
    def _is_rocksdb(place: QueuePlace | None, phase: QueuePhase) -> bool:
        if place is None or phase.mode is not QueueMode.DOUBLE_WRITE:
            return phase.reads_rocksdb
        return place is QueuePlace.ROCKSDB


AS_THE_PHASE_SAYS = QueuePlaces()


def doubled_topics(patterns: Sequence[str] | None) -> Callable[[str], bool] | None:
    """Return a function that tells whether a topic is written twice, by shell patterns; None if all topics are."""
    if patterns is None:
        return None
    matches = compile_pattern("|".join(map(translate, patterns)) or r"(?!)").match
    return lru_cache(maxsize=65_536)(lambda topic: matches(topic) is not None)


_BEGINNINGS = {
    QueueMode.ROCKSDB: QueuePhase.ROCKSDB,
    QueueMode.FILE: QueuePhase.FILE,
    QueueMode.DOUBLE_WRITE: QueuePhase.DOUBLE_WRITE,
}


def require_copyable(phase: QueuePhase, root: Path) -> None:
    """Raise StoreUnusable for a store with queues in files: neither it nor its copies can serve each other."""
    if phase is not QueuePhase.ROCKSDB:
        raise StoreUnusable(
            root, "a store has copies only if its queues are in RocksDB alone: finish the migration of the queues first"
        )


def parse_phase(stored: str | None, root: Path) -> QueuePhase:
    """Return a phase as stored; without one, Quarry keeps the queues in RocksDB. Raises StoreUnusable."""
    try:
        return QueuePhase(stored or QueuePhase.ROCKSDB)
    except ValueError:
        raise StoreUnusable(root, f"written by a newer Quarry (queue phase {stored!r})") from None


def phase_of(stored: str | None, layout: StoreKind, mode: QueueMode | None, root: Path) -> QueuePhase:
    """Return the phase of a store that is opened: the stored one, or the first one of a store without it.

    A store of RocketMQ's file queues begins in the phase of the setting; without a setting it becomes a RocksDB store
    at once, and all queues are built from the whole log. Raises StoreUnusable where the setting contradicts the store.
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
        f"`{mode.value}`: remove the setting",
    )
