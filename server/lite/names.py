"""Lists the lite topics of a topic by name."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Protocol

from quarry_mq.store.consumequeue import LastEntry, LightQueueStep
from quarry_mq.store.metadata.lite import light_queue_prefix, parse_light_queue_name
from quarry_mq.store.offsets import PhysicalOffset

EVERYWHERE: Final = PhysicalOffset((1 << 63) - 1)
"""A position after every record, so that all queues end below it."""


class NamedQueues(Protocol):
    """The part of the message store that listing names needs."""

    def light_queues_ended(self, below: PhysicalOffset, key: bytes, prefix: str = ...) -> LightQueueStep: ...


def lite_topics_from(queues: NamedQueues, parent: str, key: bytes) -> tuple[Sequence[str], bytes | None]:
    """Return some lite topics of a topic from a key on (`b""`: the first), and the key of the next ones or None."""
    step = queues.light_queues_ended(EVERYWHERE, key, light_queue_prefix(parent))
    prefix = light_queue_prefix(parent)
    return [each.queue.topic.removeprefix(prefix) for each in of_parent(parent, step.ended)], step.next_key


def of_parent(parent: str, found: Sequence[LastEntry]) -> list[LastEntry]:
    """Return the light queues of this topic alone.

    The queues found may include those of a topic whose name is this one's, the separator and more.
    """
    return [each for each in found if (parse_light_queue_name(each.queue.topic) or ("",))[0] == parent]
