"""An engine that shows each batch to a recorder, so that the changes of a database can be repeated in another one."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from enum import IntEnum
from pathlib import Path
from threading import Lock
from typing import NamedTuple, Protocol

from quarry_mq.kv.engine import Family, KeyRange, KeyValueEngine, Snapshot, WriteBatch


class ChangeKind(IntEnum):
    """The kind says what a change does."""

    PUT = 1
    DELETE = 2
    DELETE_RANGE = 3


class Change(NamedTuple):
    """A change is one operation of a batch. `value` is empty for a deletion, and the range's end for a range."""

    kind: ChangeKind
    family: str
    key: bytes
    value: bytes


class Recorder(Protocol):
    """A recorder is called for each batch, for one at a time and in the order of the writes."""

    def stage(self, changes: Sequence[Change], batch: WriteBatch) -> None:
        """Take the changes of a batch that is about to be written. What is added to `batch` is written with them."""

    def written(self) -> None:
        """The batch of the last `stage` was written. If the write fails, this is not called."""


class _RecordingBatch:
    """A batch that also keeps its changes as a list."""

    def __init__(self, batch: WriteBatch) -> None:
        self.batch = batch
        self.changes: list[Change] = []

    def put(self, family: Family, key: bytes, value: bytes) -> None:
        self.batch.put(family, key, value)
        self.changes.append(Change(ChangeKind.PUT, family.name, key, value))

    def put_all(self, family: Family, pairs: Iterable[tuple[bytes, bytes]]) -> None:
        found = list(pairs)
        self.batch.put_all(family, found)
        name = family.name
        self.changes += [Change(ChangeKind.PUT, name, key, value) for key, value in found]

    def delete(self, family: Family, key: bytes) -> None:
        self.batch.delete(family, key)
        self.changes.append(Change(ChangeKind.DELETE, family.name, key, b""))

    def delete_all(self, family: Family, keys: Iterable[bytes]) -> None:
        found = list(keys)
        self.batch.delete_all(family, found)
        name = family.name
        self.changes += [Change(ChangeKind.DELETE, name, key, b"") for key in found]

    def delete_range(self, family: Family, keys: KeyRange) -> None:
        self.batch.delete_range(family, keys)
        assert keys.end is not None
        self.changes.append(Change(ChangeKind.DELETE_RANGE, family.name, keys.start, keys.end))

    def __len__(self) -> int:
        return len(self.batch)


class RecordingEngine:
    """An engine that writes to another engine and records all batches. Tables that it ingests are not recorded."""

    def __init__(self, engine: KeyValueEngine, recorder: Recorder) -> None:
        self._engine = engine
        self._recorder = recorder
        self._lock = Lock()
        """Held from `stage` to `written`, so that batches are numbered in the order in which they are written."""

    def family(self, name: str) -> Family:
        return self._engine.family(name)

    def batch(self) -> WriteBatch:
        return _RecordingBatch(self._engine.batch())

    def write(self, batch: WriteBatch, *, sync: bool = False) -> None:
        assert isinstance(batch, _RecordingBatch)
        with self._lock:
            self._recorder.stage(batch.changes, batch.batch)
            self._engine.write(batch.batch, sync=sync)
            self._recorder.written()

    @contextmanager
    def paused(self) -> Iterator[None]:
        """No batch is written while the context is entered; a call of `write` waits."""
        with self._lock:
            yield

    def put_later(self, family: Family, pairs: list[tuple[bytes, bytes]]) -> None:
        batch = self.batch()
        batch.put_all(family, pairs)
        self.write(batch)

    def settle(self, *, more_than: int = 0) -> None:
        self._engine.settle(more_than=more_than)

    def flush(self, names: Sequence[str]) -> None:
        self._engine.flush(names)

    def snapshot(self) -> Snapshot:
        return self._engine.snapshot()

    def compact(self, family: Family, keys: KeyRange) -> None:
        self._engine.compact(family, keys)

    def gather_tables(self, family: Family, count: int | None) -> None:
        self._engine.gather_tables(family, count)

    def write_table(self, family: Family, path: Path, pairs: Iterable[tuple[bytes, bytes]]) -> int:
        return self._engine.write_table(family, path, pairs)

    def ingest(self, family: Family, tables: Sequence[Path]) -> None:
        self._engine.ingest(family, tables)

    def checkpoint(self, directory: Path) -> None:
        self._engine.checkpoint(directory)

    def sequence(self) -> int:
        return self._engine.sequence()

    def statistics(self) -> dict[str, int]:
        return self._engine.statistics()

    def close(self) -> None:
        self._engine.close()
