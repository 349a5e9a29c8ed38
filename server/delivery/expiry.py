"""When hidden messages become visible again."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from heapq import heapify, heappop, heappush
from itertools import count
from typing import Final, NamedTuple

from server.delivery.subscription import Subscription
from store.offsets import QueueOffset

SWEPT_ABOVE: Final = 4_096
"""Entries that may be out of date before it is worth looking."""


class Due(NamedTuple):
    """A point in time at which one delivery has to be looked at. May be out of date: compare `delivery_id`."""

    visible_at_ms: int
    sequence: int
    subscription: Subscription
    number: int
    offset: QueueOffset
    delivery_id: int


class ExpiryQueue:
    """Deliveries by the time they become visible.

    Entries of deliveries that ended or changed are left behind: most are acknowledged long before their time.
    They are swept out when they could be more than those that `is_current`, so the size follows what is in flight.
    """

    def __init__(self, is_current: Callable[[Due], bool]) -> None:
        self._is_current = is_current
        self._heap: list[Due] = []
        self._sweep_above = SWEPT_ABOVE
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
        if len(self._heap) > self._sweep_above:
            self._sweep()

    def next_ms(self) -> int | None:
        """The earliest time of all; None when nothing is hidden."""
        return self._heap[0].visible_at_ms if self._heap else None

    def pop_due(self, now_ms: int) -> Iterator[Due]:
        """Take everything whose time has come."""
        heap = self._heap
        while heap and heap[0].visible_at_ms <= now_ms:
            yield heappop(heap)

    def clear(self) -> None:
        self._heap.clear()

    def _sweep(self) -> None:
        # in place: `pop_due` may be under way
        self._heap[:] = [due for due in self._heap if self._is_current(due)]
        heapify(self._heap)
        self._sweep_above = max(SWEPT_ABOVE, 2 * len(self._heap))
