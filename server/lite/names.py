"""The lite topics that a topic has, by name."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Protocol

from quarry_mq.store.consumequeue import LastEntry, LightQueueStep
from quarry_mq.store.metadata.lite import light_queue_prefix, parse_light_queue_name
from quarry_mq.store.offsets import PhysicalOffset

EVERYWHERE: Final = PhysicalOffset((1 << 63) - 1)
"""Behind every record: all queues end below."""


class NamedQueues(Protocol):
    """What is asked of the message store."""

    def light_queues_ended(self, below: PhysicalOffset, key: bytes, prefix: str = ...) -> LightQueueStep: ...


def lite_topics_from(queues: NamedQueues, parent: str, key: bytes) -> tuple[Sequence[str], bytes | None]:
    """Some of a topic's lite topics, from a key on (`b""`: the first), and from which key there may be more."""
    step = queues.light_queues_ended(EVERYWHERE, key, light_queue_prefix(parent))
    prefix = light_queue_prefix(parent)
    return [each.queue.topic.removeprefix(prefix) for each in of_parent(parent, step.ended)], step.next_key


def of_parent(parent: str, found: Sequence[LastEntry]) -> list[LastEntry]:
    """Without those of a topic whose name begins as this one's and goes on with the separator."""
    return [each for each in found if (parse_light_queue_name(each.queue.topic) or ("",))[0] == parent]
