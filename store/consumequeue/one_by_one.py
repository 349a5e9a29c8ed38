"""Answers about several queues by those about each, for stores that gain nothing from reading them together."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol

from store.offsets import QueueBounds, QueueId, QueueOffset


class OneByOne(Protocol):
    """Part of a `store.consumequeue.protocol.ConsumeQueueStore`."""

    def bounds(self, queue: QueueId) -> QueueBounds: ...

    def next_offset(self, queue: QueueId) -> QueueOffset: ...

    def queues(self, topic: str | None = None) -> Iterator[QueueId]: ...

    def bounds_of_all(self, queues: Sequence[QueueId]) -> list[QueueBounds]:
        return [self.bounds(queue) for queue in queues]

    def next_offsets(self, queues: Sequence[tuple[str, int]]) -> list[QueueOffset]:
        return [self.next_offset(QueueId(*queue)) for queue in queues]

    def queues_of(self, topic: str) -> list[QueueId]:
        return list(self.queues(topic))
