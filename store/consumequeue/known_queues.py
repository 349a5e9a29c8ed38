"""What is known of queues in RocksDB: their keys and bounds, kept in memory for those that were used lately."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from kv import Family
from store.consumequeue.rocks_layout import BOUND, keys_of
from store.consumequeue.search import FoundUnit
from store.generations import GenerationCache

QUEUES_PER_READ: Final = 1_000
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


class KnownQueues:
    """A cache over the stored maxima in the family `offsets`: of about 500 bytes per queue, `cached_max` queues.

    Raises ValueError for the name that no topic can have, `kv.KvError`.
    """

    def __init__(self, offsets: Family, *, cached_max: int) -> None:
        self._offsets = offsets
        self._cache: GenerationCache[Queue, KnownQueue] = GenerationCache(max(1, cached_max // 2))
        self.cached = self._cache.get
        """`cached(queue) or load(queue)` is `find(queue)` for who is in a hurry."""
        self.discard = self._cache.discard

    def __iter__(self) -> Iterator[Queue]:
        return iter(self._cache)

    def find(self, queue: Queue) -> KnownQueue:
        return self._cache.get(queue) or self.load(queue)

    def load(self, queue: Queue) -> KnownQueue:
        """A queue that is not cached."""
        return self._remember(queue, self.look_up(queue))

    def look_up(self, queue: Queue) -> KnownQueue:
        """The queue as it is stored, past the cache. From any thread."""
        prefix, key = keys_of(queue)
        return KnownQueue(prefix, key, self._offsets.get(key))

    def find_all(self, queues: Sequence[Queue]) -> list[KnownQueue]:
        """Those that are not cached are read in the order of their keys: neighbours lie in the same block."""
        found = {queue: known for queue in queues if (known := self._cache.get(queue)) is not None}
        keys = {queue: keys_of(queue) for queue in queues if queue not in found}
        missing = sorted(keys, key=lambda queue: keys[queue][1])
        for begin in range(0, len(missing), QUEUES_PER_READ):
            part = missing[begin : begin + QUEUES_PER_READ]
            stored = self._offsets.get_many([keys[queue][1] for queue in part])
            for queue, value in zip(part, stored, strict=True):
                found[queue] = self._remember(queue, KnownQueue(*keys[queue], value))
        return [found[queue] for queue in queues]

    def forget_all(self) -> None:
        self._cache.rotate()
        self._cache.rotate()

    def _remember(self, queue: Queue, known: KnownQueue) -> KnownQueue:
        if self._cache.is_full:
            self._cache.rotate()
        self._cache.put(queue, known)
        return known
