"""Which queue of a topic a send goes to. What the client chose is ignored, as RocketMQ's proxy does."""

from __future__ import annotations

from itertools import count
from typing import Final

from store.generations import GenerationCache
from store.metadata import Topic

TOPICS_REMEMBERED: Final = 65_536


class QueueChooser:
    """Round robin per topic; a forgotten topic begins again at its first queue."""

    def __init__(self) -> None:
        self._counters: GenerationCache[str, count[int]] = GenerationCache(TOPICS_REMEMBERED)

    def next_queue(self, topic: Topic) -> int:
        counter = self._counters.get(topic.name)
        if counter is None:
            if self._counters.is_full:
                self._counters.rotate()
            counter = count()
            self._counters.put(topic.name, counter)
        return next(counter) % topic.write_queues
