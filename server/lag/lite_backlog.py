"""Find the lite topics in which a group has the most lag, and what is ready for each of its clients."""

from __future__ import annotations

from collections.abc import Iterator
from heapq import nlargest
from typing import Final, NamedTuple, Protocol

from quarry_mq.protocol.names import is_light_queue
from quarry_mq.server.delivery.lite import LiteDelivery
from quarry_mq.server.lag.measurement import QueuePosition
from quarry_mq.server.lite.wanted import WantedLiteTopics
from quarry_mq.server.tasks.time_slice import TimeSlice
from quarry_mq.store.errors import GroupNotFound, Invalid, TopicNotFound
from quarry_mq.store.metadata import GroupTable, TopicTable, TopicType
from quarry_mq.store.metadata.lite import LiteGroup, parse_light_queue_name
from quarry_mq.store.metadata.lite_subscriptions import ALL_OF_THEM, LiteSubscriptionTable
from quarry_mq.store.offsets import QueueId

LOOKED_AT_MAX: Final = 10_000
"""Lite topics that one call looks at, some 50 µs each."""


class QueuePositions(Protocol):
    def position(self, group: str, queue: QueueId) -> QueuePosition: ...

    def stored_ms(self, queue: QueueId, offset: int) -> int | None: ...


class ReadTopics(Protocol):
    def topics_of(self, group: str, *, light_queues: bool = ...) -> Iterator[str]: ...


class LiteTopicBacklog(NamedTuple):
    """A lite topic with lag. `oldest_ms` is when its first ready message was stored; None if that cannot be read."""

    lite_topic: str
    ready: int
    oldest_ms: int | None


class LiteClientDepth(NamedTuple):
    """A client of the group. `ready`: lite topics that may have messages for it. `subscriptions`: those by name."""

    client_id: str
    ready: int
    subscriptions: int
    wants_all: bool


class LiteBacklogView(NamedTuple):
    """The lag of a group in lite topics. Unless `is_complete`, only `looked_at` lite topics were looked at."""

    lite_topics: list[LiteTopicBacklog]
    clients: list[LiteClientDepth]
    looked_at: int
    is_complete: bool


class LiteBacklog:
    """Finds the lite topics with the most lag. Lives on the event loop's thread."""

    def __init__(
        self,
        progress: QueuePositions,
        delivery: LiteDelivery,
        *,
        topics: TopicTable,
        groups: GroupTable,
        offsets: ReadTopics,
        table: LiteSubscriptionTable,
        wanted: WantedLiteTopics,
    ) -> None:
        self._progress = progress
        self._delivery = delivery
        self._topics = topics
        self._groups = groups
        self._offsets = offsets
        self._table = table
        self._wanted = wanted

    async def of(self, parent: str, group: str, limit: int, time_slice: TimeSlice) -> LiteBacklogView:
        """Return at most `limit` lite topics and clients, those with most first.

        Raises TopicNotFound, GroupNotFound, Invalid, kv.KvError.
        """
        self._check(parent, group)
        seen: set[str] = set()
        ready: list[tuple[int, str, QueuePosition]] = []
        is_complete = True
        for lite_topic, name in self._lite_topics(parent, group):
            await time_slice.pause()
            if lite_topic in seen:
                continue
            if len(seen) == LOOKED_AT_MAX:
                is_complete = False
                break
            seen.add(lite_topic)
            position = self._progress.position(group, QueueId(name, 0))
            if position.ready:
                ready.append((position.ready, lite_topic, position))
        most = nlargest(limit, ready, key=lambda each: each[:2])
        backlog = []
        for count, lite_topic, position in most:
            await time_slice.pause()
            oldest_ms = self._progress.stored_ms(position.queue, position.next_offset)
            backlog.append(LiteTopicBacklog(lite_topic, count, oldest_ms))
        return LiteBacklogView(backlog, await self._clients(group, limit, time_slice), len(seen), is_complete)

    def _check(self, parent: str, group: str) -> None:
        topic = self._topics.get(parent)
        if topic is None:
            raise TopicNotFound(f"topic: no topic {parent}")
        if topic.type is not TopicType.LITE:
            raise Invalid(f"topic: topic {parent} is of type {topic.type.value}, which has no lite topics")
        found = self._groups.get(group)
        if found is None:
            raise GroupNotFound(f"group: no group {group}")
        terms = LiteGroup.of(found)
        if terms is None or terms.bind_topic != parent:
            raise Invalid(f"group: group {group} reads no lite topics of topic {parent}")

    def _lite_topics(self, parent: str, group: str) -> Iterator[tuple[str, str]]:
        """Yield the lite topics that the group has read or subscribed to, with their light queues; some come twice."""
        for names in (self._offsets.topics_of(group), self._wanted.of(group)):
            for name in names:
                found = parse_light_queue_name(name) if is_light_queue(name) else None
                if found is not None and found[0] == parent:
                    yield found[1], name

    async def _clients(self, group: str, limit: int, time_slice: TimeSlice) -> list[LiteClientDepth]:
        depths = []
        for client in nlargest(limit, self._delivery.depths(group)):
            await time_slice.pause()
            names = self._table.of_client(group, client.client_id)
            wants_all = ALL_OF_THEM in names
            depths.append(LiteClientDepth(client.client_id, client.ready, len(names) - wants_all, wants_all))
        return depths
