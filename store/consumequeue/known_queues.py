"""What is known of queues in RocksDB: their keys and bounds, kept in memory for those that were used lately."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from kv import Family
from store.consumequeue.rocks_layout import BOUND, keys_of
from store.consumequeue.search import FoundUnit
from store.generations import GenerationCache
from store.native import MaximaTable, Native
from store.offsets import PhysicalOffset, QueueOffset

QUEUES_PER_READ: Final = 1_000
TABLE_QUEUES: Final = 1_048_576
"""Queues of which the native part remembers what is stored: 64 MB once so many have been in use."""

_pack_bound: Final = BOUND.pack
_unpack_bound: Final = BOUND.unpack

Queue = tuple[str, int]
"""A QueueId, or a plain tuple that is equal to it."""


class KnownQueue:
    """What is known of one queue. `maximum` and `last_physical` are as stored; `first` is found when asked for."""

    __slots__ = ("first", "last_physical", "maximum", "maximum_key", "prefix")

    def __init__(self, prefix: bytes, maximum_key: bytes, stored: bytes | None) -> None:
        self.prefix = prefix
        self.maximum_key = maximum_key
        if stored is None:
            self.maximum = self.last_physical = 0
        else:
            self.last_physical, last = _unpack_bound(stored)
            self.maximum = last + 1
        self.first: FoundUnit | None = None


LastEntries = dict[KnownQueue, tuple[QueueOffset, PhysicalOffset]]
"""The last entry of each queue that a batch touches."""


class KnownQueues:
    """A cache over the stored maxima in the family `offsets`: of about 500 bytes per queue, `cached_max` queues.

    With the native part there is a second one behind it, of the stored maxima alone, for a million queues that were in
    use at some time: RocksDB takes as long to find one of them as all else that a send to its queue costs.

    Raises ValueError for the name that no topic can have, `kv.KvError`.
    """

    def __init__(self, offsets: Family, *, cached_max: int) -> None:
        self._offsets = offsets
        self._cache: GenerationCache[Queue, KnownQueue] = GenerationCache(max(1, cached_max // 2))
        self._table: MaximaTable | None = None
        self.cached = self._cache.get
        """`cached(queue) or load(queue)` is `find(queue)` for who is in a hurry."""

    def __iter__(self) -> Iterator[Queue]:
        return iter(self._cache)

    def use(self, native: Native) -> None:
        """Have the second cache from now on."""
        self._table = native.MaximaTable(TABLE_QUEUES)

    def find(self, queue: Queue) -> KnownQueue:
        return self._cache.get(queue) or self.load(queue)

    def load(self, queue: Queue) -> KnownQueue:
        """A queue that is not cached."""
        return self._load_all([queue])[queue]

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

    def stored(self, maxima: list[tuple[bytes, bytes]]) -> None:
        """These are stored now, by their keys."""
        if self._table is not None:
            self._table.put_all(maxima)

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
        cache = self._cache
        rows = None if self._table is None else self._table.find(queues)
        if rows is None:
            rows = [(*keys_of(queue), None) for queue in queues]
        unknown = [key for _, key, value in rows if value is None]
        stored = self._read(unknown) if unknown else {}
        loaded: dict[Queue, KnownQueue] = {}
        for queue, (prefix, key, value) in zip(queues, rows, strict=True):
            known = KnownQueue(prefix, key, stored.get(key) if value is None else value)
            if cache.is_full:
                cache.rotate()
            cache.put(queue, known)
            loaded[queue] = known
        return loaded

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


def new_maxima(last_of: LastEntries) -> list[tuple[bytes, bytes]]:
    """Keys and values of the maxima that change with the entries."""
    maxima = []
    for queue, (queue_offset, physical_offset) in last_of.items():
        # A repeated request may be behind what is stored: a maximum never goes back here.
        if queue_offset + 1 >= queue.maximum:
            maxima.append((queue.maximum_key, _pack_bound(physical_offset, queue_offset)))
    return maxima
