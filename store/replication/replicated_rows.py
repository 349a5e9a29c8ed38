"""The module exchanges shared rows: what a store sends to others, and what it takes over from them (docs/adr/0030)."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Final, Protocol

from quarry_mq.kv import Family, KeyRange, WriteBatch
from quarry_mq.kv.keys import prefix_range
from quarry_mq.store.errors import Invalid, StoreDamaged
from quarry_mq.store.metadata.rows import Changes, Resolve
from quarry_mq.store.replication.change_log import ChangeLog
from quarry_mq.store.replication.horizons import NOTHING_TOLD, Horizons
from quarry_mq.store.replication.row_checks import VALUE_BYTES_MAX, check_horizons, check_rows, is_unread, row_fault
from quarry_mq.store.replication.rows import (
    MICROSECONDS,
    ORDER_RANGE,
    POSITIONS,
    VALUES,
    VERSIONS,
    Applied,
    ChangePage,
    Conflict,
    Position,
    SharedKind,
    SharedRow,
    Stamp,
    decode_position,
    encode_position,
    is_shared,
    kind_range,
    name_fault,
    order_key,
    parse_order_key,
    parse_row_id,
    position_key,
    row_id,
    was_known,
)
from quarry_mq.store.state.identity import GROUPS, POLICIES, TOPICS, USERS

PAGE_ROWS_MAX: Final = 1000
PAGE_BYTES_MAX: Final = 1 << 20
"""Bytes of names, versions and values in a page. A page has at least one row, which may be as long."""

APPLIED_AT_ONCE: Final = 500
"""Rows of one batch: local changes wait meanwhile, for some ten milliseconds."""

READ_AT_ONCE: Final = 64
TABLES: Final[Mapping[SharedKind, str]] = {
    SharedKind.TOPIC: TOPICS,
    SharedKind.GROUP: GROUPS,
    SharedKind.USER: USERS,
    SharedKind.POLICY: POLICIES,
}
"""The families of the kinds that have tables."""


class SharedTable(Protocol):
    """A shared table holds the rows of one kind."""

    def take_over(self, resolve: Resolve) -> object:
        """Take over rows as `store.metadata.rows.NamedRows.take_over` does."""


class _Taken:
    """The object collects the changes that an `apply` has made so far."""

    def __init__(self) -> None:
        self.changed: list[SharedRow] = []
        self.conflicts: list[Conflict] = []
        self.unread: list[SharedRow] = []

    @property
    def done(self) -> Applied:
        return Applied(tuple(self.changed), tuple(self.conflicts), tuple(self.unread))


class ReplicatedRows:
    """The shared rows of one open store. Any thread may call its methods; changes are durable on return.

    Lock order: the locks of a table, then that of the change log.
    """

    def __init__(self, change_log: ChangeLog, tables: Mapping[SharedKind, SharedTable]) -> None:
        """Make the shared rows. `tables` are those of all kinds in `TABLES`, with journals of this change log."""
        self._change_log = change_log
        self._engine = change_log.engine
        self._family = change_log.family
        self._horizons = change_log.horizons
        self._values: dict[str, Family] = {kind: change_log.engine.family(name) for kind, name in TABLES.items()}
        self._tables: dict[str, SharedTable] = {str(kind): table for kind, table in tables.items()}
        self._tables[SharedKind.MEMBER] = _Values(change_log, SharedKind.MEMBER)

    def enable(self) -> None:
        """Record all changes from here on. Rows that exist already get the lowest version, once.

        If this crashes, the store was never enabled.
        """
        if self._change_log.is_enabled:
            self._change_log.go_on()
            self._read_what_is_understood_now()
            return
        self._change_log.clear()
        for kind, family in self._values.items():
            keys = KeyRange(b"", None)
            while page := family.scan(keys, limit=PAGE_ROWS_MAX):
                batch = self._engine.batch()
                for name in (key.decode() for key, _ in page):
                    if is_shared(kind, name):
                        self._change_log.stage_first(batch, kind, name)
                self._engine.write(batch)
                keys = KeyRange(page[-1][0] + b"\0", None)
        self._change_log.begin()

    def _read_what_is_understood_now(self) -> None:
        """Move values that an earlier version of Quarry did not understand into their tables, if this version does."""
        for kind in TABLES:
            keys = kind_range(VALUES, kind)
            while page := self._family.scan(keys, limit=READ_AT_ONCE):
                names = [parse_row_id(key[len(VALUES) :])[1] for key, _ in page]
                self._table_of(kind).take_over(partial(self._adopt, kind, names))
                keys = KeyRange(page[-1][0] + b"\0", keys.end)

    def _adopt(self, kind: str, names: Sequence[str], batch: WriteBatch) -> Changes:
        adopted: dict[str, bytes | None] = {}
        for name in names:
            stamp = self._change_log.stamp(kind, name)
            if stamp is None or not stamp.unread:
                continue
            row = self._row(kind, name, stamp)
            if not is_unread(row) and row_fault(row) is None:
                self._change_log.stage_read(batch, kind, name, stamp)
                adopted[name] = row.value
        return adopted

    def _table_of(self, kind: str) -> SharedTable:
        return self._tables.get(kind) or _Values(self._change_log, kind)

    @property
    def incarnation(self) -> bytes:
        """Return the incarnation: 16 bytes, made once. Positions are valid for one incarnation."""
        assert self._change_log.incarnation is not None
        return self._change_log.incarnation

    @property
    def member(self) -> str:
        """Return the name under which this store writes."""
        return self._change_log.member

    @property
    def sequence(self) -> int:
        """Return the sequence of the last change: when it grows, there are changes to send."""
        return self._change_log.sequence

    @property
    def own_changes(self) -> int:
        """Return how many changes this store itself has made since it was opened."""
        return self._change_log.own_changes

    def on_own_change(self, callback: Callable[[], None]) -> None:
        """Set a callback that any thread calls when this store is about to write a change of its own."""
        self._change_log.changed = callback

    @property
    def horizons(self) -> Horizons:
        """Return what this store knows of each member, itself included, and which deletions were dropped."""
        with self._change_log.writing:
            known, forgotten = self._horizons.now
            # A store that has read no member yet holds no row that another one could have deleted. The last of its own
            # changes may be a deletion that it dropped itself.
            own = {self.member: max(self._change_log.sequence, forgotten.get(self.member, 0))} if known else {}
            return Horizons({**known, **own}, {**forgotten})

    def changes(self, since: int, limit: int = PAGE_ROWS_MAX) -> ChangePage:
        """Return at most `limit` rows, 1 MiB in all, that changed after a sequence (0: all), each at its newest
        position.

        The page is empty while this store reads its first member: it cannot say yet how much it knows.
        """
        limit = max(1, min(limit, PAGE_ROWS_MAX))
        with self._change_log.writing:
            since = since if 0 <= since <= self._change_log.sequence else 0
            horizons = self.horizons
            if not horizons.known and self._has_begun_to_read():
                return ChangePage(self.incarnation, since, (), since, more=False, horizons=horizons)
            rows: list[SharedRow] = []
            size, until = 0, since
            while True:
                entries = self._family.scan(KeyRange(order_key(until + 1), ORDER_RANGE.end), limit=READ_AT_ONCE)
                for (key, _), row in zip(entries, self._read([named for _, named in entries]), strict=True):
                    size += _size(row)
                    if rows and (len(rows) >= limit or size > PAGE_BYTES_MAX):
                        return ChangePage(self.incarnation, since, tuple(rows), until, more=True, horizons=horizons)
                    rows.append(row)
                    until = parse_order_key(key)
                if len(entries) < READ_AT_ONCE:
                    # sequences after the last row belong to rows that changed again, or were dropped
                    until = self._change_log.sequence
                    return ChangePage(self.incarnation, since, tuple(rows), until, more=False, horizons=horizons)

    def apply(
        self,
        rows: Sequence[SharedRow],
        *,
        peer: str,
        until: Position | None,
        since: int | None = None,
        more: bool = False,
        told: Horizons = NOTHING_TOLD,
    ) -> Applied:
        """Take over rows that are newer than those here, then store the position up to which the peer has been read.

        `since`: where the page began. A page that begins after the stored position leaves the position unchanged. Rows
        are durable on return; a position may be lost in a power cut, and the changes after it come again. `more` and
        `told`: as the page says.

        If a row comes twice, the later one counts. A deletion of a row that never was here is a change, too. Raises
        RowRefused, PeerAhead, PeerMissed or DeletionsMissed; then nothing is changed.
        """
        check_horizons(self.horizons, told, peer)
        check_rows(rows, peer, self._change_log.clock.wall_ms())
        taken = self._take(rows)
        if until is not None:
            known = {} if more else {**told.known, peer: until.sequence}
            self._advance(peer, until, since, Horizons(known, told.forgotten))
        return taken.done

    def _take(self, rows: Sequence[SharedRow]) -> _Taken:
        newest: dict[tuple[str, str], SharedRow] = {}
        for row in rows:
            before = newest.get((row.kind, row.name))
            if before is None or before.version < row.version:
                newest[row.kind, row.name] = row
        taken = _Taken()
        self._in_parts(tuple(newest.values()), lambda part, batch: self._resolve(part, taken, batch))
        return taken

    def _in_parts(
        self, rows: Collection[SharedRow], change: Callable[[Sequence[SharedRow], WriteBatch], Changes]
    ) -> None:
        """Let the tables take over the results for these rows, a few hundred of one kind at a time."""
        for kind in dict.fromkeys((*self._tables, *(row.kind for row in rows))):
            its = [row for row in rows if row.kind == kind]
            table = self._table_of(kind)
            for at in range(0, len(its), APPLIED_AT_ONCE):
                table.take_over(partial(change, its[at : at + APPLIED_AT_ONCE]))

    def position(self, peer: str) -> Position | None:
        """Return how far the peer's changes were read; None when none were."""
        data = self._family.get(position_key(peer))
        return None if data is None else decode_position(data)

    def get(self, kind: str, name: str) -> SharedRow | None:
        """Return the row, of any kind; None when there is none or it is deleted."""
        with self._change_log.writing:
            stamp = self._change_log.stamp(kind, name)
            return None if stamp is None or stamp.deleted else self._row(kind, name, stamp)

    def put(self, kind: str, name: str, value: bytes) -> SharedRow:
        """Store a row of a kind that has no table. Raises Invalid for a row that other members would refuse."""
        return self._change(kind, name, value)

    def remove(self, kind: str, name: str) -> bool:
        """Delete a row of a kind that has no table; return whether it existed."""
        with self._change_log.writing:
            if self.get(kind, name) is None:
                return False
            self._change(kind, name, None)
            return True

    def list(self, kind: SharedKind) -> Iterator[SharedRow]:
        """Iterate over all rows of a kind in name order, without the deleted ones, a page at a time."""
        keys = kind_range(VERSIONS, kind)
        while True:
            with self._change_log.writing:
                page = self._family.scan(keys, limit=READ_AT_ONCE)
                rows = self._read([key[len(VERSIONS) :] for key, _ in page])
            yield from (row for row in rows if row.value is not None)
            if len(page) < READ_AT_ONCE:
                return
            keys = KeyRange(page[-1][0] + b"\0", keys.end)

    def unknown_to(self, rows: Sequence[SharedRow], told: Horizons) -> tuple[Sequence[SharedRow], Sequence[SharedRow]]:
        """Return the rows here that the other store does not have: those it once knew, and those it never knew.

        A row that it once knew was deleted there, and the deletion was dropped.
        """
        there = {(row.kind, row.name) for row in rows}
        until = told.known.get(self.member, 0)
        gone: list[SharedRow] = []
        new: list[SharedRow] = []
        keys = ORDER_RANGE
        while True:
            with self._change_log.writing:
                page = self._family.scan(keys, limit=READ_AT_ONCE)
                found = self._read([named for _, named in page])
            for (key, _), row in zip(page, found, strict=True):
                if row.value is not None and (row.kind, row.name) not in there:
                    (gone if parse_order_key(key) <= until else new).append(row)
            if len(page) < READ_AT_ONCE:
                return gone, new
            keys = KeyRange(page[-1][0] + b"\0", ORDER_RANGE.end)

    def rejoin(
        self, rows: Sequence[SharedRow], *, peer: str, until: Position, told: Horizons, gone: Sequence[SharedRow]
    ) -> Applied:
        """Take over all rows of another store after this one missed deletions, and drop rows that were deleted
        meanwhile.

        `gone` are the rows to drop, as `unknown_to` found them; rows that have changed since stay. After a crash the
        store still has to rejoin. Raises as `apply`, except DeletionsMissed.
        """
        check_rows(rows, peer, self._change_log.clock.wall_ms())
        taken = self._take(rows)
        self._in_parts(gone, lambda part, batch: self._drop(part, taken, batch))
        with self._change_log.writing:
            batch = self._engine.batch()
            batch.put(self._family, position_key(peer), encode_position(until))
            self._horizons.replace(batch, Horizons({**told.known, peer: until.sequence}, told.forgotten))
        return taken.done

    def _drop(self, rows: Sequence[SharedRow], taken: _Taken, batch: WriteBatch) -> Changes:
        dropped: dict[str, bytes | None] = {}
        for row, stamp in zip(rows, self._change_log.stamps([row_id(row.kind, row.name) for row in rows]), strict=True):
            if stamp is not None and stamp.version == row.version:
                self._change_log.stage_gone(batch, row.kind, row.name, stamp)
                taken.changed.append(replace(row, value=None))
                dropped[row.name] = None
        return dropped

    def delete_tombstones(self, before_ms: int) -> int:
        """Drop the deletions that this store heard of before a time (ms since 1970); return how many.

        A member that has not heard of such a deletion by then has to rejoin.
        """
        deleted, until = 0, 0
        keys = prefix_range(VERSIONS)
        while True:
            with self._change_log.writing:
                page = self._family.scan(keys, limit=PAGE_ROWS_MAX)
                batch = self._engine.batch()
                for key, data in page:
                    stamp = Stamp.decode(data)
                    if stamp.deleted and stamp.sequence < before_ms * MICROSECONDS:
                        self._change_log.stage_gone(batch, *parse_row_id(key[len(VERSIONS) :]), stamp)
                        deleted += 1
                        until = max(until, stamp.sequence)
                if len(batch):
                    self._horizons.write(batch, Horizons(forgotten={self.member: until}), sync=True)
            if len(page) < PAGE_ROWS_MAX:
                return deleted
            keys = KeyRange(page[-1][0] + b"\0", keys.end)

    def _resolve(self, rows: Sequence[SharedRow], taken: _Taken, batch: WriteBatch) -> Changes:
        """Return those rows of one kind that win; the locks of their table and of the change log are held."""
        stamps = self._change_log.stamps([row_id(row.kind, row.name) for row in rows])
        winners: dict[str, bytes | None] = {}
        for row, here in zip(rows, stamps, strict=True):
            if here is not None:
                if here.version >= row.version:
                    continue
                if not was_known(here.version, row) and self._row(row.kind, row.name, here).value != row.value:
                    conflict = Conflict(row.kind, row.name, overwritten=here.version, kept=row.version)
                    taken.conflicts.append(conflict)
            unread = is_unread(row)
            self._change_log.stage_taken(batch, row, here, unread=unread)
            taken.changed.append(row)
            if unread:
                taken.unread.append(row)
            else:
                winners[row.name] = row.value
        return winners

    def _has_begun_to_read(self) -> bool:
        return bool(self._family.scan(prefix_range(POSITIONS), limit=1))

    def _advance(self, peer: str, until: Position, since: int | None, told: Horizons) -> None:
        with self._change_log.writing:
            before = self.position(peer)
            if since:
                if before is None or before.incarnation != until.incarnation or before.sequence < since:
                    return  # the changes before this page were never read
                until = max(before, until, key=lambda position: position.sequence)
            batch = self._engine.batch()
            if until != before:
                batch.put(self._family, position_key(peer), encode_position(until))
            self._horizons.write(batch, told)

    def _change(self, kind: str, name: str, value: bytes | None) -> SharedRow:
        if kind in TABLES:
            raise Invalid(f"rows of kind {kind} are changed through their table")
        fault = name_fault(kind, name)
        if fault is not None:
            raise Invalid(f"{kind} {name[:60]!r}: {fault}")
        if value is not None and len(value) > VALUE_BYTES_MAX:
            raise Invalid(f"{kind} {name}: {len(value)} bytes, at most {VALUE_BYTES_MAX} are allowed")
        with self._change_log.writing:
            batch = self._engine.batch()
            self._change_log.stage_own(batch, kind, name, deleted=value is None)
            self._change_log.stage_value(batch, kind, name, value)
            self._engine.write(batch, sync=True)
            stamp = self._change_log.stamp(kind, name)
            assert stamp is not None
            return self._row(kind, name, stamp)

    def _read(self, named: Sequence[bytes]) -> Sequence[SharedRow]:
        rows = []
        for row, stamp in zip(named, self._change_log.stamps(named), strict=True):
            kind, name = parse_row_id(row)
            if stamp is None:
                raise _damaged(kind, name, "no version")
            rows.append(self._row(kind, name, stamp))
        return rows

    def _row(self, kind: str, name: str, stamp: Stamp) -> SharedRow:
        value = None if stamp.deleted else self._value(kind, name, unread=stamp.unread)
        return SharedRow(kind, name, stamp.version, stamp.based_on, value, stamp.seen)

    def _value(self, kind: str, name: str, *, unread: bool) -> bytes:
        family = None if unread else self._values.get(kind)
        value = self._family.get(VALUES + row_id(kind, name)) if family is None else family.get(name.encode())
        if value is None:
            raise _damaged(kind, name, "no value")  # never sent as a deletion
        return value


class _Values:
    """The table holds a kind whose rows lie beside their versions; it implements `SharedTable`."""

    def __init__(self, change_log: ChangeLog, kind: str) -> None:
        self._change_log = change_log
        self._kind = kind

    def take_over(self, resolve: Resolve) -> None:
        with self._change_log.writing:
            batch = self._change_log.engine.batch()
            for name, value in resolve(batch).items():
                self._change_log.stage_value(batch, self._kind, name, value)
            if len(batch):
                self._change_log.engine.write(batch, sync=True)


def _size(row: SharedRow) -> int:
    return 64 + 20 * len(row.seen) + len(row.name) + len(row.value or b"")


def _damaged(kind: str, name: str, reason: str) -> StoreDamaged:
    return StoreDamaged(Path("quarry"), f"table shared, {kind} {name!r}: {reason}")
