"""Entries put again from the log, which does not tell of queues that were deleted and began anew.

It shows in the numbers: a record has an offset that the queue has given away before. Two things may then be stored that
do not go with it. What the queue held before has to go. And after a crash what the queue has held since may be stored
already, from records further on in the log: it has to go, too, and will be put again, if its records are still there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

import numpy as np

from quarry_mq.store.consumequeue.columns import UnitColumns
from quarry_mq.store.message import ConsumeQueueEntry, DispatchRequest
from quarry_mq.store.offsets import PhysicalOffset, QueueId, QueueOffset


class RestartableQueues(Protocol):
    """What `put_again` needs of a consume queue store."""

    def put(self, requests: Sequence[DispatchRequest], dispatched_up_to: PhysicalOffset) -> None: ...

    def end_for(self, queue: QueueId, offset: QueueOffset, at: PhysicalOffset) -> QueueOffset | None:
        """Where the queue has to end for the record at `at` to stand at `offset`; None: nothing is in its way.

        It is the first of its queue that is put again: what is stored goes back to one life of the queue.
        """

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
                end = queues.end_for(queue, offset, request.physical_offset)
            else:
                end = offset if offset <= last else None
            if end is not None:
                # what comes before may be in the queue that begins anew
                queues.put(requests[done:index], request.physical_offset)
                queues.begin_anew(queue, end)
                done = index
            last_of[queue] = offset
    queues.put(requests[done:], dispatched_up_to)


class StoredQueues(Protocol):
    """What is stored of queues."""

    def entries(self, queue: QueueId, start: QueueOffset, limit: int) -> Sequence[ConsumeQueueEntry]: ...

    def last_entry_below(self, queue: QueueId, at: PhysicalOffset) -> ConsumeQueueEntry | None: ...


def end_of_stored(
    queues: StoredQueues, queue: QueueId, offset: QueueOffset, at: PhysicalOffset, *, maximum: int, last_physical: int
) -> QueueOffset | None:
    """`RestartableQueues.end_for` of a queue with this maximum, whose last record lies at `last_physical`."""
    if maximum == 0:
        return None
    if last_physical < at:
        return offset if offset < maximum else None
    stored = queues.entries(queue, offset, 1)
    if stored and (stored[0].queue_offset, stored[0].physical_offset) == (offset, at):
        return None
    below = queues.last_entry_below(queue, at)
    return min(offset, QueueOffset(0 if below is None else below.queue_offset + 1))


def ascends(units: UnitColumns, end_for: Callable[[int, QueueOffset, PhysicalOffset], QueueOffset | None]) -> bool:
    """Whether all is as usual, so that a plain put does: no queue begins anew.

    `end_for` is that of one of `units.queues`, by its index.
    """
    by_queue = np.argsort(units.queue_index, kind="stable")
    follows = np.diff(units.queue_index[by_queue], prepend=-1) == 0
    steps = np.diff(units.queue_offset[by_queue], prepend=0)
    if bool(np.any(steps[follows] <= 0)):
        return False
    first = units.select(by_queue[~follows])
    places = zip(first.queue_index.tolist(), first.physical_offset.tolist(), first.queue_offset.tolist(), strict=True)
    return all(end_for(index, QueueOffset(offset), PhysicalOffset(at)) is None for index, at, offset in places)


def _entries_of(request: DispatchRequest) -> Iterator[tuple[QueueId, QueueOffset]]:
    yield QueueId(request.topic, request.queue_number), request.queue_offset
    for name, offset in request.light_queues:
        yield QueueId(name, 0), offset
