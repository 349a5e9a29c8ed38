"""Put entries again from the log, also for queues that RocketMQ deleted and that began again at a lower offset.

Deletions by this broker are known (`store.state.deletions`), and the entries of deleted records are left out. RocketMQ
records no deletion. It shows in the offsets: a record has an offset that the queue has already given to an earlier
record. Two kinds of stored entries may then be wrong and are removed. First, the entries from before the deletion.
Second, after a crash, entries of records further on in the log may be stored already; they are put again later, if
their records are still there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

import numpy as np

from quarry_mq.store.consumequeue.search import EntryColumns
from quarry_mq.store.message import ConsumeQueueEntry, DispatchRequest, PhysicalOffset, QueueId, QueueOffset


class RestartableQueues(Protocol):
    """The calls of a consume queue store that `put_again` makes."""

    def put(self, requests: Sequence[DispatchRequest], dispatched_up_to: PhysicalOffset) -> None: ...

    def end_for(self, queue: QueueId, offset: QueueOffset, at: PhysicalOffset) -> QueueOffset | None:
        """Return where to cut the queue so that the record at `at` gets `offset`; None: nothing has to be cut.

        The record is the first of its queue that is put again. All stored entries belong to one life of the queue.
        """

    def restart_at(self, queue: QueueId, offset: QueueOffset) -> None:
        """Remove the entries from `offset` on: the next one will have this offset."""


def put_again(queues: RestartableQueues, requests: Sequence[DispatchRequest], dispatched_up_to: PhysicalOffset) -> None:
    """Implement `ConsumeQueueStore.put_again`. After a crash it can be repeated from the stored watermark on."""
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
                # the requests before this one may have entries in the queue that is cut
                queues.put(requests[done:index], request.physical_offset)
                queues.restart_at(queue, end)
                done = index
            last_of[queue] = offset
    queues.put(requests[done:], dispatched_up_to)


class StoredQueues(Protocol):
    """Reads the stored entries of queues."""

    def entries(self, queue: QueueId, start: QueueOffset, limit: int) -> Sequence[ConsumeQueueEntry]: ...

    def last_entry_below(self, queue: QueueId, at: PhysicalOffset) -> ConsumeQueueEntry | None:
        """Return the entry with the largest physical offset below `at`."""


def end_of_stored(
    queues: StoredQueues, queue: QueueId, offset: QueueOffset, at: PhysicalOffset, *, maximum: int, last_physical: int
) -> QueueOffset | None:
    """Implement `RestartableQueues.end_for` for a queue with this max offset and its last record at `last_physical`."""
    if maximum == 0:
        return None
    if last_physical < at:
        return offset if offset < maximum else None
    stored = queues.entries(queue, offset, 1)
    if stored and (stored[0].queue_offset, stored[0].physical_offset) == (offset, at):
        return None
    below = queues.last_entry_below(queue, at)
    return min(offset, QueueOffset(0 if below is None else below.queue_offset + 1))


def ascends(entries: EntryColumns, end_for: Callable[[int, QueueOffset, PhysicalOffset], QueueOffset | None]) -> bool:
    """Return whether a plain `put` is correct, because no queue begins again.

    `end_for` is that of `RestartableQueues`, with an index into `units.queues` in place of the queue.
    """
    by_queue = np.argsort(entries.queue_index, kind="stable")
    follows = np.diff(entries.queue_index[by_queue], prepend=-1) == 0
    steps = np.diff(entries.queue_offset[by_queue], prepend=0)
    if bool(np.any(steps[follows] <= 0)):
        return False
    first = entries.select(by_queue[~follows])
    places = zip(first.queue_index.tolist(), first.physical_offset.tolist(), first.queue_offset.tolist(), strict=True)
    return all(end_for(index, QueueOffset(offset), PhysicalOffset(at)) is None for index, at, offset in places)


def _entries_of(request: DispatchRequest) -> Iterator[tuple[QueueId, QueueOffset]]:
    yield QueueId(request.topic, request.queue_number), request.queue_offset
    for name, offset in request.light_queues:
        yield QueueId(name, 0), offset
