"""Consume queues over any ordered key-value engine, laid out as RocketMQ lays them out in RocksDB.

Threads: one thread calls everything, except that `flush_entries` may run on another one beside it, and `flush` on
another one while no put runs.

The state in memory is a bounded cache of per-queue keys and bounds; everything in it can be read again.

The database has RocketMQ's families and table formats, with smaller memory limits:

|                    | RocketMQ 5.5       | here    |                   | RocketMQ 5.5       | here    |
|--------------------|--------------------|---------|-------------------|--------------------|---------|
| units: memtables   | 4 x 128 MiB        | 6 x 8   | bounds: memtables | 4 x 64 MiB         | 6 x 4   |
| units: fresh files | 2                  | 4       | bounds: fresh     | 2                  | 8       |
| units: block cache | 1 GiB              | 128 MiB | bounds: cache     | 128 MiB            | 64 MiB  |
| units: filter      | bloom 16 bits/key  | none    | bounds: filter    | bloom 16 bits/key  | 10      |
| indexes, filters   | outside the cache  | inside  | memtable filter   | none               | 2 %     |

Units (entries) need no filter: they are read by scans, never by a key that may be missing. With indexes in the cache,
memory stays within these limits however many queues there are; the cache of bounds holds those of a million queues.
Blocks of units are half as large as RocketMQ's: reading a queue that was not used recently decompresses half as much,
for 4 % more bytes. Memtables are small, because the cost of a write is finding the position of its row in one of them.
More fresh tables are collected before a merge, so the amount written stays the same (ADR 50). Either broker reads the
other's tables.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from operator import add
from pathlib import Path
from typing import Final, cast

from quarry_mq.kv import KeyRange, KeyValueEngine, WriteBatch
from quarry_mq.kv.options import KIB, MIB, CompactionStyle, Compression, FamilyOptions
from quarry_mq.kv.rocks import RocksEngine
from quarry_mq.protocol.names import LIGHT_QUEUE_PREFIX
from quarry_mq.store.consumequeue.again import ascends, end_of_stored, put_again
from quarry_mq.store.consumequeue.light_queues import LiteParentsStep, last_times_ms, lite_parents, stage_removal
from quarry_mq.store.consumequeue.names import (
    LastEntry,
    LightQueueStep,
    QueueEnd,
    light_queues_ended,
    max_offsets_of,
    queue_ends,
    topics_after,
)
from quarry_mq.store.consumequeue.rocks.bounds import (
    CachedBounds,
    LastEntries,
    RocksBounds,
    maximum_of,
    new_max_offsets,
)
from quarry_mq.store.consumequeue.rocks.entry_reader import RocksEntries, RocksEntryReader
from quarry_mq.store.consumequeue.rocks.expired_entries import ExpiredEntrySearch
from quarry_mq.store.consumequeue.rocks_layout import (
    BOUND,
    BOUND_SIZE,
    CHECKPOINT_KEY,
    ENTRIES_FAMILY,
    ENTRY,
    I64,
    OFFSET_FAMILY,
    StoredBound,
    entries_end,
    is_minimum,
    keys_of,
    max_offsets_range,
    maximum_key,
    maximum_key_beside,
    minimum_key,
    number_in,
    pack_entries,
    pack_offsets,
    parse_bound,
    parse_maximum_key,
    require_no_checkpoint,
    topic_range,
)
from quarry_mq.store.consumequeue.search import ColumnRequests, EntryColumns, count_between
from quarry_mq.store.message import (
    ConsumeQueueEntry,
    DispatchRequest,
    PhysicalOffset,
    QueueBounds,
    QueueExtent,
    QueueId,
    QueueOffset,
)
from quarry_mq.store.native import Native

MAX_OFFSETS_LATER_MAX: Final = 2_048
"""Max offsets that may wait to be stored: storing them takes about a millisecond."""
QUEUES_PER_BATCH: Final = 1_000
"""The number of queues that a change of all queues puts into one batch: bounds its memory."""
ENTRIES_FAMILIES: Final = (ENTRIES_FAMILY,)
ALL_FAMILIES: Final = (ENTRIES_FAMILY, OFFSET_FAMILY)
OFFSETS_FIRST: Final = (OFFSET_FAMILY, ENTRIES_FAMILY)

_pack_offset: Final = I64.pack
_pack_entry: Final = ENTRY.pack
_pack_bound: Final = BOUND.pack


class RocksConsumeQueues:
    """Implements `store.consumequeue.protocol.ConsumeQueueStore` on a key-value engine.

    `cached_queues_max` bounds the queues cached in memory. Engine errors (`kv.KvError`) pass through.
    """

    may_hold_more = False
    """Entries are stored with the watermark, and only entries below a stored max offset count."""

    def __init__(
        self,
        engine: KeyValueEngine,
        *,
        minimum_physical_offset: PhysicalOffset,
        cached_queues_max: int = 65_536,
    ) -> None:
        self._engine = engine
        self._entries_family = engine.family(ENTRIES_FAMILY)
        self._offsets = engine.family(OFFSET_FAMILY)
        self._entries = RocksEntries(self._entries_family)
        self.is_complete = True
        """True once the store has all entries of the log so far that it will ever have.

        Until then nothing is dropped: a stored min offset would hide entries that are added below it.
        """
        self._removals = 0
        self._bounds = RocksBounds(
            self._offsets, self._entries_family, minimum_physical_offset, cached_max=cached_queues_max
        )

    def use(self, native: Native) -> None:
        """Cache stored bounds in the native part, and make entries with it."""
        self._bounds.use(native)
        self._entries.use(native)

    def warm(self, after: bytes) -> bytes | None:
        """Load more stored max offsets into the native cache, see `RocksBounds.warm`."""
        return self._bounds.warm(after)

    # -- writing

    def put(self, requests: Sequence[DispatchRequest], dispatched_up_to: PhysicalOffset) -> None:
        batch = self._engine.batch()
        if (staged := self._bounds.stage(requests)) is None:
            self._put(batch, self._put_entries(batch, requests), dispatched_up_to)
            return
        entries, max_offsets, _ = staged
        batch.put_all(self._entries_family, entries)
        self._write(batch, max_offsets, dispatched_up_to)
        self._bounds.written(staged)

    def _put(self, batch: WriteBatch, last_of: LastEntries, dispatched_up_to: PhysicalOffset) -> None:
        max_offsets = new_max_offsets(last_of)
        self._write(batch, max_offsets, dispatched_up_to)
        self._bounds.written_last(last_of, max_offsets)

    def _write(
        self, batch: WriteBatch, max_offsets: list[tuple[bytes, bytes]], dispatched_up_to: PhysicalOffset
    ) -> None:
        """Write the entries now; write the max offsets and the watermark later, together.

        After a crash before that, a start puts again what lies above the watermark, and finds these entries above the
        max offsets. Every crash between a flush of entries and a flush of the rest has the same effect. In return a
        busy queue stores one max offset instead of hundreds.
        """
        # before anything is written: if the disk is full, nothing of this put may count
        self._engine.settle(more_than=MAX_OFFSETS_LATER_MAX)
        self._engine.write(batch)
        self._engine.put_later(self._offsets, [*max_offsets, (CHECKPOINT_KEY, _pack_offset(dispatched_up_to))])

    def put_again(self, requests: Sequence[DispatchRequest], dispatched_up_to: PhysicalOffset) -> None:
        if isinstance(requests, ColumnRequests):
            entries = requests.entries
            # looked up once: there may be more queues than the cache holds
            known = self._bounds.find_all(entries.queues)
            if ascends(
                entries, lambda index, offset, at: self._end_for(entries.queues[index], known[index], offset, at)
            ):
                batch = self._engine.batch()
                self._put(batch, self._put_columns(batch, entries.grouped(), known), dispatched_up_to)
                return
        put_again(self, list(requests), dispatched_up_to)

    def end_for(self, queue: QueueId, offset: QueueOffset, at: PhysicalOffset) -> QueueOffset | None:
        """Implement `RestartableQueues.end_for`, see `store.consumequeue.again`."""
        return self._end_for(queue, self._bounds.find(queue), offset, at)

    def _end_for(
        self, queue: QueueId, known: CachedBounds, offset: QueueOffset, at: PhysicalOffset
    ) -> QueueOffset | None:
        if known.maximum < offset:  # as in `reserve`: the max offset is about to jump over what a crash may have left
            self._remove_lost_entries(known, offset)
        return end_of_stored(self, queue, offset, at, maximum=known.maximum, last_physical=known.last_physical)

    def restart_at(self, queue: QueueId, offset: QueueOffset) -> None:
        """Implement `RestartableQueues.restart_at`, see `store.consumequeue.again`."""
        self._removals += 1
        batch = self._engine.batch()
        maximum, _ = self._end_queue_at(batch, queue, offset)
        self._engine.write(batch)
        self._bounds.replaced(queue, maximum)

    def put_missing(self, requests: Sequence[DispatchRequest]) -> None:
        """Store entries of records from below the watermark, which does not move. For a database begun in mid-log."""
        batch = self._engine.batch()
        self._put_missing(batch, self._put_entries(batch, requests))

    def put_missing_entries(self, entries: EntryColumns) -> None:
        """Do the same as `put_missing` for columns; each of `units.queues` has entries."""
        batch = self._engine.batch()
        self._put_missing(batch, self._put_columns(batch, entries.grouped(), self._bounds.find_all(entries.queues)))

    def _put_missing(self, batch: WriteBatch, last_of: LastEntries) -> None:
        """Write entries and max offsets in one batch: entries below the watermark are never put again."""
        max_offsets = new_max_offsets(last_of)
        batch.put_all(self._offsets, max_offsets)
        self._engine.write(batch)
        for queue in last_of:
            queue.first = None
        self._bounds.written_last(last_of, max_offsets)

    def reserve(self, queue: QueueId, next_offset: QueueOffset) -> None:
        known = self._bounds.find(queue)
        if known.maximum >= next_offset:
            return
        self._remove_lost_entries(known, next_offset)
        batch = self._engine.batch()
        maximum = _pack_bound(0, next_offset - 1)
        batch.put(self._offsets, known.maximum_key, maximum)
        self._engine.write(batch)
        self._bounds.replaced(queue, maximum)

    def remove_lost_entries(self, queue: QueueId, end: QueueOffset) -> None:
        self._remove_lost_entries(self._bounds.find(queue), end)

    def _remove_lost_entries(self, known: CachedBounds, end: QueueOffset) -> None:
        lost = KeyRange(known.prefix + _pack_offset(known.maximum), known.prefix + _pack_offset(end))
        if self._entries_family.scan(lost, limit=1):
            batch = self._engine.batch()
            batch.delete_range(self._entries_family, lost)
            self._engine.write(batch)
            self.flush_entries()  # a higher max offset must not be durable before this

    def _put_entries(self, batch: WriteBatch, requests: Sequence[DispatchRequest]) -> LastEntries:
        """Add one entry per request and light queue. Returns the last entry of each queue touched."""
        if isinstance(requests, ColumnRequests):
            # RocksDB takes neighbouring keys three times as fast as scattered ones
            entries = requests.entries
            return self._put_columns(batch, entries.grouped(), self._bounds.find_all(entries.queues))
        cached, load = self._bounds.cached, self._bounds.load
        last_of: LastEntries = {}
        pairs: list[tuple[bytes, bytes]] = []
        for topic, number, queue_offset, physical_offset, size, tags_code, stored_ms, _, _, light_queues in requests:
            entry = _pack_entry(physical_offset, size, tags_code, stored_ms)
            queue = cached((topic, number)) or load((topic, number))
            pairs.append((queue.prefix + _pack_offset(queue_offset), entry))
            last_of[queue] = (queue_offset, physical_offset)
            for name, light_offset in light_queues:
                queue = cached((name, 0)) or load((name, 0))
                pairs.append((queue.prefix + _pack_offset(light_offset), entry))
                last_of[queue] = (light_offset, physical_offset)
        batch.put_all(self._entries_family, pairs)
        return last_of

    def _put_columns(self, batch: WriteBatch, entries: EntryColumns, queues: Sequence[CachedBounds]) -> LastEntries:
        """Add the entries to the batch. `queues` are those of `units.queues`, in the same order."""
        prefixes = [queue.prefix for queue in queues]
        of_entries = map(prefixes.__getitem__, entries.queue_index.tolist())
        batch.put_all(
            self._entries_family,
            zip(map(add, of_entries, pack_offsets(entries.queue_offset)), pack_entries(entries), strict=True),
        )
        last = entries.last_of_queues()
        places = zip(entries.queue_offset[last].tolist(), entries.physical_offset[last].tolist(), strict=True)
        return dict(zip(queues, places, strict=True))

    # -- reading

    def entries(self, queue: QueueId, start: QueueOffset, limit: int) -> list[ConsumeQueueEntry]:
        first_key, end_key, count = self._bounds.place(queue, start, limit)
        found = self._entries.read(first_key, end_key, count)
        # The log nearly always has the requested records, so a queue that was not used recently costs a single read.
        if not found or found[0].physical_offset >= self._bounds.minimum:
            return found
        known = self._bounds.find(queue)
        first_key, end_key, count = known.place(max(start, self._bounds.first_offset(known)), limit)
        return self._entries.read(first_key, end_key, count)

    def last_entry_below(self, queue: QueueId, at: PhysicalOffset) -> ConsumeQueueEntry | None:
        """Return the entry with the largest physical offset below `at`; None when the queue has none in the log."""
        known = self._bounds.find(queue)
        first = self._bounds.first_offset(known)
        end = self._bounds.search(known, first, known.maximum, at)
        keys = KeyRange(
            known.prefix + _pack_offset(first),
            known.prefix + _pack_offset(known.maximum if end is None else end.queue_offset),
        )
        return self._entries.last(keys)

    def bounds(self, queue: QueueId) -> QueueBounds:
        known = self._bounds.find(queue)
        return QueueBounds(QueueOffset(self._bounds.first_offset(known)), QueueOffset(known.maximum))

    def extents_of_all(self, queues: Sequence[QueueId]) -> list[QueueExtent]:
        return self._bounds.extents(self._bounds.find_all(queues))

    def next_offset(self, queue: QueueId) -> QueueOffset:
        return QueueOffset(self._bounds.find(queue).maximum)

    def next_offsets(self, queues: Sequence[tuple[str, int]]) -> list[QueueOffset]:
        return cast(list[QueueOffset], self._bounds.next_offsets(queues))

    def dispatched_up_to(self) -> PhysicalOffset | None:
        value = self._offsets.get(CHECKPOINT_KEY)
        return None if value is None else PhysicalOffset(I64.unpack(value)[0])

    def may_have(self, topic: str) -> bool:  # noqa: ARG002
        return True

    def queues(self, topic: str | None = None) -> Iterator[QueueId]:
        keys = KeyRange(b"", None) if topic is None else max_offsets_range(topic)
        for queue, _ in self._max_offsets(keys):
            yield queue

    def queues_of(self, topic: str) -> list[QueueId]:
        max_offsets = max_offsets_of(self._offsets, topic)
        # the caller reads their bounds next, and no put comes between the two
        self._bounds.stored(max_offsets)
        return [QueueId(topic, number_in(key)) for key, _ in max_offsets]

    def ends(self, topic: str, after: int, limit: int) -> list[QueueEnd]:
        return queue_ends(self._offsets, topic, after, limit)

    def unread_below(self, queue: QueueId, start: QueueOffset, at: PhysicalOffset) -> int:
        # runs on any thread, so it reads the database alone
        known = self._bounds.look_up(queue)
        if start >= known.maximum:
            return 0
        return count_between(self._bounds.entry_at_or_after(known), start, known.maximum, self._bounds.minimum, at)

    def entry_reader(self) -> RocksEntryReader:
        """Return a reader of all queues for use on another thread."""
        return RocksEntryReader(self._engine)

    # -- changes of many queues

    def expired_entries(self) -> ExpiredEntrySearch:
        """Return a search for entries below the log's current min offset. It may run on another thread."""
        return ExpiredEntrySearch(self._engine, self._bounds.minimum)

    @property
    def removals(self) -> int:
        """The number of topic deletions and log truncations. Entries found before one must not be dropped after it."""
        return self._removals

    def drop(self, ranges: Sequence[KeyRange], *, removals: int) -> bool:
        """Remove entries that a search found.

        Returns False, having done nothing, when `removals` has changed since the search, or when the queues are not
        complete. The min offsets are stored by `store_min_offsets`, once the removal is durable.
        """
        if removals != self._removals or not self.is_complete:
            return False
        batch = self._engine.batch()
        for keys in ranges:
            batch.delete_range(self._entries_family, keys)
        self._engine.write(batch)
        return True

    def store_min_offsets(self, min_offsets: Sequence[tuple[bytes, bytes]], *, removals: int) -> bool:
        """Store min offsets that a search found. Returns False, having done nothing, in the same cases as `drop`.

        Call it only when the entries below them are durably removed: after a crash no later search would look for them.
        """
        if removals != self._removals or not self.is_complete:
            return False
        batch = self._engine.batch()
        batch.put_all(self._offsets, min_offsets)
        self._engine.write(batch)
        self._bounds.stored_min_offsets(min_offsets)
        return True

    def delete_min_offsets(self) -> None:
        """Remove all stored min offsets, so that each is searched again: for a database to be completed downwards.

        RocketMQ's double write stores a min offset above entries that `put_missing` will bring back.
        """
        self._removals += 1
        batch = self._engine.batch()
        for key, value in self._offsets.iterate(KeyRange(b"", None)):
            if len(value) == BOUND_SIZE and parse_maximum_key(key) is None:
                batch.delete(self._offsets, key)
                batch = self._write_full(batch)
        self._engine.write(batch)
        self._bounds.invalidate_all()

    def delete_inverted_min_offsets(self) -> int:
        """Remove min offsets above their max offsets, which RocketMQ leaves (rmq#10417). Returns their number, durably.

        As long as such a queue gets no message, the error has no effect. New messages get offsets from the max offset
        on. They stay hidden below the min offset, which counts as valid again once the max offset has reached it. A min
        offset equal to the max offset is not removed: RocketMQ's double write stores such.
        """
        self._removals += 1
        batch, count = self._engine.batch(), 0
        for key, value in self._offsets.iterate(KeyRange(b"", None)):
            if not is_minimum(key, value):
                continue
            if parse_bound(value).queue_offset > maximum_of(self._offsets.get(maximum_key_beside(key))):
                batch.delete(self._offsets, key)
                batch = self._write_full(batch)
                count += 1
        if count:
            self._engine.write(batch)
            self._bounds.invalidate_all()
            self._engine.flush((OFFSET_FAMILY,))
        return count

    def delete_topic(self, topic: str) -> None:
        """Remove the topic by range deletes, without a list of its queues (rmq#9454). Durable with the next flush."""
        require_no_checkpoint(topic)
        keys = topic_range(topic)
        if not (self._offsets.scan(keys, limit=1) or self._entries_family.scan(keys, limit=1)):
            return  # every range delete makes reads slower
        self._removals += 1
        queues = list(self.queues(topic))  # other cached queues of the topic are cached as not existing
        batch = self._engine.batch()
        batch.delete_range(self._entries_family, keys)
        batch.delete_range(self._offsets, keys)
        self._engine.write(batch)
        for queue in queues:
            self._bounds.replaced(queue, None)

    def topics_after(self, after: str, limit: int) -> list[str]:
        return topics_after(self._offsets, after, limit)

    def light_queues_ended(self, below: PhysicalOffset, key: bytes, prefix: str = LIGHT_QUEUE_PREFIX) -> LightQueueStep:
        return light_queues_ended(self._offsets, below, key, prefix)

    def lite_parents(self, key: bytes) -> LiteParentsStep:
        return lite_parents(self._offsets, key)

    def last_times_ms(self, found: Sequence[LastEntry]) -> list[int | None]:
        return last_times_ms(self._entries_family, found)

    def still_ended(self, found: Sequence[LastEntry]) -> list[LastEntry]:
        stored = self._offsets.get_many([maximum_key(each.queue) for each in found])
        return [each for each, row in zip(found, stored, strict=True) if row == _pack_bound(*each.last)]

    def remove_ended(self, found: Sequence[LastEntry]) -> None:
        self._removals += 1
        batch = self._engine.batch()
        stage_removal(batch, self._entries_family, self._offsets, found)
        self._engine.write(batch)
        for each in found:
            self._bounds.replaced(each.queue, None)

    def truncate(self, end: PhysicalOffset) -> None:
        """Remove all entries at or above `end`, durably on return. Repeat it after a crash: the watermark falls last.

        The caller must not append to the log before it returns: records that took the place of removed ones would be
        taken for dispatched.
        """
        self._removals += 1
        self.flush_entries()
        batch = self._engine.batch()
        for queue, last in self._max_offsets(KeyRange(b"", None)):
            if last.physical_offset >= end:
                self._truncate_queue(batch, queue, last, end)
                batch = self._write_full(batch)
        dispatched = self.dispatched_up_to()
        if dispatched is not None and dispatched > end:
            batch.put(self._offsets, CHECKPOINT_KEY, _pack_offset(end))
        self._engine.write(batch)
        self._bounds.invalidate_all()
        # Max offsets first: entries above one are invisible, but a max offset above its entries would not show
        # that they are gone.
        self._engine.flush(OFFSETS_FIRST)

    def _truncate_queue(self, batch: WriteBatch, queue: QueueId, last: StoredBound, end: PhysicalOffset) -> None:
        cut = self._bounds.search(CachedBounds(*keys_of(queue), None), 0, last.queue_offset + 1, end)
        _, minimum = self._end_queue_at(batch, queue, last.queue_offset if cut is None else cut.queue_offset)
        if minimum is not None and minimum.physical_offset >= end:
            batch.delete(self._offsets, minimum_key(queue))

    def _end_queue_at(
        self, batch: WriteBatch, queue: QueueId, first_gone: int
    ) -> tuple[bytes | None, StoredBound | None]:
        """Remove the entries from `first_gone` on and lower the max offset.

        Returns the value of the new max offset, None where the row is deleted, and the min offset that was stored.
        """
        known = CachedBounds(*keys_of(queue), None)
        prefix = known.prefix
        batch.delete_range(self._entries_family, KeyRange(prefix + _pack_offset(first_gone), entries_end(prefix)))
        kept = self._entries.last(KeyRange(prefix + _pack_offset(0), prefix + _pack_offset(first_gone)))
        maximum: bytes | None = None
        if kept is not None:
            maximum = _pack_bound(kept.physical_offset, kept.queue_offset)
        elif first_gone > 0:
            # All earlier entries have expired: the queue is empty, but its offsets continue.
            maximum = _pack_bound(0, first_gone - 1)
        if maximum is None:
            batch.delete(self._offsets, known.maximum_key)
        else:
            batch.put(self._offsets, known.maximum_key, maximum)
        stored = self._offsets.get(minimum_key(queue))
        if stored is None:
            return maximum, None
        minimum = parse_bound(stored)
        if minimum.queue_offset > maximum_of(maximum):
            batch.delete(self._offsets, minimum_key(queue))
        return maximum, minimum

    def set_minimum_physical_offset(self, minimum: PhysicalOffset) -> None:
        self._bounds.log_begins_at(minimum)

    # -- life

    def flush_entries(self) -> None:
        self._engine.flush(ENTRIES_FAMILIES)

    def flush(self) -> None:
        self._engine.flush(ALL_FAMILIES)

    def close(self) -> None:
        self._engine.close()

    # -- inside

    def _write_full(self, batch: WriteBatch) -> WriteBatch:
        """Write the batch when it is large enough; return the batch to continue with."""
        if len(batch) < QUEUES_PER_BATCH:
            return batch
        self._engine.write(batch)
        return self._engine.batch()

    def _max_offsets(self, keys: KeyRange) -> Iterator[tuple[QueueId, StoredBound]]:
        for key, value in self._offsets.iterate(keys):
            if len(value) != BOUND_SIZE:
                continue  # the checkpoint
            queue = parse_maximum_key(key)
            if queue is not None:
                yield queue, parse_bound(value)


FAMILY_OPTIONS: Final = {
    ENTRIES_FAMILY: FamilyOptions(
        memtable_bytes=8 * MIB,
        memtables_max=6,
        compaction_style=CompactionStyle.UNIVERSAL,
        level_zero_tables=4,
        target_file_bytes=64 * MIB,
        compression=Compression.LZ4,
        bottommost_compression=Compression.ZSTD,
        block_bytes=16 * KIB,
        bloom_bits_per_key=0,
        block_cache_bytes=128 * MIB,
    ),
    OFFSET_FAMILY: FamilyOptions(
        memtable_bytes=4 * MIB,
        memtables_max=6,
        compaction_style=CompactionStyle.LEVEL,
        level_zero_tables=8,
        target_file_bytes=32 * MIB,
        compression=Compression.NONE,
        bottommost_compression=Compression.NONE,
        block_bytes=8 * KIB,
        bloom_bits_per_key=10,
        memtable_filter_share=0.02,
        later_puts=True,
        block_cache_bytes=64 * MIB,
    ),
}
"""The families in the order in which close() flushes them: entries before bounds and checkpoint."""


def open_consume_queue_engine(directory: Path, *, create: bool, read_only: bool = False) -> RocksEngine:
    """Open the database, RocketMQ's or our own. It has no write-ahead log: the commit log already is one.

    Raises kv.EngineMissing, kv.EngineLocked or kv.EngineCorrupt.
    """
    return RocksEngine.open(directory, FAMILY_OPTIONS, create=create, read_only=read_only, write_ahead_log=False)
