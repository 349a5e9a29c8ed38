"""Keep the change log of the shared rows: their versions and order, written in the same batches as the rows.

One lock is held from the first sequence that a batch is given until the batch is written. So a reader of the order of
changes finds no gap that is filled later, and a row is always written with its own version.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from threading import RLock
from typing import Final

from quarry_mq.kv import KeyValueEngine, WriteBatch
from quarry_mq.protocol.clock import Clock
from quarry_mq.store.replication.horizons import StoredHorizons
from quarry_mq.store.replication.rows import (
    AHEAD_MAX_MS,
    CLOCK,
    COUNTER_MAX,
    EVERYTHING,
    INCARNATION,
    INCARNATION_BYTES,
    MEMBER,
    MICROSECONDS,
    ORDER_RANGE,
    SEEN_MAX,
    VALUES,
    VERSIONS,
    SharedKind,
    SharedRow,
    Stamp,
    Version,
    decode_clock,
    encode_clock,
    is_shared,
    member_id,
    order_key,
    parse_order_key,
    row_id,
)
from quarry_mq.store.state.identity import SHARED


class HybridClock:
    """The hybrid clock assigns versions. It is used by one thread at a time."""

    def __init__(self, clock: Clock, member: bytes) -> None:
        self._clock = clock
        self._member = member
        self.time_ms = 0
        self.counter = 0

    def next(self) -> Version:
        """Return a version later than all that were assigned or seen, whatever the machine's clock says."""
        wall_ms = self._clock.wall_ms()
        if wall_ms > self.time_ms:
            self.time_ms, self.counter = wall_ms, 0
        elif self.counter < COUNTER_MAX:
            self.counter += 1
        else:
            self.time_ms, self.counter = self.time_ms + 1, 0
        return Version(self.time_ms, self.counter, self._member)

    def saw(self, time_ms: int, counter: int) -> None:
        """Note a version with this time, which another member wrote, or this clock before a restart."""
        self.time_ms, self.counter = max((self.time_ms, self.counter), (time_ms, counter))


COUNTER_LEAP: Final = 1 << 20


class ChangeLog:
    """The change log of one open store, in the family `shared`. It records nothing until `begin` was called once."""

    def __init__(self, engine: KeyValueEngine, clock: Clock, member: str) -> None:
        """Open the change log. `member` is the name under which this store writes. Writes nothing."""
        self.engine = engine
        self.family = engine.family(SHARED)
        self.member = member
        self.clock = clock
        self.writing: Final = RLock()
        self._id = member_id(member)
        self._versions = HybridClock(clock, self._id)  # guarded by writing, as all that follows
        self.horizons = StoredHorizons(engine, self.family)
        self.incarnation = self.family.get(INCARNATION)
        self.sequence = 0
        self.own_changes = 0
        self.changed: Callable[[], None] = _nobody
        """A callback for any thread: this store is about to write a change of its own."""
        if self.incarnation is not None:
            self._load()

    @property
    def is_enabled(self) -> bool:
        return self.incarnation is not None

    def journal(self, kind: SharedKind) -> KindJournal:
        return KindJournal(self, kind)

    def clear(self) -> None:
        """Delete what an earlier `begin` that was killed has left."""
        batch = self.engine.batch()
        batch.delete_range(self.family, EVERYTHING)
        self.engine.write(batch, sync=True)

    def begin(self) -> None:
        """Record all changes from now on: all existing rows have versions."""
        incarnation = secrets.token_bytes(INCARNATION_BYTES)
        batch = self.engine.batch()
        batch.put(self.family, INCARNATION, incarnation)
        batch.put(self.family, MEMBER, self.member.encode())
        self.engine.write(batch, sync=True)
        self.incarnation = incarnation

    def go_on(self) -> None:
        """Open a change log that has begun earlier, perhaps under another member name."""
        if self.family.get(MEMBER) != self.member.encode():
            batch = self.engine.batch()
            batch.put(self.family, MEMBER, self.member.encode())
            self.engine.write(batch, sync=True)

    def stamp(self, kind: str, name: str) -> Stamp | None:
        return self.stamps([row_id(kind, name)])[0]

    def stamps(self, rows: Sequence[bytes]) -> list[Stamp | None]:
        """Return the stamps of rows by `row_id`. Raises StoreDamaged."""
        found = self.family.get_many([VERSIONS + row for row in rows])
        return [None if data is None else Stamp.decode(data) for data in found]

    def stage_own(self, batch: WriteBatch, kind: str, name: str, *, deleted: bool) -> None:
        """Stage a change of a row that this store makes."""
        self._put_own(batch, kind, name, self.stamp(kind, name), self._versions.next(), deleted=deleted)

    def stage_made_by_use(self, batch: WriteBatch, kind: str, name: str) -> None:
        """Stage a row that was created automatically: a row that another member made on purpose must win over it.

        So its version is only slightly later than what is known of the name, or, where nothing is known, than the
        deletions that may have been dropped.
        """
        before = self.stamp(kind, name)
        base = self._forgotten_until_ms(), 0
        if before is not None:
            base = max(base, (before.version.time_ms, before.version.counter))
        # random, for the reason that `_load` gives
        time_ms, counter = base[0], base[1] + 1 + secrets.randbelow(COUNTER_LEAP)
        if counter > COUNTER_MAX:
            time_ms, counter = time_ms + 1, 0
        self._versions.saw(time_ms, counter)
        self._put_own(batch, kind, name, before, Version(time_ms, counter, self._id), deleted=False)

    def stage_first(self, batch: WriteBatch, kind: str, name: str) -> None:
        """Stage a row that was there before its store was in a cluster: any change made in a cluster is later."""
        lowest = Version(0, 0, self._id)
        self._put(batch, kind, name, None, Stamp(lowest, None, (), deleted=False, sequence=self._next_sequence()))

    def stage_taken(self, batch: WriteBatch, row: SharedRow, before: Stamp | None, *, unread: bool = False) -> None:
        """Stage a row that is taken over from another store; if `unread`, its value is kept here instead of in its
        table.
        """
        self._versions.saw(row.version.time_ms, row.version.counter)
        stamp = Stamp(row.version, row.based_on, row.seen, row.value is None, self._next_sequence(), unread)
        self._put(batch, row.kind, row.name, before, stamp)
        if unread:
            self.stage_value(batch, row.kind, row.name, row.value)

    def stage_read(self, batch: WriteBatch, kind: str, name: str, stamp: Stamp) -> None:
        """Stage the move of a value into its table: it could not be understood before an upgrade."""
        batch.put(self.family, VERSIONS + row_id(kind, name), replace(stamp, unread=False).encode())
        self.stage_value(batch, kind, name, None)

    def stage_gone(self, batch: WriteBatch, kind: str, name: str, stamp: Stamp) -> None:
        """Stage that a row, or its deletion, is dropped from the change log."""
        batch.delete(self.family, VERSIONS + row_id(kind, name))
        batch.delete(self.family, order_key(stamp.sequence))
        if stamp.unread:
            self.stage_value(batch, kind, name, None)

    def stage_value(self, batch: WriteBatch, kind: str, name: str, value: bytes | None) -> None:
        """Stage the value of a row that has no table."""
        key = VALUES + row_id(kind, name)
        if value is None:
            batch.delete(self.family, key)
        else:
            batch.put(self.family, key, value)

    def _put_own(
        self, batch: WriteBatch, kind: str, name: str, before: Stamp | None, version: Version, *, deleted: bool
    ) -> None:
        based_on = None if before is None else before.version
        seen = () if before is None else self._seen(before)
        self._put(batch, kind, name, before, Stamp(version, based_on, seen, deleted, self._next_sequence()))
        self.own_changes += 1
        self.changed()

    def _put(self, batch: WriteBatch, kind: str, name: str, before: Stamp | None, stamp: Stamp) -> None:
        row = row_id(kind, name)
        if before is not None:
            batch.delete(self.family, order_key(before.sequence))
            if before.unread:
                self.stage_value(batch, kind, name, None)
        batch.put(self.family, VERSIONS + row, stamp.encode())
        batch.put(self.family, order_key(stamp.sequence), row)
        batch.put(self.family, CLOCK, encode_clock(self._versions.time_ms, self._versions.counter))

    def _forgotten_until_ms(self) -> int:
        """Return a time such that no later version of a deletion was dropped."""
        until = max(self.horizons.now.forgotten.values(), default=0)
        return min(until // MICROSECONDS + AHEAD_MAX_MS, self.clock.wall_ms()) if until else 0

    def _next_sequence(self) -> int:
        # By time: a store that is restored from a copy never reuses a sequence that others have read up to.
        self.sequence = max(self.sequence + 1, self.clock.wall_ms() * MICROSECONDS)
        return self.sequence

    def _seen(self, before: Stamp) -> tuple[Version, ...]:
        """Return the versions that a change of the row has seen besides the version that it is based on."""
        known = before.seen if before.based_on is None else (before.based_on, *before.seen)
        others = (each for each in known if each.member not in {self._id, before.version.member})
        newest: dict[bytes, Version] = {}
        for version in sorted(others, reverse=True):
            newest.setdefault(version.member, version)
        return tuple(newest.values())[:SEEN_MAX]

    def _load(self) -> None:
        clock = self.family.get(CLOCK)
        if clock is not None:
            time_ms, counter = decode_clock(clock)
            # While this clock is ahead of the machine's, only counters tell versions apart: a store that is restored
            # from a copy must not assign versions again that it assigned after the copy was made.
            self._versions.saw(time_ms, min(counter + secrets.randbelow(COUNTER_LEAP), COUNTER_MAX))
        last = self.family.scan(ORDER_RANGE, limit=1, reverse=True)
        self.sequence = parse_order_key(last[0][0]) if last else 0


def _nobody() -> None:
    pass


class KindJournal:
    """The journal implements `store.metadata.rows.RowJournal` for the table of one kind."""

    def __init__(self, change_log: ChangeLog, kind: SharedKind) -> None:
        self._change_log = change_log
        self._kind = kind

    @property
    def writing(self) -> AbstractContextManager[object]:
        return self._change_log.writing

    def stage(self, batch: WriteBatch, name: str, value: bytes | None, *, by_use: bool = False) -> None:
        if not self._change_log.is_enabled or not is_shared(self._kind, name):
            return
        if by_use:
            self._change_log.stage_made_by_use(batch, self._kind, name)
        else:
            self._change_log.stage_own(batch, self._kind, name, deleted=value is None)


def open_change_log(engine: KeyValueEngine, clock: Clock, member: str | None) -> ChangeLog | None:
    """Open the change log of a member; without a name, that of a store that once was a member, under its last name.

    Returns None for a store that never was in a cluster.
    """
    if member is None:
        stored = engine.family(SHARED).get(MEMBER)
        if stored is None:
            return None
        member = stored.decode()
    return ChangeLog(engine, clock, member)
