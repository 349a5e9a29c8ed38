"""A lite topic is created by its first message; this module keeps each topic within its limit of lite topics."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol

from quarry_mq.server.lite.counts import LiteTopicCounts
from quarry_mq.store.consumequeue.dispatch import LIGHT_QUEUE_NUMBER
from quarry_mq.store.metadata.lite import light_queue_name
from quarry_mq.store.offsets import QueueId, QueueOffset


class Maxima(Protocol):
    """The part of the message store that `LiteBirths` needs."""

    def maximum(self, queue: QueueId) -> QueueOffset: ...


class LiteBirths:
    """Makes sure that a topic gets no more lite topics than its limit allows."""

    def __init__(self, counts: LiteTopicCounts, queues: Maxima) -> None:
        self._counts = counts
        self._queues = queues

    def admit(self, parent: str, lite_topics: Iterable[str]) -> Sequence[str]:
        """Return the lite topics that do not exist yet; call `born` once their messages are stored.

        Raises LiteTopicsFull.
        """
        new = [each for each in dict.fromkeys(lite_topics) if self._is_new(parent, each)]
        if new:
            self._counts.admit(parent)
        return new

    def born(self, parent: str, lite_topics: Iterable[str]) -> None:
        """Count lite topics whose first messages are stored."""
        for each in lite_topics:
            self._counts.born(parent, each)

    def _is_new(self, parent: str, lite_topic: str) -> bool:
        return self._queues.maximum(QueueId(light_queue_name(parent, lite_topic), LIGHT_QUEUE_NUMBER)) == 0
