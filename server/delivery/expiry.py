"""When hidden messages become visible again."""

from __future__ import annotations

from collections.abc import Iterator
from heapq import heappop, heappush
from itertools import count
from typing import NamedTuple

from server.delivery.subscription import Subscription
from store.offsets import QueueOffset


class Due(NamedTuple):
    """A point in time at which one delivery has to be looked at. May be out of date: compare `delivery_id`."""

    visible_at_ms: int
    sequence: int
    subscription: Subscription
    number: int
    offset: QueueOffset
    delivery_id: int


class ExpiryQueue:
    """Deliveries by the time they become visible; changed ones stay until their old time and are then passed over."""

    def __init__(self) -> None:
        self._heap: list[Due] = []
        self._sequence = count()

    def __len__(self) -> int:
        return len(self._heap)

    def add(
        self,
        visible_at_ms: int,
        subscription: Subscription,
        number: int,
        offset: QueueOffset,
        delivery_id: int,
    ) -> None:
        heappush(self._heap, Due(visible_at_ms, next(self._sequence), subscription, number, offset, delivery_id))

    def next_ms(self) -> int | None:
        """The earliest time of all; None when nothing is hidden."""
        return self._heap[0].visible_at_ms if self._heap else None

    def pop_due(self, now_ms: int) -> Iterator[Due]:
        """Take everything whose time has come."""
        heap = self._heap
        while heap and heap[0].visible_at_ms <= now_ms:
            yield heappop(heap)
