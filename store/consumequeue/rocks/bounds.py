"""Cache the stored max and min offsets of queues in RocksDB; the rules are in `store.consumequeue.queue_offsets`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, cast

from quarry_mq.kv import Family, KeyRange
from quarry_mq.store.consumequeue.rocks_layout import (
    BOUND,
    I64,
    is_maximum,
    keys_of,
    maximum_key_beside,
    minimum_key_beside,
    parse_bound_key,
)
from quarry_mq.store.consumequeue.search import EntryAtOrAfter, FoundEntry, first_at_least
from quarry_mq.store.lru_cache import LruCache
from quarry_mq.store.message import DispatchRequest, PhysicalOffset, QueueExtent, QueueOffset
from quarry_mq.store.native import EntryPlace, MaxOffsetTable, Native

QUEUES_PER_READ: Final = 1_000
ROWS_PER_PAGE: Final = 1_000
"""Rows that `warm` reads at once, in about a millisecond."""
TABLE_QUEUES: Final = 1_048_576
"""Queues whose stored bounds the native part caches: 80 MB once this many have been in use."""

_pack_offset: Final = I64.pack
_pack_bound: Final = BOUND.pack
_unpack_bound: Final = BOUND.unpack
_unpack_offset: Final = I64.unpack_from

NOTHING_STORED: Final = _pack_bound(0, -1)
"""Stands for the bound of a queue that never had a message: its max offset is 0."""

_NOWHERE: Final[EntryPlace] = (b"", b"", 0)

Queue = tuple[str, int]
"""A QueueId, or a plain tuple that is equal to it."""


class CachedBounds:
    """The cached state of one queue.

    `maximum` and `last_physical` are as stored. The others are loaded on first use: `begin`, the stored min offset, and
    `first`, the first entry whose record the log still has.
    """

    __slots__ = ("begin", "first", "last_physical", "maximum", "maximum_key", "prefix")

    def __init__(self, prefix: bytes, maximum_key: bytes, stored: bytes | None, begin: int | None = None) -> None:
        self.prefix = prefix
        self.maximum_key = maximum_key
        physical_offset, last = _unpack_bound(stored or NOTHING_STORED)
        self.last_physical: int = physical_offset
        self.maximum: int = last + 1
        self.begin = begin
        self.first: FoundEntry | None = None

    def place(self, begin: int, limit: int) -> EntryPlace:
        """Return the key range of entries from `begin` up to the max offset, and their number.

        RocketMQ leaves entries above the max offset when it truncates.
        """
        first_key, end_key = self.prefix + _pack_offset(begin), self.prefix + _pack_offset(self.maximum)
        return first_key, end_key, min(limit, self.maximum - begin)

    def advance(self, queue_offset: int, physical_offset: int) -> None:
        """Note that an entry was written."""
        if queue_offset >= self.maximum - 1:
            self.maximum = queue_offset + 1
            self.last_physical = physical_offset


LastEntries = dict[CachedBounds, tuple[QueueOffset, PhysicalOffset]]
"""The last entry of each queue that a batch touches."""


StagedEntries = tuple[
    list[tuple[bytes, bytes]], list[tuple[bytes, bytes]], list[tuple[Queue, QueueOffset, PhysicalOffset]]
]
"""Entries and max offsets with their keys, and the last queue offset and physical offset of each queue among them."""


class RocksBounds:
    """Caches what the family `offsets` stores of queues, and their first entries, for one thread.

    `cached_max` queues of about 500 bytes each are cached. With the native part there is a second cache behind that, of
    the stored bounds alone, for a million queues that were in use at some time: finding one of them in RocksDB takes as
    long as everything else in a send to its queue. Whoever changes rows of the family reports it here after the write:
    `written`, `written_last`, `replaced`, `stored_min_offsets` or `invalidate_all`.
    Raises ValueError for the name that no topic can have, `kv.KvError`.
    """

    def __init__(self, offsets: Family, entries: Family, minimum: PhysicalOffset, *, cached_max: int) -> None:
        """Start with empty caches. `minimum` is the log's min offset."""
        self._offsets = offsets
        self._entries = entries
        self.minimum: PhysicalOffset = minimum
        self._cache: LruCache[Queue, CachedBounds] = LruCache(max(1, cached_max // 2))
        self._table: MaxOffsetTable | None = None
        self._warmed = 0
        self.cached = self._cache.get
        """Bound method of the cache: the hot path inlines `find` as `cached(queue) or load(queue)`."""

    def __iter__(self) -> Iterator[Queue]:
        return iter(self._cache)

    def use(self, native: Native) -> None:
        """Use the native second cache from now on."""
        self._table = native.MaxOffsetTable(TABLE_QUEUES)

    def warm(self, after: bytes) -> bytes | None:
        """Load more stored max offsets into the native cache, from the keys after `behind`; b"" begins.

        Returns the key after which there may be more; None when there are none, or no space for them. Once all are
        loaded, RocksDB is no longer read for queues that never had a message.
        """
        if self._table is None or self._warmed >= TABLE_QUEUES:
            return None
        if not after:
            self._table.begin_all()
        page = self._offsets.scan(KeyRange(after + b"\0", None), limit=ROWS_PER_PAGE)
        max_offsets = [row for row in page if is_maximum(*row)]
        self._table.put_all(max_offsets)
        self._warm_min_offsets([key for key, _ in max_offsets], page)
        self._warmed += len(max_offsets)
        if len(page) == ROWS_PER_PAGE:
            return page[-1][0]
        self._table.end_all()
        return None

    def find(self, queue: Queue) -> CachedBounds:
        return self._cache.get(queue) or self.load(queue)

    def load(self, queue: Queue) -> CachedBounds:
        """Load a queue that is not cached."""
        rows = None if self._table is None else self._table.find([queue])
        prefix, key, stored, begin = (*keys_of(queue), None, None) if rows is None else rows[0]
        if stored is None and (stored := self._offsets.get(key)) is not None:
            self.stored([(key, stored)])
        return self._keep(queue, CachedBounds(prefix, key, stored, begin))

    def look_up(self, queue: Queue) -> CachedBounds:
        """Read the queue from the database, bypassing the caches. From any thread."""
        prefix, key = keys_of(queue)
        return CachedBounds(prefix, key, self._offsets.get(key))

    def find_all(self, queues: Sequence[Queue]) -> list[CachedBounds]:
        """Return all these queues; those that are not cached are loaded together."""
        cached = self._cache.get
        found = [cached(queue) for queue in queues]
        missing = {queue: None for queue, known in zip(queues, found, strict=True) if known is None}
        loaded = self._load_all(list(missing)) if missing else {}
        return [known or loaded[queue] for queue, known in zip(queues, found, strict=True)]

    def place(self, queue: Queue, start: int, limit: int) -> EntryPlace:
        """Return the key range of entries, see `MaxOffsetTable.place`.

        If the table has the answer, the queue need not enter the cache.
        """
        minimum = self.minimum
        if self._table is not None and (place := self._table.place(queue, start, limit, minimum)) is not None:
            return place
        known = self.find(queue)
        if known.last_physical < minimum or start >= known.maximum:
            return _NOWHERE
        return known.place(max(start, self._begin_of(known)), limit)

    def _begin_of(self, queue: CachedBounds) -> int:
        """Return the stored min offset of a queue that has a max offset: the search for its first entry begins there.

        RocketMQ stores a min offset lazily, so often there is none; then it is 0. It is read once. A min offset stored
        later lies above entries that were removed: a search from below it finds the same entry.
        """
        if queue.begin is None:
            self._find_begins([queue])
        assert queue.begin is not None
        return queue.begin

    def _find_begins(self, queues: Sequence[CachedBounds]) -> None:
        """Load the min offsets that are not cached yet, in one read. Every queue must have a max offset."""
        unknown = [queue for queue in queues if queue.begin is None]
        if not unknown:
            return
        stored = self._offsets.get_many([minimum_key_beside(queue.maximum_key) for queue in unknown])
        for queue, minimum in zip(unknown, stored, strict=True):
            queue.begin = _begin(minimum)
        if self._table is not None:
            self._table.put_min_offsets([(queue.maximum_key, cast(int, queue.begin)) for queue in unknown])

    def stored_min_offsets(self, min_offsets: Sequence[tuple[bytes, bytes]]) -> None:
        """Record that these min offsets (key, value) are now in the database.

        Later reads then do not scan over removed entries, and miss no entry where a min offset is lower than before:
        RocketMQ may leave a min offset above the max offset (rmq#10417).
        """
        for key, minimum in min_offsets:
            if (known := self._cache.get(parse_bound_key(key)[0])) is not None:
                known.begin = _begin(minimum)
        if self._table is not None:
            self._table.put_min_offsets([(maximum_key_beside(key), _begin(minimum)) for key, minimum in min_offsets])

    def next_offsets(self, queues: Sequence[Queue]) -> list[int]:
        """Return the max offset of each queue.

        With the native table, no queue enters the cache here: a queue that receives a message is not necessarily read.
        """
        table = self._table
        ends = None if table is None else table.ends(list(queues))
        if table is None or ends is None:
            return [known.maximum for known in self.find_all(queues)]
        if None not in ends:
            return cast(list[int], ends)
        keys = {queue: keys_of(queue)[1] for queue, end in zip(queues, ends, strict=True) if end is None}
        stored = self._read(list(keys.values()))
        table.put_all([(key, NOTHING_STORED) for key in keys.values() if key not in stored])
        found = {queue: maximum_of(stored.get(key)) for queue, key in keys.items()}
        return [found[queue] if end is None else end for queue, end in zip(queues, ends, strict=True)]

    def stage(self, requests: Sequence[DispatchRequest]) -> StagedEntries | None:
        """Return what to write for new messages; None when the caller must prepare it itself.

        That is so without the native part, and for the name that no topic can have.
        """
        if self._table is None or not isinstance(requests, list) or (staged := self._table.stage(requests)) is None:
            return None
        entries, max_offsets, last, unknown = staged
        if unknown:
            of_unknown = [last[index] for index in unknown]
            max_offsets += new_max_offsets({self.find(queue): (offset, at) for queue, offset, at in of_unknown})
        return entries, max_offsets, last

    def written(self, staged: StagedEntries) -> None:
        """Update the caches, like `written_last`. Call it only after the write: a failed one must not change them."""
        _, max_offsets, last = staged
        cached = self._cache.get
        for queue, queue_offset, physical_offset in last:
            if (known := cached(queue)) is not None:
                known.advance(queue_offset, physical_offset)
        self.stored(max_offsets)

    def written_last(self, last_of: LastEntries, max_offsets: list[tuple[bytes, bytes]]) -> None:
        for known, (queue_offset, physical_offset) in last_of.items():
            known.advance(queue_offset, physical_offset)
        self.stored(max_offsets)

    def stored(self, max_offsets: list[tuple[bytes, bytes]]) -> None:
        """Record that these max offsets (key, value) are now in the database."""
        if self._table is not None:
            self._table.put_all(max_offsets)

    def replaced(self, queue: Queue, maximum: bytes | None) -> None:
        """Record that the queue was removed or begun again: `maximum` is the stored value, None if no row is left."""
        self._cache.discard(queue)
        if self._table is not None:
            key = keys_of(queue)[1]
            self._table.remove(key)  # with its min offset
            if maximum is not None:
                self._table.put_all([(key, maximum)])

    def log_begins_at(self, minimum: PhysicalOffset) -> None:
        """Set the log's min offset. First entries are searched upwards, so a lower one invalidates them."""
        if minimum < self.minimum:
            self.invalidate_all()
        self.minimum = minimum

    def invalidate_all(self) -> None:
        self._cache.rotate()
        self._cache.rotate()
        if self._table is not None:
            self._table.clear()

    def _load_all(self, queues: list[Queue]) -> dict[Queue, CachedBounds]:
        """Load distinct queues that are not cached."""
        rows = None if self._table is None else self._table.find(queues)
        if rows is None:
            rows = [(*keys_of(queue), None, None) for queue in queues]
        unknown = [key for _, key, value, _ in rows if value is None]
        stored = self._read(unknown) if unknown else {}
        loaded: dict[Queue, CachedBounds] = {}
        for queue, (prefix, key, value, begin) in zip(queues, rows, strict=True):
            known = CachedBounds(prefix, key, stored.get(key) if value is None else value, begin)
            loaded[queue] = self._keep(queue, known)
        return loaded

    def _warm_min_offsets(self, maximum_keys: list[bytes], page: list[tuple[bytes, bytes]]) -> None:
        """Load the min offsets of these queues. They follow the topic's max offsets, maybe on the next page."""
        assert self._table is not None
        min_offsets: dict[bytes, bytes | None] = dict(page)
        wanted = [minimum_key_beside(key) for key in maximum_keys]
        elsewhere = [key for key in wanted if key > page[-1][0]]
        min_offsets.update(zip(elsewhere, self._offsets.get_many(elsewhere), strict=True))
        begins = [_begin(min_offsets.get(key)) for key in wanted]
        self._table.put_min_offsets(list(zip(maximum_keys, begins, strict=True)))

    def _keep(self, queue: Queue, known: CachedBounds) -> CachedBounds:
        if self._cache.is_full:
            self._cache.rotate()
        self._cache.put(queue, known)
        return known

    def _read(self, keys: list[bytes]) -> dict[bytes, bytes]:
        """Read the keys in their order in RocksDB: neighbours lie in the same block. Missing keys are left out."""
        keys.sort()
        stored: dict[bytes, bytes] = {}
        for begin in range(0, len(keys), QUEUES_PER_READ):
            part = keys[begin : begin + QUEUES_PER_READ]
            values = self._offsets.get_many(part)
            stored.update((key, value) for key, value in zip(part, values, strict=True) if value is not None)
        self.stored(list(stored.items()))
        return stored

    # -- the first entry

    def first_offset(self, queue: CachedBounds) -> int:
        """Return the current min offset: the first entry whose record the log still has.

        For an empty queue that is the max offset.
        """
        if queue.first is not None and queue.first.physical_offset >= self.minimum:
            return queue.first.queue_offset
        if not self._may_have_some(queue):
            return queue.maximum
        begin = self._begin_of(queue) if queue.first is None else queue.first.queue_offset
        queue.first = self.search(queue, begin, queue.maximum, self.minimum)
        return queue.maximum if queue.first is None else queue.first.queue_offset

    def extents(self, queues: Sequence[CachedBounds]) -> list[QueueExtent]:
        """Return the extent of each queue; most of those not read before are found with two reads for all."""
        self._look_where_most_begin([each for each in queues if each.first is None and self._may_have_some(each)])
        return [self._extent(each) for each in queues]

    def _extent(self, queue: CachedBounds) -> QueueExtent:
        minimum = QueueOffset(self.first_offset(queue))
        begins_at = queue.first.physical_offset if queue.first is not None and minimum < queue.maximum else None
        return QueueExtent(minimum, QueueOffset(queue.maximum), begins_at)

    def search(self, queue: CachedBounds, begin: int, end: int, at_least: PhysicalOffset) -> FoundEntry | None:
        return first_at_least(self.entry_at_or_after(queue), begin, end, at_least)

    def entry_at_or_after(self, queue: CachedBounds) -> EntryAtOrAfter:
        def entry_at_or_after(start: int, before: int) -> FoundEntry | None:
            keys = KeyRange(queue.prefix + _pack_offset(start), queue.prefix + _pack_offset(before))
            found = self._entries.scan(keys, limit=1)
            if not found:
                return None
            key, value = found[0]
            offset, physical_offset = _unpack_offset(key, len(queue.prefix))[0], _unpack_offset(value)[0]
            return FoundEntry(QueueOffset(offset), PhysicalOffset(physical_offset))

        return entry_at_or_after

    def _may_have_some(self, queue: CachedBounds) -> bool:
        return queue.maximum > 0 and queue.last_physical >= self.minimum

    def _look_where_most_begin(self, queues: list[CachedBounds]) -> None:
        """Read the entries at the stored min offset, or at 0. An entry whose record the log still has is the first."""
        if not queues:
            return
        self._find_begins(queues)
        begins = [self._begin_of(each) for each in queues]
        keys = [each.prefix + _pack_offset(begin) for each, begin in zip(queues, begins, strict=True)]
        for queue, begin, entry in zip(queues, begins, self._entries.get_many(keys), strict=True):
            # when RocketMQ truncates, it leaves entries above the max offset
            if entry is not None and begin < queue.maximum and (at := _unpack_offset(entry)[0]) >= self.minimum:
                queue.first = FoundEntry(QueueOffset(begin), PhysicalOffset(at))


def _begin(stored: bytes | None) -> int:
    begin: int = 0 if stored is None else _unpack_bound(stored)[1]
    return begin


def maximum_of(stored: bytes | None) -> int:
    """Return the offset that the next entry gets, given the stored max offset; None: nothing is stored."""
    last: int = _unpack_bound(stored or NOTHING_STORED)[1]
    return last + 1


def new_max_offsets(last_of: LastEntries) -> list[tuple[bytes, bytes]]:
    """Return keys and values of the max offsets that change with the entries."""
    max_offsets = []
    for queue, (queue_offset, physical_offset) in last_of.items():
        # A repeated request may lie below the stored max offset, which never falls here.
        if queue_offset + 1 >= queue.maximum:
            max_offsets.append((queue.maximum_key, _pack_bound(physical_offset, queue_offset)))
    return max_offsets
