"""Which topics can have messages that wait behind a barrier."""

from __future__ import annotations

from typing import Final

from server.cluster.handover.barriers import Barriers
from store.metadata import TopicTable, TopicType, is_light_queue

WITH_GROUPS: Final = frozenset({TopicType.FIFO, TopicType.MIXED})


class HeldTopics:
    """Asks the barriers only about topics whose messages may be of message groups, and about lite topics."""

    def __init__(self, topics: TopicTable, barriers: Barriers) -> None:
        self._topics = topics
        self._barriers = barriers

    def held_from(self, group: str, topic: str) -> int | None:
        """As `Barriers.held_from`."""
        if self._barriers.is_empty:
            return None
        if not is_light_queue(topic):
            found = self._topics.get(topic)
            if found is None or found.type not in WITH_GROUPS:
                return None
        return self._barriers.held_from(group, topic)
