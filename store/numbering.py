"""Next free offset per queue, for the single appending thread."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from store.generations import GenerationCache
from store.offsets import QueueId, QueueOffset


class NextOffsets:
    """A bounded cache of next offsets over the stored maxima.

    An entry whose record is appended but not dispatched yet must not be dropped, since the stored maximum does
    not know it: the caller names those queues when it rotates.
    """

    def __init__(self, load: Callable[[QueueId], QueueOffset], *, cached_max: int) -> None:
        self._load = load
        self._cache: GenerationCache[tuple[str, int], QueueOffset] = GenerationCache(cached_max)

    def get(self, queue: tuple[str, int]) -> QueueOffset:
        """The offset that the next record of the queue gets: a QueueId, or a plain tuple that is equal to it."""
        known = self._cache.get(queue)
        if known is None:
            known = self._load(QueueId(*queue))
            self._cache.put(queue, known)
        return known

    def advance(self, assigned: dict[tuple[str, int], QueueOffset]) -> None:
        """Take over the next offsets after an append that succeeded."""
        self._cache.put_all(assigned)

    @property
    def is_full(self) -> bool:
        return self._cache.is_full

    def rotate(self, undispatched: Iterable[QueueId]) -> None:
        """Drop what was not used lately, but none of the queues with undispatched records."""
        self._cache.rotate({queue: self.get(queue) for queue in undispatched})

    def forget(self, topic: str) -> None:
        """Drop all queues of a deleted topic."""
        for queue in self._cache:
            if queue[0] == topic:
                self._cache.discard(queue)
