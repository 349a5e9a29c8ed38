"""A cache of rows in flight that were created a moment ago: most messages are acknowledged soon after."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from quarry_mq.server.delivery.state.inflight import InFlight
from quarry_mq.server.delivery.state.subscription import QueueProgress
from quarry_mq.store.offsets import QueueOffset

RECENT_ROWS_MAX: Final = 16_384
"""Rows of all groups together, at some 300 bytes each. When they are exceeded, rows are read from the table."""


class RecentRows:
    """Rows as they are staged or written, with their queues; each is dropped when it changes.

    When there are too many, all of them are evicted. Consumers that keep messages for longer than 16,384 messages take
    gain nothing from the cache, and no order has to be kept.
    """

    __slots__ = ("_count", "_holders")

    def __init__(self) -> None:
        self._count = 0
        self._holders: dict[QueueProgress, None] = {}

    def __len__(self) -> int:
        return self._count

    def add(self, progress: QueueProgress, rows: Mapping[QueueOffset, InFlight]) -> None:
        """Add the rows of messages that had none."""
        if self._count + len(rows) > RECENT_ROWS_MAX:
            self._clear()
        self._count += len(rows)
        if not progress.recent:
            self._holders[progress] = None
        progress.recent.update(rows)

    def drop(self, progress: QueueProgress, offset: QueueOffset) -> None:
        """Drop a row that has changed or was deleted."""
        if progress.recent.pop(offset, None) is not None:
            self._count -= 1
            if not progress.recent:
                del self._holders[progress]

    def drop_from(self, progress: QueueProgress, start: int) -> None:
        """Drop all rows of the queue from an offset on, since they have changed."""
        for offset in [each for each in progress.recent if each >= start]:
            self.drop(progress, offset)

    def _clear(self) -> None:
        for progress in self._holders:
            progress.recent.clear()
        self._holders.clear()
        self._count = 0
