"""Finds the lite topics to which the clients of a group subscribe, whether or not they hold messages for it."""

from __future__ import annotations

from collections.abc import Iterator

from quarry_mq.server.delivery.lite import NamedQueues, lite_topics_from
from quarry_mq.store.metadata import GroupTable, TopicTable, TopicType
from quarry_mq.store.metadata.lite import LiteGroup, light_queue_name
from quarry_mq.store.metadata.lite_subscriptions import ALL_OF_THEM, LiteSubscriptionTable


class WantedLiteTopics:
    """The subscriptions of groups to lite topics, as they are stored."""

    def __init__(
        self, table: LiteSubscriptionTable, *, groups: GroupTable, topics: TopicTable, queues: NamedQueues
    ) -> None:
        self._table = table
        self._groups = groups
        self._topics = topics
        self._queues = queues

    def of(self, group: str) -> Iterator[str]:
        """Yield the names of the light queues to which the group subscribes; one may come twice.

        Costs a lookup for each.
        """
        terms = self._terms(group)
        if terms is None:
            return
        for lite_topic in self._table.wanted(group):
            yield light_queue_name(terms.bind_topic, lite_topic)
        if not self._wants_all(group, terms):
            return
        key: bytes | None = b""
        while key is not None:
            lite_topics, key = lite_topics_from(self._queues, terms.bind_topic, key)
            for lite_topic in lite_topics:
                if lite_topic.startswith(terms.wildcard or ""):
                    yield light_queue_name(terms.bind_topic, lite_topic)

    def has(self, group: str, parent: str, lite_topic: str) -> bool:
        """Return whether the group subscribes to this lite topic of the topic."""
        terms = self._terms(group)
        if terms is None or terms.bind_topic != parent:
            return False
        if self._table.clients_of(group, lite_topic):
            return True
        return self._wants_all(group, terms) and lite_topic.startswith(terms.wildcard or "")

    def _terms(self, group: str) -> LiteGroup | None:
        """Return the group's lite settings; None for a group that reads no lite topics, or no longer does."""
        found = self._groups.get(group)
        terms = None if found is None else LiteGroup.of(found)
        topic = None if terms is None else self._topics.get(terms.bind_topic)
        return terms if topic is not None and topic.type is TopicType.LITE else None

    def _wants_all(self, group: str, terms: LiteGroup) -> bool:
        return terms.wildcard is not None and bool(self._table.clients_of(group, ALL_OF_THEM))
