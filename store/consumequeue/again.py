"""Entries put again from the log, which tells of queues that were deleted and began anew."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

import numpy as np

from store.consumequeue.columns import UnitColumns
from store.message import DispatchRequest
from store.offsets import PhysicalOffset, QueueId, QueueOffset


class RestartableQueues(Protocol):
    """What `put_again` needs of a consume queue store."""

    def put(self, requests: Sequence[DispatchRequest], dispatched_up_to: PhysicalOffset) -> None: ...

    def last_offset_below(self, queue: QueueId, at: PhysicalOffset) -> QueueOffset | None:
        """The last offset of the queue if its record lies below `at`; None where it does not, or there is none."""

    def begin_anew(self, queue: QueueId, offset: QueueOffset) -> None:
        """Remove the entries from `offset` on: the next one will have this offset."""


def put_again(queues: RestartableQueues, requests: Sequence[DispatchRequest], dispatched_up_to: PhysicalOffset) -> None:
    """See `ConsumeQueueStore.put_again`. Killed anywhere, it can be repeated from the stored watermark on."""
    done = 0
    last_of: dict[QueueId, QueueOffset] = {}
    for index, request in enumerate(requests):
        for queue, offset in _entries_of(request):
            last = last_of.get(queue)
            if last is None:
                last = queues.last_offset_below(queue, request.physical_offset)
            if last is not None and offset <= last:
                # what comes before may be in the queue that begins anew
                queues.put(requests[done:index], request.physical_offset)
                queues.begin_anew(queue, offset)
                done = index
            last_of[queue] = offset
    queues.put(requests[done:], dispatched_up_to)


def ascends(units: UnitColumns, last_below: Callable[[int, PhysicalOffset], QueueOffset | None]) -> bool:
    """Whether all is as usual, so that a plain put does: no queue begins anew.

    `last_below` is the `last_offset_below` of one of `units.queues`, by its index.
    """
    by_queue = np.argsort(units.queue_index, kind="stable")
    follows = np.diff(units.queue_index[by_queue], prepend=-1) == 0
    steps = np.diff(units.queue_offset[by_queue], prepend=0)
    if bool(np.any(steps[follows] <= 0)):
        return False
    first = units.select(by_queue[~follows])
    places = zip(first.queue_index.tolist(), first.physical_offset.tolist(), first.queue_offset.tolist(), strict=True)
    for index, at, offset in places:
        last = last_below(index, PhysicalOffset(at))
        if last is not None and offset <= last:
            return False
    return True


def _entries_of(request: DispatchRequest) -> Iterator[tuple[QueueId, QueueOffset]]:
    yield QueueId(request.topic, request.queue_number), request.queue_offset
    for name, offset in request.light_queues:
        yield QueueId(name, 0), offset
