"""Which queue of a topic a send goes to. What the client chose is ignored, as RocketMQ's proxy does."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count, repeat
from typing import Final

from store.generations import GenerationCache
from store.metadata import Topic

TOPICS_REMEMBERED: Final = 65_536
_SPREAD: Final = 2_654_435_769
"""2^32 over the golden ratio: the upper bits of its multiples are spread evenly, whatever the step between them."""


class QueueChooser:
    """Round robin per topic. A topic that may have been forgotten begins anywhere, so that no queue is favoured."""

    def __init__(self) -> None:
        self._counters: GenerationCache[str, count[int]] = GenerationCache(TOPICS_REMEMBERED)
        self._spread = ((number * _SPREAD & 0xFFFF_FFFF) >> 16 for number in count(1))
        self._begins: Iterator[int] = repeat(0)

    def next_queue(self, topic: Topic) -> int:
        counter = self._counters.get(topic.name)
        if counter is None:
            if self._counters.is_full:
                self._counters.rotate()
                self._begins = self._spread
            counter = count(next(self._begins))
            self._counters.put(topic.name, counter)
        return next(counter) % topic.write_queues
