"""Next free offset per queue, for the single appending thread."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from store.generations import GenerationCache
from store.offsets import QueueId, QueueOffset


class LightFloor:
    """The lowest number of a light queue that has none yet: above those of all light queues that were removed."""

    def __init__(self, stored: QueueOffset | None, save: Callable[[QueueOffset], None]) -> None:
        """`save` makes a floor durable."""
        self.offset = stored or QueueOffset(0)
        self._save = save

    def raise_to(self, offset: QueueOffset) -> None:
        """Durable when it returns. Never goes back."""
        if offset > self.offset:
            self._save(offset)
            self.offset = offset


class NextOffsets:
    """A bounded cache of next offsets over the stored maxima. Queues are QueueIds, or plain tuples equal to them.

    An entry whose record is appended but not dispatched yet must not be dropped, since the stored maximum does
    not know it: the caller names those queues when it rotates.
    """

    def __init__(self, load: Callable[[Sequence[QueueId]], Iterable[QueueOffset]], *, cached_max: int) -> None:
        """`load` tells the next offset of each of some queues."""
        self._load = load
        self._cache: GenerationCache[tuple[str, int], QueueOffset] = GenerationCache(cached_max)

    def get(self, queue: tuple[str, int]) -> QueueOffset:
        """The offset that the next record of the queue gets."""
        known = self._cache.get(queue)
        if known is None:
            [known] = self._load([QueueId(*queue)])
            self._cache.put(queue, known)
        return known

    def load(self, queues: Iterable[tuple[str, int]]) -> None:
        """Have the next offsets of all these at hand: read together, each takes a third of the time."""
        cached = self._cache.get
        unknown = {queue: None for queue in queues if cached(queue) is None}
        if unknown:
            missing = [QueueId(*queue) for queue in unknown]
            self._cache.put_all(dict(zip(unknown, self._load(missing), strict=True)))

    def advance(self, assigned: dict[tuple[str, int], QueueOffset]) -> None:
        """Take over the next offsets after an append that succeeded."""
        self._cache.put_all(assigned)

    @property
    def is_full(self) -> bool:
        return self._cache.is_full

    def rotate(self, undispatched: Iterable[QueueId]) -> None:
        """Drop what was not used lately, but none of the queues with undispatched records."""
        self._cache.rotate({queue: self.get(queue) for queue in undispatched})

    def forget(self, queues: Iterable[tuple[str, int]]) -> None:
        """Drop queues that were removed."""
        for queue in queues:
            self._cache.discard(queue)
