"""Deliveries handed out and not yet acknowledged, rows of the `inflight` family, and the writer of all delivery state.

Each delivery has a row, and an entry in the due index, which orders rows by the time when they become visible again:

    Key:   see `store.state.in_flight_key`
    Value: i64 visible_at_ms, i64 delivery id, i64 lease_until_ms (0: no auto-renewal), i32 attempt, client id (UTF-8);
           for ordered groups a zero byte and the attempt id (UTF-8) of the receive

    Key:   0xFFFF, group and topic as above, i64 visible_at_ms, i32 queue number, i64 queue offset
    Value: empty

The row exists from the first hand-out to the acknowledgement. `visible_at_ms` in the past means that the message waits
for its next delivery. An entry of the index that does not agree with its row is ignored.

Only rows that are not written yet or were written a moment ago are kept in memory: a group may have a million messages
in flight.

The stored state of consumer groups is written once per loop iteration: all changes of an iteration are one write.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from struct import Struct
from typing import Final, NamedTuple, Self

import structlog

from quarry_mq.kv import EngineFull, KeyRange, KeyValueEngine, WriteBatch
from quarry_mq.kv.keys import prefix_end, prefix_range
from quarry_mq.protocol.clock import JUMP_MAX_MS
from quarry_mq.server.delivery.handles import HandleKey
from quarry_mq.server.tasks import run_guarded
from quarry_mq.store.errors import StorePoisoned
from quarry_mq.store.message import QueueId, QueueOffset
from quarry_mq.store.metadata.groups import BACKOFF_MS_MAX
from quarry_mq.store.metadata.lite import LiteSubscriptionTable
from quarry_mq.store.metadata.offsets import ConsumerOffsetTable
from quarry_mq.store.state.identity import INFLIGHT
from quarry_mq.store.state.in_flight_key import (
    INDEX_BEGIN,
    ROWS,
    VALUE,
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

_TIME: Final = Struct(">q")
_TIME_AND_ID: Final = Struct(">qq")
_ATTEMPT_ID_BEGIN: Final = b"\0"
assert VALUE.size == 28


class InFlight(NamedTuple):
    """Describe one delivery of a message, as its row holds it."""

    visible_at_ms: int
    delivery_id: int
    lease_until_ms: int
    attempt: int
    client_id: str
    attempt_id: str = ""

    def encode(self) -> bytes:
        value = VALUE.pack(*self[:4]) + self.client_id.encode()
        return value + _ATTEMPT_ID_BEGIN + self.attempt_id.encode() if self.attempt_id else value

    @classmethod
    def decode(cls, value: bytes) -> InFlight:
        client_id, _, attempt_id = value[VALUE.size :].partition(_ATTEMPT_ID_BEGIN)
        visible_at_ms, delivery_id, lease_until_ms, attempt = VALUE.unpack_from(value)
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


AfterPass = Callable[[Callable[[], None]], None]
Written = Callable[[Exception | None], None]


class StateWriter:
    """Collects the rows that change during a loop iteration and writes them as one batch at its end.

    Answers that depend on the rows are given in the `written` callbacks, after the write: a client never holds an
    answer that the death of the process can take back.

    After a failed write the next one must not simply follow: it would store next offsets above messages whose rows are
    missing, and a restart would take those for acknowledged. So when the disk is full, everything in memory is staged
    once there is free space again (`stage_again_with`). Any other failure is final: nothing is written any more, all
    waiting callers get the error, `failed` is called once, and a restart goes on from the last good write.
    """

    def __init__(
        self,
        engine: KeyValueEngine,
        after_pass: AfterPass,
        failed: Callable[[Exception], None] | None = None,
        *,
        sign: Callable[[WriteBatch], None] | None = None,
    ) -> None:
        """`sign` may add to each batch a row that states what its changes are based on."""
        self._engine = engine
        self.after_pass: Final = after_pass
        """Runs a callback at the end of the current loop iteration, where its changes are written."""
        self._failed = failed
        self._sign = sign
        self._batch: WriteBatch | None = None
        self._written: list[Written] = []
        self._gathered: list[Callable[[], None]] = []
        # why not everything is written: texts, since an error object that is raised twice keeps the frames of both
        self._full_error: str | None = None
        self._failure: str | None = None
        self._stage_all: Callable[[WriteBatch], None] = lambda _: None

    def stage_again_with(self, stage_all: Callable[[WriteBatch], None]) -> None:
        """Set the function that stages everything in memory, for the write after one that failed."""
        self._stage_all = stage_all

    @property
    def is_full(self) -> bool:
        """Return whether memory holds changes that could not be written yet, so that none of it may be dropped."""
        return self._full_error is not None

    def batch(self) -> WriteBatch:
        """Return the batch of this loop iteration, which is written when the iteration ends."""
        if self._batch is None:
            self._batch = self._engine.batch()
            self.after_pass(self._end_pass)
        return self._batch

    def when_written(self, written: Written) -> None:
        """Call back with None once everything staged so far is stored, or with the error that prevented it."""
        self.batch()
        self._written.append(written)

    def before_write(self, change: Callable[[], None]) -> None:
        """Call back when the loop iteration ends, just before its write: for changes that are collected until then."""
        self.batch()
        self._gathered.append(change)

    def try_again(self) -> None:
        """Try again to write what could not be written, even if there is nothing else to write."""
        if self._full_error is not None:
            self._stage_probe(self.batch())

    def write_now(self) -> None:
        """Write the batch of this loop iteration early."""
        self._write(sync=False)

    def write_durably(self) -> None:
        """Write the batch of this loop iteration early, and durably. Raises StorePoisoned or kv.EngineFull."""
        self._stage_probe(self.batch())  # earlier iterations may have left something to sync, even if this one has not
        self._write(sync=True)
        if self._failure is not None:
            raise StorePoisoned(self._failure)
        if self._full_error is not None:
            raise EngineFull(self._full_error)

    def require_room(self) -> None:
        """Check by a small durable write whether changes can be stored, before memory is changed.

        Raises StorePoisoned or kv.EngineFull.
        """
        self.write_durably()

    def _end_pass(self) -> None:
        while self._gathered:
            run_guarded(self._gathered.pop(0))
        self._write(sync=False)

    def _write(self, *, sync: bool) -> None:
        batch, self._batch = self._batch, None
        callbacks, self._written = self._written, []
        if batch is None:
            return
        if len(batch) and self._failure is None:
            try:
                if self._full_error is not None:
                    self._catch_up()
                if self._sign is not None:
                    self._sign(batch)
                self._engine.write(batch, sync=sync)
                self._full_error = None
            except EngineFull as error:
                self._full_error = str(error)
            except Exception as error:  # noqa: BLE001 - handed to every caller that waits for this write
                self._fail(error)
        for written in callbacks:
            run_guarded(written, self._error())

    def _catch_up(self) -> None:
        """Write everything in memory again. A small write is tried first, so that a disk that is still full costs
        little.
        """
        probe = self._engine.batch()
        self._stage_probe(probe)
        self._engine.write(probe)
        whole = self._engine.batch()
        self._stage_all(whole)
        if self._sign is not None:
            self._sign(whole)
        self._engine.write(whole)

    def _stage_probe(self, batch: WriteBatch) -> None:
        batch.delete(self._engine.family(INFLIGHT), b"")

    def _error(self) -> Exception | None:
        """Return the error for which not everything is written, as a new object for each caller."""
        if self._failure is not None:
            return StorePoisoned(self._failure)
        return None if self._full_error is None else EngineFull(self._full_error)

    def _fail(self, error: Exception) -> None:
        self._failure = f"delivery state cannot be written: {error}"
        log.error("delivery state cannot be written", error=str(error))
        if self._failed is not None:
            self._failed(StorePoisoned(self._failure))


@dataclass(frozen=True, slots=True)
class GroupState:
    """All that is stored about consumer groups in the state database, and the one writer of its changes."""

    offsets: ConsumerOffsetTable
    in_flight: InFlightTable
    lite_subscriptions: LiteSubscriptionTable
    handle_key: HandleKey
    writer: StateWriter

    @classmethod
    def of(
        cls,
        engine: KeyValueEngine,
        offsets: ConsumerOffsetTable,
        handle_key: HandleKey,
        writer: StateWriter,
        *,
        leases_until_ms: int | None = None,
    ) -> Self:
        """Prepare the state after a start. `leases_until_ms` limits all leases, as is needed after a crash.

        After a crash, what was handed out last may never have reached its client. That client is alive, and would be
        taken for busy with it until the end of the lease.
        """
        in_flight = InFlightTable(engine)
        in_flight.make_ready(leases_until_ms)
        return cls(offsets, in_flight, LiteSubscriptionTable(engine), handle_key, writer)
