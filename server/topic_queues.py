"""Which queues a topic has, and had."""

from __future__ import annotations

from typing import Protocol

from store.offsets import QueueId


class StoredQueues(Protocol):
    """The part of the message store that tells."""

    def iterate_queues(self, topic: str) -> list[QueueId]: ...


def queues_of_topic(stored: StoredQueues, topic: str, count: int) -> list[QueueId]:
    """The `count` queues that the topic has now, and those that hold messages from when it had more; by number."""
    numbers = {*range(count), *(queue.number for queue in stored.iterate_queues(topic))}
    return [QueueId(topic, number) for number in sorted(numbers)]
