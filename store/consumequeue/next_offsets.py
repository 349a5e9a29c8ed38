"""Cache the next free offset of each queue, for the single appending thread."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from quarry_mq.protocol.messages.property_names import LIGHT_QUEUES
from quarry_mq.protocol.names import LIGHT_QUEUE_PREFIX
from quarry_mq.store.consumequeue.dispatch import LIGHT_QUEUE_NUMBER
from quarry_mq.store.message import DispatchRequest, Message
from quarry_mq.store.offsets import QueueId, QueueOffset


class LightFloor:
    """The lowest first offset of a new light queue: above the offsets of all light queues that were removed."""

    def __init__(self, stored: QueueOffset | None, save: Callable[[QueueOffset], None]) -> None:
        """Begin at the stored floor. `save` makes a floor durable."""
        self.offset = stored or QueueOffset(0)
        self._save = save

    def raise_to(self, offset: QueueOffset) -> None:
        """Raise the floor durably. It never falls."""
        if offset > self.offset:
            self._save(offset)
            self.offset = offset


class NextOffsets:
    """The next offsets of recently written queues. Queues are QueueIds, or plain tuples equal to them.

    The database does not contain a record that is appended but not dispatched, so the offsets of its queues must not be
    dropped: the caller names these queues when it calls `make_room`.
    """

    def __init__(self, load: Callable[[Sequence[tuple[str, int]]], Iterable[QueueOffset]], *, cached_max: int) -> None:
        """Start with an empty cache. `load` returns the next offset of each of the given queues."""
        self._load = load
        self._cached_max = cached_max
        self._next: dict[tuple[str, int], QueueOffset] = {}

    @property
    def known(self) -> dict[tuple[str, int], QueueOffset]:
        """The cached next offsets, read-only for the caller."""
        return self._next

    def get(self, queue: tuple[str, int]) -> QueueOffset:
        """Return the offset that the next record of the queue gets."""
        known = self._next.get(queue)
        if known is None:
            [known] = self._load([queue])
            self._next[queue] = known
        return known

    def unknown(self, queues: Iterable[tuple[str, int]]) -> list[tuple[str, int]]:
        """Return the queues that are not cached, in this order."""
        known = self._next
        return [queue for queue in queues if queue not in known]

    def load(self, unknown: Sequence[tuple[str, int]]) -> None:
        """Load the next offsets of uncached queues (duplicates allowed) in one read, which takes a third of the time.

        Never pass a cached queue: the database may lag behind what was appended.
        """
        if unknown:
            self._next.update(zip(unknown, self._load(unknown), strict=True))

    def advance(self, assigned: dict[tuple[str, int], QueueOffset]) -> None:
        """Store the next offsets after an append that succeeded."""
        self._next.update(assigned)

    @property
    def is_full(self) -> bool:
        return len(self._next) >= self._cached_max

    def make_room(self, undispatched: Iterable[QueueId]) -> None:
        """Drop all cached offsets except those of queues with undispatched records."""
        self._next = {queue: self.get(queue) for queue in undispatched}

    def forget(self, queues: Iterable[tuple[str, int]]) -> None:
        """Drop queues that were removed."""
        for queue in queues:
            self._next.pop(queue, None)


def queues_named_by(messages: Iterable[Message]) -> list[tuple[str, int]]:
    """Return the queues that the messages go to, perhaps with duplicates."""
    queues = [(message.topic, message.queue_number) for message in messages]
    for message in messages:
        if LIGHT_QUEUES in message.properties:
            names = message.properties[LIGHT_QUEUES].split(",")
            queues += [(name, LIGHT_QUEUE_NUMBER) for name in names if name.startswith(LIGHT_QUEUE_PREFIX)]
    return queues


def queues_of_requests(requests: Iterable[DispatchRequest]) -> set[QueueId]:
    """Return the queues that get an entry from these requests."""
    queues: set[QueueId] = set()
    for request in requests:
        queues.add(QueueId(request.topic, request.queue_number))
        queues.update(QueueId(name, LIGHT_QUEUE_NUMBER) for name, _ in request.light_queues)
    return queues
