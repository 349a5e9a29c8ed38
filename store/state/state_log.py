"""The changes of `quarry/` in the order in which they were written, for copies of the store on other machines.

The log of messages alone does not make a store: topics, groups, positions, deliveries and notes on deletions are rows
of `quarry/`. A primary records each batch that it writes there (`kv.recording`), numbers the batch, and keeps the last
ones in memory. A copy that has all batches up to a number continues with the next one; a copy that was away for longer
takes all rows as they are now.

Each batch rests on a position of the commit log: it refers to nothing at or above this position. A copy applies the
batch when its own queues have the entries of all records below the position, and no others.

A batch on the wire:

    u32 changes, then for each: u8 kind, u8 family, u16 key size, key, u32 value size, value

    kind     1 put, 2 delete, 3 delete all keys from the key (inclusive) to the value (exclusive)
    family   the position in `FAMILIES` of store.state.identity, where new ones are added at the end

All integers are big-endian. Rows that a store keeps about itself alone are left out (`is_own_row`).

The row `replicated` of the family `meta` says how far a store is, on the primary and on its copies:

    16 bytes run, i64 number, i64 position; on a primary the position is -1, since its queues follow its own log

An opening for writing without copies deletes the row: what is written then is in no batch.

A run is the time from one start of a primary to the next. The number goes on from run to run. The run tells apart two
batches with one number, when a power cut took the first of them.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Sequence
from secrets import token_bytes
from struct import Struct
from threading import Lock
from typing import Final, NamedTuple

from quarry_mq.kv import KeyRange, KeyValueEngine, WriteBatch
from quarry_mq.kv.recording import Change, ChangeKind, RecordingEngine
from quarry_mq.store.errors import Invalid
from quarry_mq.store.message import PhysicalOffset
from quarry_mq.store.state.identity import FAMILIES, META, QUEUES_OUTDATED

KEPT_SIZE_MAX: Final = 64 << 20
"""Bytes of memory of the last batches that are kept for copies."""
BATCH_OVERHEAD: Final = 160
"""Bytes of memory of a batch besides its changes."""
PART_SIZE: Final = 1 << 20
"""Bytes of rows in one part of a copy of all rows."""

ROW: Final = b"replicated"
_OWN_ROWS: Final = frozenset(
    (
        b"format",
        b"origin",
        b"metadata",
        b"flushed_up_to",
        b"log_begin",
        b"seen_up_to",
        b"backfilled_to",
        b"backfill_end",
        b"queue_phase",
        b"units_per_file",
        b"files_up_to",
        b"files_emptied",
        b"made_again",
        QUEUES_OUTDATED,
        b"hash_index",
        b"tiered_index",
        b"expired_files",
        b"expired_rocksdb",
        b"sparse_rocksdb",
        ROW,
    )
)
_OWN_PREFIXES: Final = (b"migration/", b"verification/")

_NUMBERS: Final = {name: number for number, name in enumerate(FAMILIES)}
CURSOR: Final = Struct(">16sqq")
"""A cursor as bytes: run, number, position."""
_COUNT: Final = Struct(">I")
_HEAD: Final = Struct(">BBH")
ALL_KEYS: Final = KeyRange(b"", None)


class StateCursor(NamedTuple):
    """The cursor says up to which batch a store has the changes, and where in the log these rest."""

    run: bytes
    number: int
    position: PhysicalOffset


AS_PRIMARY: Final = PhysicalOffset(-1)
"""The position in the row of a primary."""
NO_CURSOR: Final = StateCursor(bytes(16), 0, PhysicalOffset(0))
"""The cursor of a store that was neither a primary nor a copy."""


class StateBatch(NamedTuple):
    """A batch is the changes that a primary wrote at once, as bytes for the wire."""

    number: int
    position: PhysicalOffset
    data: bytes


def _memory_of(batch: StateBatch) -> int:
    return BATCH_OVERHEAD + len(batch.data)


def is_own_row(family: str, key: bytes) -> bool:
    """Return whether a store keeps this row about itself alone, so that copies have another one."""
    return family == META and (key in _OWN_ROWS or key.startswith(_OWN_PREFIXES))


def read_cursor(engine: KeyValueEngine) -> StateCursor:
    """Return how far the store is; `NO_CURSOR` if it was neither a primary nor a copy."""
    row = engine.family(META).get(ROW)
    if row is None:
        return NO_CURSOR
    run, number, position = CURSOR.unpack(row)
    return StateCursor(run, number, PhysicalOffset(position))


def put_cursor(engine: KeyValueEngine, batch: WriteBatch, cursor: StateCursor) -> None:
    """Add the row that says how far the store is to a batch."""
    batch.put(engine.family(META), ROW, CURSOR.pack(*cursor))


def delete_cursor(engine: KeyValueEngine) -> None:
    """Let the store be neither a primary nor a copy, so that it takes all rows of its next primary."""
    batch = engine.batch()
    batch.delete(engine.family(META), ROW)
    engine.write(batch)


def encode_changes(changes: Sequence[Change]) -> bytes:
    """Return changes as bytes for the wire."""
    parts = [_COUNT.pack(len(changes))]
    for kind, family, key, value in changes:
        parts += (_HEAD.pack(kind, _NUMBERS[family], len(key)), key, _COUNT.pack(len(value)), value)
    return b"".join(parts)


def decode_changes(data: bytes | memoryview) -> list[Change]:
    """Return the changes of a batch. Raises Invalid if the bytes are none.

    Changes of a family that this version does not know are left out.
    """
    view = memoryview(data)
    found: list[Change] = []
    try:
        (count,), at = _COUNT.unpack_from(view), _COUNT.size
        for _ in range(count):
            kind, family, key_size = _HEAD.unpack_from(view, at)
            at += _HEAD.size + key_size
            (value_size,) = _COUNT.unpack_from(view, at)
            key, at = bytes(view[at - key_size : at]), at + _COUNT.size + value_size
            if family < len(FAMILIES):
                value = bytes(view[at - value_size : at])
                found.append(Change(ChangeKind(kind), FAMILIES[family], key, value))
    except (struct.error, ValueError) as cause:
        raise Invalid(f"a batch of changes of {len(view)} bytes cannot be read: {cause}") from cause
    if at != len(view):
        raise Invalid(f"a batch of changes of {len(view)} bytes ends at {at}")
    return found


class StateLog:
    """The last batches of a primary, numbered. May be used from any thread."""

    def __init__(self, engine: KeyValueEngine, *, kept_size_max: int = KEPT_SIZE_MAX) -> None:
        """Continue after the last batch of a store's database."""
        self._engine = engine
        self._before = before = read_cursor(engine)
        self._run = token_bytes(16)
        self._number, self._position = before.number, PhysicalOffset(max(0, before.position))
        self._kept: list[StateBatch] = []
        self._kept_size = 0
        self._kept_size_max = kept_size_max
        self._staged: StateBatch | None = None
        self._lock = Lock()
        self._end: Callable[[], PhysicalOffset] = lambda: PhysicalOffset(0)

    def rest_on(self, dispatched_up_to: Callable[[], PhysicalOffset]) -> None:
        """From now on batches rest on what this function returns."""
        self._end = dispatched_up_to

    # -- Recorder

    def stage(self, changes: Sequence[Change], batch: WriteBatch) -> None:
        sent = [change for change in changes if change[1] != META or not is_own_row(META, change[2])]
        data = encode_changes(sent) if sent else b""
        with self._lock:
            position = PhysicalOffset(max(self._end(), self._position))
            self._staged = StateBatch(self._number + 1, position, data) if sent else None
        if sent:
            put_cursor(self._engine, batch, StateCursor(self._run, self._number + 1, AS_PRIMARY))

    def written(self) -> None:
        with self._lock:
            staged, self._staged = self._staged, None
            if staged is None:
                return
            self._number, self._position = staged.number, staged.position
            self._kept.append(staged)
            self._kept_size += _memory_of(staged)
            if self._kept_size > self._kept_size_max:
                self._drop_oldest()

    def _drop_oldest(self) -> None:
        """Make room for some batches at once, because the list of those that stay is moved."""
        size_max = self._kept_size_max - self._kept_size_max // 256
        dropped = 0
        while self._kept_size > size_max:
            self._kept_size -= _memory_of(self._kept[dropped])
            dropped += 1
        del self._kept[:dropped]

    # -- for copies

    @property
    def cursor(self) -> StateCursor:
        """Return how far the store is: its last batch, and what all later ones rest on at least."""
        with self._lock:
            end = self._end() if self._staged is None else self._staged.position  # it is being written
            return StateCursor(self._run, self._number, PhysicalOffset(max(end, self._position)))

    def since(self, cursor: StateCursor, limit: int) -> list[StateBatch] | None:
        """Return at most `limit` batches after a cursor; None if the copy has to take all rows.

        That is so if the copy has no rows, if the batches are not kept any more, or if the copy has changes that this
        store does not have.
        """
        with self._lock:
            first = self._kept[0].number if self._kept else self._number + 1
            same_run = cursor.run == self._run and cursor.number <= self._number
            # the rows of a store that was neither a primary nor a copy are in no batch
            was_there = cursor[:2] == self._before[:2] != NO_CURSOR[:2]
            if not (same_run or was_there) or cursor.number + 1 < first:
                return None
            skipped = cursor.number + 1 - first
            return self._kept[skipped : skipped + limit]


def all_rows(engine: RecordingEngine, log: StateLog) -> tuple[StateCursor, Iterator[bytes]]:
    """Return how far the store is now, and all rows that copies have, as parts for the wire.

    Close the iterator if it is not read to its end: it holds a snapshot of the database.
    """
    with engine.paused():
        snapshot, cursor = engine.snapshot(), log.cursor

    def parts() -> Iterator[bytes]:
        with snapshot:
            rows = (
                Change(ChangeKind.PUT, name, key, value)
                for name in FAMILIES
                for key, value in engine.family(name).iterate(ALL_KEYS, snapshot=snapshot)
                if not is_own_row(name, key)
            )
            part: list[Change] = []
            size = 0
            for row in rows:
                part.append(row)
                size += len(row.key) + len(row.value)
                if size >= PART_SIZE:
                    yield encode_changes(part)
                    part, size = [], 0
            yield encode_changes(part)

    return cursor, parts()
