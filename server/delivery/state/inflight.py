"""Deliveries that are handed out and not yet acknowledged, as rows of the `inflight` family.

Each has a row, and an entry in the due index, which orders rows by the time when they become visible again:

    Key:   see `store.state.in_flight_key`
    Value: i64 visible_at_ms, i64 delivery id, i64 lease_until_ms (0: no auto-renewal), i32 attempt, client id (UTF-8);
           for ordered groups a zero byte and the attempt id (UTF-8) of the receive

    Key:   0xFFFF, group and topic as above, i64 visible_at_ms, i32 queue number, i64 queue offset
    Value: empty

The row exists from the first hand-out to the acknowledgement. `visible_at_ms` in the past means that the message waits
for its next delivery. An entry of the index that does not agree with its row is ignored.

Only rows that are not written yet or were written a moment ago are kept in memory: a group may have a million messages
in flight.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from struct import Struct
from typing import Final, NamedTuple

import structlog

from quarry_mq.kv import KeyRange, KeyValueEngine, WriteBatch
from quarry_mq.kv.keys import prefix_end, prefix_range
from quarry_mq.protocol.clock import JUMP_MAX_MS
from quarry_mq.store.metadata.groups import BACKOFF_MS_MAX
from quarry_mq.store.offsets import QueueId, QueueOffset
from quarry_mq.store.state.families import INFLIGHT
from quarry_mq.store.state.in_flight_key import (
    INDEX_BEGIN,
    ROWS,
    group_of,
    index_key,
    pack_position,
    parse_key,
    parse_position,
    prefix_of_group,
    subscription_prefix,
)

log = structlog.get_logger(__name__)

CHANGED_AT_ONCE: Final = 10_000
ROWS_BY_KEY_MAX: Final = 64

_VALUE: Final = Struct(">qqqi")
_TIME: Final = Struct(">q")
_TIME_AND_ID: Final = Struct(">qq")
_ATTEMPT_ID_BEGIN: Final = b"\0"
assert _VALUE.size == 28


class InFlight(NamedTuple):
    """Describe one delivery of a message, as its row holds it."""

    visible_at_ms: int
    delivery_id: int
    lease_until_ms: int
    attempt: int
    client_id: str
    attempt_id: str = ""

    def encode(self) -> bytes:
        value = _VALUE.pack(*self[:4]) + self.client_id.encode()
        return value + _ATTEMPT_ID_BEGIN + self.attempt_id.encode() if self.attempt_id else value

    @classmethod
    def decode(cls, value: bytes) -> InFlight:
        client_id, _, attempt_id = value[_VALUE.size :].partition(_ATTEMPT_ID_BEGIN)
        visible_at_ms, delivery_id, lease_until_ms, attempt = _VALUE.unpack_from(value)
        return cls(visible_at_ms, delivery_id, lease_until_ms, attempt, client_id.decode(), attempt_id.decode())


class DueEntry(NamedTuple):
    """An entry of the due index: when a row becomes visible."""

    visible_at_ms: int
    number: int
    offset: QueueOffset

    @property
    def following(self) -> DueEntry:
        """Return the position right after this entry."""
        return DueEntry(self.visible_at_ms, self.number, QueueOffset(self.offset + 1))


class TableStats(NamedTuple):
    """The number of rows of each group, their highest delivery id, and when the last of them becomes visible."""

    counts: Counter[str]
    highest_id: int
    latest_ms: int


class InFlightTable:
    """The table of rows, by group, topic, queue and offset. `prefix` is the key prefix of a group and topic."""

    def __init__(self, engine: KeyValueEngine) -> None:
        self._engine = engine
        self._family = engine.family(INFLIGHT)

    # -- writing

    def put(self, batch: WriteBatch, prefix: bytes, number: int, offset: int, row: InFlight) -> None:
        """Add the row. An earlier row at this offset has to be deleted first, because of its index entry."""
        key, value = prefix + pack_position(number, offset), row.encode()
        batch.put(self._family, key, value)
        batch.put(self._family, index_key(key, value), b"")

    def put_all(self, batch: WriteBatch, prefix: bytes, number: int, rows: Mapping[QueueOffset, InFlight]) -> None:
        """Add rows of one queue. The index entries come after the rows: RocksDB inserts neighbouring keys quickly."""
        index, pack_time = INDEX_BEGIN + prefix, _TIME.pack
        pairs, entries = [], []
        for offset, row in rows.items():
            position = pack_position(number, offset)
            pairs.append((prefix + position, row.encode()))
            entries.append((index + pack_time(row.visible_at_ms) + position, b""))
        pairs += entries
        batch.put_all(self._family, pairs)

    def delete(self, batch: WriteBatch, prefix: bytes, number: int, offset: int, row: InFlight) -> None:
        position = pack_position(number, offset)
        batch.delete(self._family, prefix + position)
        batch.delete(self._family, INDEX_BEGIN + prefix + _TIME.pack(row.visible_at_ms) + position)

    def delete_each(self, batch: WriteBatch, prefix: bytes, rows: Iterable[tuple[int, QueueOffset, int]]) -> None:
        """Delete rows of a subscription, each given as queue number, offset, and when it becomes visible."""
        index, pack_time = INDEX_BEGIN + prefix, _TIME.pack
        keys, entries = [], []
        for number, offset, visible_at_ms in rows:
            position = pack_position(number, offset)
            keys.append(prefix + position)
            entries.append(index + pack_time(visible_at_ms) + position)
        keys += entries
        batch.delete_all(self._family, keys)

    def delete_entry(self, batch: WriteBatch, prefix: bytes, entry: DueEntry) -> None:
        """Delete an entry of the index that does not agree with its row."""
        position = pack_position(entry.number, entry.offset)
        batch.delete(self._family, INDEX_BEGIN + prefix + _TIME.pack(entry.visible_at_ms) + position)

    def delete_queue(self, batch: WriteBatch, prefix: bytes, number: int, start: int = 0) -> None:
        """Delete all rows of one queue from an offset on. Their index entries are ignored from then on."""
        batch.delete_range(
            self._family, KeyRange(prefix + pack_position(number, start), prefix + pack_position(number + 1, 0))
        )

    def delete_all(self, batch: WriteBatch, prefix: bytes) -> None:
        """Delete all rows whose key begins with the prefix of a group, or of a group and topic."""
        for begin in (prefix, INDEX_BEGIN + prefix):
            batch.delete_range(self._family, prefix_range(begin))

    def delete_counted(self, batch: WriteBatch, prefix: bytes) -> int:
        """Delete all rows with the prefix, as `delete_all`, and return how many they are. A few are deleted one by one.

        Lite topics are deleted by the hundred thousand, most with hardly a row, and range deletes in a memtable make
        each read slower. Index entries without a row are ignored from then on.
        """
        rows = list(islice(self.rows(prefix), ROWS_BY_KEY_MAX + 1))
        if len(rows) > ROWS_BY_KEY_MAX:
            self.delete_all(batch, prefix)
            return self.count(prefix)
        for key, value in rows:
            batch.delete(self._family, key)
            batch.delete(self._family, index_key(key, value))
        return len(rows)

    # -- reading

    def get(self, prefix: bytes, number: int, offset: int) -> InFlight | None:
        value = self._family.get(prefix + pack_position(number, offset))
        return None if value is None else InFlight.decode(value)

    def get_many(self, prefix: bytes, positions: Iterable[tuple[int, int]]) -> list[InFlight | None]:
        """Return the rows of a subscription at some positions, each a queue number and an offset."""
        values = self._family.get_many([prefix + pack_position(number, offset) for number, offset in positions])
        return [None if value is None else InFlight.decode(value) for value in values]

    def of_queue(
        self, prefix: bytes, number: int, start: int = 0, limit: int | None = None
    ) -> list[tuple[QueueOffset, InFlight]]:
        """Return the rows of one queue from an offset on."""
        keys = KeyRange(prefix + pack_position(number, start), prefix + pack_position(number + 1, 0))
        rows = self._family.scan(keys, limit=limit)
        at = len(prefix)
        return [(parse_position(key, at)[1], InFlight.decode(value)) for key, value in rows]

    def due(self, prefix: bytes, start: DueEntry, until_ms: int, limit: int) -> list[DueEntry]:
        """Return the entries of the due index from a position on, up to those of a time; the earliest first."""
        begin = INDEX_BEGIN + prefix
        first = begin + _TIME.pack(start.visible_at_ms) + pack_position(start.number, start.offset)
        rows = self._family.scan(KeyRange(first, begin + _TIME.pack(until_ms + 1)), limit=limit)
        at = len(begin)
        found = []
        for key, _ in rows:
            (visible_at_ms,) = _TIME.unpack_from(key, at)
            number, offset = parse_position(key, at + _TIME.size)
            found.append(DueEntry(visible_at_ms, number, offset))
        return found

    def first_due_ms(self, prefix: bytes, from_ms: int) -> int | None:
        """Return the time of the first entry from a time on, or None if there is none."""
        begin = INDEX_BEGIN + prefix
        rows = self._family.scan(KeyRange(begin + _TIME.pack(from_ms), prefix_end(begin)), limit=1)
        found: int | None = _TIME.unpack_from(rows[0][0], len(begin))[0] if rows else None
        return found

    def count(self, prefix: bytes, number: int | None = None) -> int:
        """Return the number of rows of a group, of a group on a topic, or of one queue of it. All of them are read."""
        keys = prefix_range(prefix)
        if number is not None:
            keys = KeyRange(prefix + pack_position(number, 0), prefix + pack_position(number + 1, 0))
        return sum(1 for _ in self._family.iterate(keys))

    def rows(self, prefix: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Return the rows of a group on a topic as they are written now, undecoded."""
        return self._family.iterate(prefix_range(prefix))

    def rows_below(self, prefix: bytes, number: int, end: int) -> Iterator[tuple[bytes, bytes]]:
        """Return the rows of one queue below an offset as they are written now, undecoded."""
        return self._family.iterate(KeyRange(prefix + pack_position(number, 0), prefix + pack_position(number, end)))

    def stats(self) -> TableStats:
        """Return the figures of the table. All rows are read."""
        counts, highest, latest_ms, count = Counter[str](), 0, 0, 0
        prefix = b""
        for key, value in self._family.iterate(ROWS):
            if not prefix or not key.startswith(prefix):
                if count:
                    counts[group_of(prefix)] += count
                prefix, count = prefix_of_group(key), 0
            count += 1
            visible_at_ms, delivery_id = _TIME_AND_ID.unpack_from(value)
            highest, latest_ms = max(highest, delivery_id), max(latest_ms, visible_at_ms)
        if count:
            counts[group_of(prefix)] += count
        return TableStats(counts, highest, latest_ms)

    def show_beyond(self, now_ms: int, latest_ms: int, hidden_max_ms: int) -> None:
        """Make messages visible now that are hidden for longer than is allowed.

        Such messages may be hidden for years, if an earlier broker had a clock that was as far ahead. `latest_ms` is
        the `latest_ms` of `figures`.
        """
        beyond_ms = now_ms + max(hidden_max_ms, BACKOFF_MS_MAX) + JUMP_MAX_MS
        if latest_ms <= beyond_ms:
            return
        count, batch = 0, self._engine.batch()
        for key, value in self._family.iterate(ROWS):
            row = InFlight.decode(value)
            if row.visible_at_ms > beyond_ms:
                shown = row._replace(visible_at_ms=now_ms, lease_until_ms=min(row.lease_until_ms, now_ms)).encode()
                batch.delete(self._family, index_key(key, value))
                batch.put(self._family, key, shown)
                batch.put(self._family, index_key(key, shown), b"")
                count += 1
                if count % CHANGED_AT_ONCE == 0:
                    self._engine.write(batch)
                    batch = self._engine.batch()
        if len(batch):
            self._engine.write(batch)
        log.warning("messages were hidden by a clock that was far ahead, they come back now", messages=count)

    def make_ready(self, leases_until_ms: int | None) -> None:
        """Prepare the table after a start. With `leases_until_ms`, no lease lasts for longer than until then."""
        self.make_index()
        if leases_until_ms is not None:
            self.shorten_leases(leases_until_ms)

    def make_index(self) -> None:
        """Create the due index where it is missing: rows of an earlier version have none."""
        if self._family.scan(KeyRange(INDEX_BEGIN, None), limit=1):
            return
        batch = self._engine.batch()
        for group, queue, offset, row in self.all_rows():
            self.put(batch, subscription_prefix(group, queue.topic), queue.number, offset, row)
        if len(batch):
            self._engine.write(batch)

    def shorten_leases(self, until_ms: int) -> None:
        """Shorten leases to that time. Rows become visible when they would have anyway."""
        batch = self._engine.batch()
        for key, value in self._family.iterate(ROWS):
            row = InFlight.decode(value)
            if row.lease_until_ms > until_ms:
                batch.put(self._family, key, row._replace(lease_until_ms=until_ms).encode())
                if len(batch) >= CHANGED_AT_ONCE:
                    self._engine.write(batch)
                    batch = self._engine.batch()
        if len(batch):
            self._engine.write(batch)

    def all_rows(self) -> Iterator[tuple[str, QueueId, QueueOffset, InFlight]]:
        """Yield every row, decoded."""
        for key, value in self._family.iterate(ROWS):
            yield *parse_key(key), InFlight.decode(value)
