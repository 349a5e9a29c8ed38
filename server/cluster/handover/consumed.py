"""Checks whether consumer groups have got everything that this member's log holds before a fence."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from quarry_mq.server.cluster.handover.barriers import Consumed, Pair
from quarry_mq.server.delivery.model import MessageSource
from quarry_mq.store.offsets import PhysicalOffset, QueueId, QueueOffset


class LogSource(MessageSource, Protocol):
    """The part of the message store that the check reads."""

    @property
    def dispatched_up_to(self) -> PhysicalOffset: ...


class GroupProgress(Protocol):
    """The part of delivery that the check asks."""

    def is_done_before(self, group: str, queue: QueueId, offset: QueueOffset) -> bool: ...


class ConsumedBefore:
    """Answers other members about fences of this one. Lives on the event loop's thread."""

    def __init__(self, source: LogSource, progress: GroupProgress, log_begin: Callable[[], PhysicalOffset]) -> None:
        self._source = source
        self._progress = progress
        self._log_begin = log_begin

    def consumed(self, position: int, pairs: Sequence[Pair]) -> Consumed:
        """Return the pairs that have nothing left before the position."""
        if self._source.dispatched_up_to < min(position, self._source.appended_up_to):
            return Consumed((), is_passed=False)  # the log may hold messages that are not in the queues yet
        done = [pair for pair in pairs if self._is_done(position, pair)]
        return Consumed(done, is_passed=self._log_begin() >= position)

    def _is_done(self, position: int, pair: Pair) -> bool:
        for queue in self._source.iterate_queues(pair.topic):
            end = self._first_after(queue, position)
            # a group that never read here has still to get everything that the queue holds
            if end > self._source.bounds(queue).minimum and not self._progress.is_done_before(pair.group, queue, end):
                return False
        return True

    def _first_after(self, queue: QueueId, position: int) -> QueueOffset:
        """Return the first offset of the queue whose entry lies at the log position or after it."""
        low, high = self._source.bounds(queue)
        while low < high:
            middle = QueueOffset((low + high) // 2)
            entries = self._source.entries(queue, middle, 1)
            if entries and entries[0].physical_offset < position:
                low = QueueOffset(entries[0].queue_offset + 1)
            else:
                high = middle
        return low
