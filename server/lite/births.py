"""Lite topics come to be by their first message."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol

from quarry_mq.server.lite.counts import LiteTopicCounts
from quarry_mq.store.consumequeue.dispatch import LIGHT_QUEUE_NUMBER
from quarry_mq.store.metadata.lite import light_queue_name
from quarry_mq.store.offsets import QueueId, QueueOffset


class Maxima(Protocol):
    """What is asked of the store."""

    def maximum(self, queue: QueueId) -> QueueOffset: ...


class LiteBirths:
    """Sees to it that a topic gets no more lite topics than it may have."""

    def __init__(self, counts: LiteTopicCounts, queues: Maxima) -> None:
        self._counts = counts
        self._queues = queues

    def admit(self, parent: str, lite_topics: Iterable[str]) -> Sequence[str]:
        """Those that will come to be by messages; `born` is to follow once they are stored. Raises LiteTopicsFull."""
        new = [each for each in dict.fromkeys(lite_topics) if self._is_new(parent, each)]
        if new:
            self._counts.admit(parent)
        return new

    def born(self, parent: str, lite_topics: Iterable[str]) -> None:
        """Their messages are stored."""
        for each in lite_topics:
            self._counts.born(parent, each)

    def _is_new(self, parent: str, lite_topic: str) -> bool:
        return self._queues.maximum(QueueId(light_queue_name(parent, lite_topic), LIGHT_QUEUE_NUMBER)) == 0
