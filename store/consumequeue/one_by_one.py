"""Answers about several queues by those about each, for stores that gain nothing from reading them together."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol

from store.consumequeue.protocol import ConsumeQueueEntry
from store.offsets import QueueBounds, QueueExtent, QueueId, QueueOffset


class OneByOne(Protocol):
    """Part of a `store.consumequeue.protocol.ConsumeQueueStore`."""

    def bounds(self, queue: QueueId) -> QueueBounds: ...

    def next_offset(self, queue: QueueId) -> QueueOffset: ...

    def queues(self, topic: str | None = None) -> Iterator[QueueId]: ...

    def entries(self, queue: QueueId, start: QueueOffset, limit: int) -> list[ConsumeQueueEntry]: ...

    def extents_of_all(self, queues: Sequence[QueueId]) -> list[QueueExtent]:
        extents = []
        for queue in queues:
            minimum, maximum = self.bounds(queue)
            first = self.entries(queue, minimum, 1) if minimum < maximum else []
            extents.append(QueueExtent(minimum, maximum, first[0].physical_offset if first else None))
        return extents

    def next_offsets(self, queues: Sequence[tuple[str, int]]) -> list[QueueOffset]:
        return [self.next_offset(QueueId(*queue)) for queue in queues]

    def queues_of(self, topic: str) -> list[QueueId]:
        return list(self.queues(topic))
