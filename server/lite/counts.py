"""Counts the lite topics of each topic and enforces the limit on their number (docs/limits.md).

A broker does not walk over a million names before it serves. After a start the lite topics are counted in the
background, one step at a time; until those of a topic are counted, the topic may have more than its limit. Lite topics
that are created or removed meanwhile are kept by name until the count is done, so that the number is right wherever the
walk was at that moment.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, Protocol

from quarry_mq.protocol.messages.property_names import LIGHT_QUEUES
from quarry_mq.protocol.names import LIGHT_QUEUE_PREFIX
from quarry_mq.server.delivery.lite import EVERYWHERE
from quarry_mq.server.errors import LiteTopicsFull
from quarry_mq.server.tasks import PAUSE_S, Worker
from quarry_mq.store.consumequeue import LightQueueStep, LiteParentsStep
from quarry_mq.store.consumequeue.dispatch import LIGHT_QUEUE_NUMBER
from quarry_mq.store.errors import Invalid
from quarry_mq.store.message import Message, PhysicalOffset, QueueId, QueueOffset
from quarry_mq.store.metadata.lite import light_queue_name, light_queue_prefix, parse_light_queue_name

BORN_KEPT: Final = 4_096
"""Number of recently created names to remember: two first messages of one lite topic may be on their way at once."""


class CountedQueues(Protocol):
    """The part of the message store that counting needs, called from another thread."""

    def light_queues_ended(self, below: PhysicalOffset, key: bytes, prefix: str = ...) -> LightQueueStep: ...

    def lite_parents(self, key: bytes) -> LiteParentsStep: ...


class LiteTopicCounts:
    """The number of lite topics of each topic. Lives on the event loop's thread; `total` may be read on any thread."""

    def __init__(self, limit: int) -> None:
        """`limit` is the highest number of lite topics of one topic; 0 means any number."""
        self.limit = limit
        self._counts: dict[str, int] = {}
        self._changes: dict[str, dict[str, bool]] | None = {}
        """Names created (True) or removed (False) in each topic that is not counted yet; None when all are counted."""
        self._walk = _Walk("")
        self._born: dict[str, None] = {}

    def configure(self, limit: int) -> None:
        self.limit = limit

    @property
    def total(self) -> int:
        """The number of lite topics of all topics that are counted."""
        return sum(self._counts.copy().values())

    @property
    def is_complete(self) -> bool:
        """True when the lite topics of all topics are counted."""
        return self._changes is None

    def count_of(self, parent: str) -> int | None:
        """Return the number of lite topics of the topic; None when they are not counted yet."""
        return self._counts.get(parent, 0 if self._changes is None else None)

    def admit(self, parent: str) -> None:
        """Check that a topic may get one more lite topic. Raises LiteTopicsFull.

        Lite topics whose first messages are still on their way are
        not counted, so a topic may get slightly more than the limit.
        """
        count = self.count_of(parent)
        if self.limit and count is not None and count >= self.limit:
            raise LiteTopicsFull("lite_topics_per_topic", f"topic {parent} has {count} lite topics")

    def born(self, parent: str, lite: str) -> None:
        """Count a lite topic whose first message was dispatched. A repeated call within a moment counts once."""
        name = light_queue_name(parent, lite)
        if name in self._born:
            return
        self._born[name] = None
        if len(self._born) > BORN_KEPT:
            del self._born[next(iter(self._born))]
        self._change(parent, name, is_there=True)

    def removed(self, names: Sequence[str]) -> None:
        """Subtract removed light queues from the counts; names of light queues that are no lite topics are ignored."""
        for name in names:
            self._born.pop(name, None)
            named = parse_light_queue_name(name)
            if named is not None:
                self._change(named[0], name, is_there=False)

    def _change(self, parent: str, name: str, *, is_there: bool) -> None:
        if self._changes is None or parent in self._counts:
            self._counts[parent] = max(0, self._counts.get(parent, 0) + (1 if is_there else -1))
            return
        changes = self._changes.setdefault(parent, {})
        if not is_there and name not in changes and parent == self._walk.parent and self._walk.has_passed(name):
            self._walk.counted -= 1
        changes[name] = is_there

    # -- counting

    async def count_all(self, queues: CountedQueues, worker: Worker) -> None:
        """Count the lite topics of all topics that have some. To be called once. Raises kv.KvError."""
        parents_key: bytes | None = b""
        while parents_key is not None:
            found = await worker.run(queues.lite_parents, parents_key)
            for parent in dict.fromkeys(found.parents):
                if parent not in self._counts:
                    await self._count(parent, queues, worker)
            parents_key = found.next_key
        for parent, changes in (self._changes or {}).items():
            self._counts[parent] = sum(changes.values())  # their first lite topics came after the walk had passed
        self._changes = None

    async def _count(self, parent: str, queues: CountedQueues, worker: Worker) -> None:
        assert self._changes is not None, "to be done once"
        prefix = light_queue_prefix(parent)
        self._walk = walk = _Walk(parent)
        changes = self._changes.setdefault(parent, {})
        key: bytes | None = b""
        while key is not None:
            step = await worker.run(queues.light_queues_ended, EVERYWHERE, key, prefix)
            walk.count([each.queue.topic for each in step.ended], changes)
            key = step.next_key
            await asyncio.sleep(PAUSE_S)
        self._counts[parent] = walk.counted + sum(changes.values())
        del self._changes[parent]


class _Walk:
    """Progress of the count of one topic. It counts the lite topics that had not changed when the walk passed them."""

    def __init__(self, parent: str) -> None:
        self.parent = parent
        self.counted = 0
        self._passed = (0, "")

    def has_passed(self, name: str) -> bool:
        return _place(name) <= self._passed

    def count(self, names: Sequence[str], changes: Mapping[str, bool]) -> None:
        own = [name for name in names if (parse_light_queue_name(name) or ("",))[0] == self.parent]
        self.counted += sum(name not in changes for name in own)
        if names:
            self._passed = _place(names[-1])


def _place(name: str) -> tuple[int, str]:
    """Return the sort key of a light queue's name: keys of one topic are ordered by length, then by name."""
    return len(name), name


class LightQueueStore(Protocol):
    """The part of the message store that `LiteBirths` needs."""

    def maximum(self, queue: QueueId) -> QueueOffset: ...

    def may_have_queue(self, topic: str) -> bool:
        """Return whether the store can have a queue of this name."""


class LiteBirths:
    """Makes sure that a topic gets no more lite topics than its limit allows, and no queue that cannot be stored."""

    def __init__(self, counts: LiteTopicCounts, queues: LightQueueStore) -> None:
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

    def check_names(self, messages: Sequence[Message]) -> None:
        """Check that the store can have each light queue that the messages name.

        Raises Invalid: elsewhere a message would never be seen.
        """
        for message in messages:
            if LIGHT_QUEUES in message.properties:
                for name in message.properties[LIGHT_QUEUES].split(","):
                    if name.startswith(LIGHT_QUEUE_PREFIX) and not self._queues.may_have_queue(name):
                        raise Invalid(
                            f"{LIGHT_QUEUES}: this store keeps its queues in files, and the name of the light queue "
                            f"{name} is not possible as a file name"
                        )

    def _is_new(self, parent: str, lite_topic: str) -> bool:
        return self._queues.maximum(QueueId(light_queue_name(parent, lite_topic), LIGHT_QUEUE_NUMBER)) == 0
