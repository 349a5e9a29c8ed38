"""A walk over what of a subscription has become visible, by the index of times, from where the last one ended."""

from __future__ import annotations

from collections.abc import Iterator
from types import TracebackType
from typing import Final

from quarry_mq.server.delivery.state.inflight import DueEntry, InFlightTable
from quarry_mq.server.delivery.state.subscription import LATEST, Subscription
from quarry_mq.store.offsets import QueueOffset

ENTRIES_READ_AT_ONCE: Final = 64
LOOKED_AHEAD_MS: Final = 20
"""Receives that come while nothing becomes visible do not look. Not longer: what was acknowledged lies in the way."""


class DueWalk:
    """`with` it, go through `entries`; the next walk begins behind the last one, or where something became due since.

    What the walk itself makes visible at once is not in the index before it is written, and has its old entry there
    until then: this walk passes over it, the next one must not. What a queue has in flight that is not open comes, too.
    """

    def __init__(self, table: InFlightTable, subscription: Subscription, until_ms: int) -> None:
        self._table = table
        self._subscription = subscription
        self._until_ms = until_ms
        self._at = subscription.due_from

    def __enter__(self) -> DueWalk:
        self._subscription.due_from = LATEST  # rows that change lower it
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # rows that this pass has changed are not in the index yet, and may belong before what was found there
        unwritten = DueEntry(self._subscription.unwritten_due_ms, 0, QueueOffset(0))
        self._subscription.due_from = min(self._subscription.due_from, self._at, unwritten)

    def entries(self) -> Iterator[DueEntry]:
        """The earliest first. Each counts as dealt with."""
        ahead_ms = self._until_ms + LOOKED_AHEAD_MS
        while self._at.visible_at_ms <= self._until_ms:
            found = self._table.due(self._subscription.prefix, self._at, ahead_ms, ENTRIES_READ_AT_ONCE)
            for entry in found:
                if entry.visible_at_ms > self._until_ms:
                    self._rest_until(entry.visible_at_ms)
                    return
                self._at = entry.following
                yield entry
            if len(found) < ENTRIES_READ_AT_ONCE:
                self._rest_until(ahead_ms + 1)
                return

    def _rest_until(self, written_ms: int) -> None:
        """Nothing that is written becomes visible before that: the next walk need not pass over all of it again."""
        self._at = max(self._at, DueEntry(written_ms, 0, QueueOffset(0)))

    def begin_again_at(self, entry: DueEntry) -> None:
        """The next walk is to come to the entry, and to all behind it."""
        self._at = min(self._at, entry)
