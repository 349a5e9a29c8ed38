"""Next free offset per queue, for the single appending thread."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from store.offsets import QueueId, QueueOffset


class NextOffsets:
    """A bounded cache of next offsets over the stored maxima.

    Two generations: entries not used while the young one filled up are dropped. An entry whose record is
    appended but not dispatched yet must not be dropped, since the stored maximum does not know it: the caller
    names those when it rotates.
    """

    def __init__(self, load: Callable[[QueueId], QueueOffset], *, cached_max: int) -> None:
        self._load = load
        self._cached_max = cached_max
        self._young: dict[tuple[str, int], QueueOffset] = {}
        self._old: dict[tuple[str, int], QueueOffset] = {}

    def get(self, queue: QueueId) -> QueueOffset:
        """The offset that the next record of the queue gets."""
        known = self._young.get(queue)
        if known is None:
            known = self._old.get(queue)
            if known is None:
                known = self._load(queue)
            self._young[queue] = known
        return known

    def advance(self, assigned: dict[QueueId, QueueOffset]) -> None:
        """Take over the next offsets after an append that succeeded."""
        self._young.update(assigned)

    @property
    def is_full(self) -> bool:
        return len(self._young) >= self._cached_max

    def rotate(self, undispatched: Iterable[QueueId]) -> None:
        """Drop what was not used lately, but none of the queues with undispatched records."""
        kept = {queue: self.get(queue) for queue in undispatched}
        self._old = self._young
        self._young = dict(kept)

    def forget(self, topic: str) -> None:
        """Drop all queues of a deleted topic."""
        for generation in (self._young, self._old):
            for queue in [queue for queue in generation if queue[0] == topic]:
                del generation[queue]
