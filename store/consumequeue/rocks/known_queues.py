"""What is known of queues in RocksDB: their keys and bounds, kept in memory for those that were used lately."""

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
from quarry_mq.store.consumequeue.search import FoundUnit
from quarry_mq.store.generations import GenerationCache
from quarry_mq.store.message import DispatchRequest
from quarry_mq.store.native import EntryPlace, MaximaTable, Native
from quarry_mq.store.offsets import PhysicalOffset, QueueOffset

QUEUES_PER_READ: Final = 1_000
ROWS_PER_PAGE: Final = 1_000
"""What `warm` reads at once, in about a millisecond."""
TABLE_QUEUES: Final = 1_048_576
"""Queues of which the native part remembers what is stored: 80 MB once so many have been in use."""

_pack_offset: Final = I64.pack
_pack_bound: Final = BOUND.pack
_unpack_bound: Final = BOUND.unpack

NOTHING_STORED: Final = _pack_bound(0, -1)
"""Of a queue that never had a message: its maximum is 0."""

_NOWHERE: Final[EntryPlace] = (b"", b"", 0)

Queue = tuple[str, int]
"""A QueueId, or a plain tuple that is equal to it."""


class KnownQueue:
    """What is known of one queue. `maximum` and `last_physical` are as stored; the others are found when asked for:
    `begin`, the stored minimum, and `first`, the first entry that the log still has.
    """

    __slots__ = ("begin", "first", "last_physical", "maximum", "maximum_key", "prefix")

    def __init__(self, prefix: bytes, maximum_key: bytes, stored: bytes | None, begin: int | None = None) -> None:
        self.prefix = prefix
        self.maximum_key = maximum_key
        physical_offset, last = _unpack_bound(stored or NOTHING_STORED)
        self.last_physical: int = physical_offset
        self.maximum: int = last + 1
        self.begin = begin
        self.first: FoundUnit | None = None

    def place(self, begin: int, limit: int) -> EntryPlace:
        """Where entries lie from `begin` on, up to the maximum: RocketMQ leaves units above it when it truncates."""
        first_key, end_key = self.prefix + _pack_offset(begin), self.prefix + _pack_offset(self.maximum)
        return first_key, end_key, min(limit, self.maximum - begin)

    def advance(self, queue_offset: int, physical_offset: int) -> None:
        """That entry is there now."""
        if queue_offset >= self.maximum - 1:
            self.maximum = queue_offset + 1
            self.last_physical = physical_offset


LastEntries = dict[KnownQueue, tuple[QueueOffset, PhysicalOffset]]
"""The last entry of each queue that a batch touches."""


StagedEntries = tuple[
    list[tuple[bytes, bytes]], list[tuple[bytes, bytes]], list[tuple[Queue, QueueOffset, PhysicalOffset]]
]
"""Units and maxima by their keys, and of each queue among them the queue offset and physical offset that are last."""


class KnownQueues:
    """A cache over the stored maxima in the family `offsets`: of about 500 bytes per queue, `cached_max` queues.

    With the native part there is a second one behind it, of the stored bounds alone, for a million queues that were in
    use at some time: RocksDB takes as long to find one of them as all else that a send to its queue costs.

    Raises ValueError for the name that no topic can have, `kv.KvError`.
    """

    def __init__(self, offsets: Family, *, cached_max: int) -> None:
        self._offsets = offsets
        self._cache: GenerationCache[Queue, KnownQueue] = GenerationCache(max(1, cached_max // 2))
        self._table: MaximaTable | None = None
        self._warmed = 0
        self.cached = self._cache.get
        """`cached(queue) or load(queue)` is `find(queue)` for who is in a hurry."""

    def __iter__(self) -> Iterator[Queue]:
        return iter(self._cache)

    def use(self, native: Native) -> None:
        """Have the second cache from now on."""
        self._table = native.MaximaTable(TABLE_QUEUES)

    def warm(self, behind: bytes) -> bytes | None:
        """Have some more stored maxima in the native part, of the keys behind one, b"" for all.

        Returns behind which key there may be more; None when there are none, or no room for them. Once there are none,
        RocksDB is not asked any more for queues that never had a message.
        """
        if self._table is None or self._warmed >= TABLE_QUEUES:
            return None
        if not behind:
            self._table.begin_all()
        page = self._offsets.scan(KeyRange(behind + b"\0", None), limit=ROWS_PER_PAGE)
        maxima = [row for row in page if is_maximum(*row)]
        self._table.put_all(maxima)
        self._warm_begins([key for key, _ in maxima], page)
        self._warmed += len(maxima)
        if len(page) == ROWS_PER_PAGE:
            return page[-1][0]
        self._table.end_all()
        return None

    def find(self, queue: Queue) -> KnownQueue:
        return self._cache.get(queue) or self.load(queue)

    def load(self, queue: Queue) -> KnownQueue:
        """A queue that is not cached."""
        rows = None if self._table is None else self._table.find([queue])
        prefix, key, stored, begin = (*keys_of(queue), None, None) if rows is None else rows[0]
        if stored is None and (stored := self._offsets.get(key)) is not None:
            self.stored([(key, stored)])
        return self._keep(queue, KnownQueue(prefix, key, stored, begin))

    def look_up(self, queue: Queue) -> KnownQueue:
        """The queue as it is stored, past the caches. From any thread."""
        prefix, key = keys_of(queue)
        return KnownQueue(prefix, key, self._offsets.get(key))

    def find_all(self, queues: Sequence[Queue]) -> list[KnownQueue]:
        """Those of all the queues, which are looked for together."""
        cached = self._cache.get
        found = [cached(queue) for queue in queues]
        missing = {queue: None for queue, known in zip(queues, found, strict=True) if known is None}
        loaded = self._load_all(list(missing)) if missing else {}
        return [known or loaded[queue] for queue, known in zip(queues, found, strict=True)]

    def place(self, queue: Queue, start: int, limit: int, minimum: PhysicalOffset) -> EntryPlace:
        """See `MaximaTable.place`. Where that knows, the queue need not come into the cache for it."""
        if self._table is not None and (place := self._table.place(queue, start, limit, minimum)) is not None:
            return place
        known = self.find(queue)
        if known.last_physical < minimum or start >= known.maximum:
            return _NOWHERE
        return known.place(max(start, self.begin_of(known)), limit)

    def begin_of(self, queue: KnownQueue) -> int:
        """Where the search for the first entry of a queue begins that has a maximum: at the stored minimum. RocketMQ
        stores one lazily, so often there is none.

        It is looked up once. One that is stored later lies above entries that are gone: nothing is found below it.
        """
        if queue.begin is None:
            self.find_begins([queue])
        assert queue.begin is not None
        return queue.begin

    def find_begins(self, queues: Sequence[KnownQueue]) -> None:
        """Find what `begin_of` tells of queues that have a maximum, with one read for all of which it is not known."""
        unknown = [queue for queue in queues if queue.begin is None]
        if not unknown:
            return
        stored = self._offsets.get_many([minimum_key_beside(queue.maximum_key) for queue in unknown])
        for queue, minimum in zip(unknown, stored, strict=True):
            queue.begin = _begin(minimum)
        if self._table is not None:
            self._table.put_begins([(queue.maximum_key, cast(int, queue.begin)) for queue in unknown])

    def stored_minima(self, minima: Sequence[tuple[bytes, bytes]]) -> None:
        """These are stored now, by their keys. For reads to come, which then pass over nothing that is gone, and miss
        nothing where one is lower than before: RocketMQ may leave a minimum above the maximum (rmq#10417).
        """
        for key, minimum in minima:
            if (known := self._cache.get(parse_bound_key(key)[0])) is not None:
                known.begin = _begin(minimum)
        if self._table is not None:
            self._table.put_begins([(maximum_key_beside(key), _begin(minimum)) for key, minimum in minima])

    def next_offsets(self, queues: Sequence[Queue]) -> list[int]:
        """The maximum of each. What is found so is not cached: a queue that one message comes to is not asked for."""
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
        """What is to be written for new messages. None where that is left to who asks: without the native part, and for
        names that no topic can have.
        """
        if self._table is None or not isinstance(requests, list) or (staged := self._table.stage(requests)) is None:
            return None
        units, maxima, last, unknown = staged
        if unknown:
            of_unknown = [last[index] for index in unknown]
            maxima += new_maxima({self.find(queue): (offset, at) for queue, offset, at in of_unknown})
        return units, maxima, last

    def written(self, staged: StagedEntries) -> None:
        """To be called only now, as `written_last`: after a failed write all is still as in the database."""
        _, maxima, last = staged
        cached = self._cache.get
        for queue, queue_offset, physical_offset in last:
            if (known := cached(queue)) is not None:
                known.advance(queue_offset, physical_offset)
        self.stored(maxima)

    def written_last(self, last_of: LastEntries, maxima: list[tuple[bytes, bytes]]) -> None:
        for known, (queue_offset, physical_offset) in last_of.items():
            known.advance(queue_offset, physical_offset)
        self.stored(maxima)

    def stored(self, maxima: list[tuple[bytes, bytes]]) -> None:
        """These are stored now, by their keys."""
        if self._table is not None:
            self._table.put_all(maxima)

    def remove(self, queue: Queue) -> None:
        """Nothing is stored of the queue any more."""
        self._cache.discard(queue)
        if self._table is not None:
            self._table.remove(keys_of(queue)[1])

    def discard(self, queue: Queue) -> None:
        """What is stored of the queue has changed."""
        self._cache.discard(queue)
        if self._table is not None:
            self._table.discard(keys_of(queue)[1])

    def forget_all(self) -> None:
        self._cache.rotate()
        self._cache.rotate()
        if self._table is not None:
            self._table.clear()

    def _load_all(self, queues: list[Queue]) -> dict[Queue, KnownQueue]:
        """Different queues that are not cached."""
        rows = None if self._table is None else self._table.find(queues)
        if rows is None:
            rows = [(*keys_of(queue), None, None) for queue in queues]
        unknown = [key for _, key, value, _ in rows if value is None]
        stored = self._read(unknown) if unknown else {}
        loaded: dict[Queue, KnownQueue] = {}
        for queue, (prefix, key, value, begin) in zip(queues, rows, strict=True):
            known = KnownQueue(prefix, key, stored.get(key) if value is None else value, begin)
            loaded[queue] = self._keep(queue, known)
        return loaded

    def _warm_begins(self, maximum_keys: list[bytes], page: list[tuple[bytes, bytes]]) -> None:
        """Of queues whose maxima are on the page: behind those of a topic come its minima, maybe on the next one."""
        assert self._table is not None
        minima: dict[bytes, bytes | None] = dict(page)
        wanted = [minimum_key_beside(key) for key in maximum_keys]
        elsewhere = [key for key in wanted if key > page[-1][0]]
        minima.update(zip(elsewhere, self._offsets.get_many(elsewhere), strict=True))
        begins = [_begin(minima.get(key)) for key in wanted]
        self._table.put_begins(list(zip(maximum_keys, begins, strict=True)))

    def _keep(self, queue: Queue, known: KnownQueue) -> KnownQueue:
        if self._cache.is_full:
            self._cache.rotate()
        self._cache.put(queue, known)
        return known

    def _read(self, keys: list[bytes]) -> dict[bytes, bytes]:
        """What is stored under the keys, in their order in RocksDB: neighbours lie in the same block."""
        keys.sort()
        stored: dict[bytes, bytes] = {}
        for begin in range(0, len(keys), QUEUES_PER_READ):
            part = keys[begin : begin + QUEUES_PER_READ]
            values = self._offsets.get_many(part)
            stored.update((key, value) for key, value in zip(part, values, strict=True) if value is not None)
        self.stored(list(stored.items()))
        return stored


def _begin(stored: bytes | None) -> int:
    begin: int = 0 if stored is None else _unpack_bound(stored)[1]
    return begin


def maximum_of(stored: bytes | None) -> int:
    """The offset that the next entry gets, by the stored maximum; None: nothing is stored."""
    last: int = _unpack_bound(stored or NOTHING_STORED)[1]
    return last + 1


def new_maxima(last_of: LastEntries) -> list[tuple[bytes, bytes]]:
    """Keys and values of the maxima that change with the entries."""
    maxima = []
    for queue, (queue_offset, physical_offset) in last_of.items():
        # A repeated request may be behind what is stored: a maximum never goes back here.
        if queue_offset + 1 >= queue.maximum:
            maxima.append((queue.maximum_key, _pack_bound(physical_offset, queue_offset)))
    return maxima
