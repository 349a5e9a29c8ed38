"""The walk over the messages of a subscription that have become visible, by the due index, resumed where it ended."""

from __future__ import annotations

from collections.abc import Iterator
from types import TracebackType
from typing import Final

from quarry_mq.server.delivery.state.inflight import DueEntry, InFlightTable
from quarry_mq.server.delivery.state.subscription import LATEST, Subscription
from quarry_mq.store.offsets import QueueOffset

ENTRIES_READ_AT_ONCE: Final = 64
LOOKED_AHEAD_MS: Final = 20
"""Milliseconds for which receives do not search again, as long as nothing becomes visible.

It is not longer, since entries of acknowledged messages lie in the way of each search.
"""


class DueWalk:
    """A walk as a context manager, with `entries` to iterate over. The next walk begins where this one ended.

    If something earlier became due since, the next walk begins there. A row that the walk makes visible at once is not
    in the index before it is written, and has its old entry there until then: this walk skips it, the next one must
    not. Entries of queues that are not open are included.
    """

    def __init__(self, table: InFlightTable, subscription: Subscription, until_ms: int) -> None:
        self._table = table
        self._subscription = subscription
        self._until_ms = until_ms
        self._at = subscription.due_from

    def __enter__(self) -> DueWalk:
        self._subscription.due_from = LATEST  # rows that change lower it again
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # rows changed in this loop iteration are not in the index yet, and may belong before what was found there
        unwritten = DueEntry(self._subscription.unwritten_due_ms, 0, QueueOffset(0))
        self._subscription.due_from = min(self._subscription.due_from, self._at, unwritten)

    def entries(self) -> Iterator[DueEntry]:
        """Yield the due entries, the earliest first. Each counts as dealt with."""
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
        """Note that nothing written becomes visible before that time, so that the next walk need not scan it again."""
        self._at = max(self._at, DueEntry(written_ms, 0, QueueOffset(0)))

    def begin_again_at(self, entry: DueEntry) -> None:
        """Let the next walk begin at this entry at the latest."""
        self._at = min(self._at, entry)
