"""Choice of the queue of a topic that a send goes to. The client's choice is ignored, as by RocketMQ's proxy.

| what the message has | queue |
|----------------------|-------|
| a message group      | the same for all messages of the group, as long as the topic's number of queues is the same |
| a priority           | the queue of that number, or the last one |
| neither              | one after the other |
"""

from __future__ import annotations

from collections.abc import Iterator
from hashlib import blake2b
from itertools import count, repeat
from typing import Final

from quarry_mq.store.lru_cache import LruCache
from quarry_mq.store.metadata import Topic

TOPICS_REMEMBERED: Final = 131_072
_JUMP: Final = 2_862_933_555_777_941_757
_SPAN: Final = float(1 << 31)
_SPREAD: Final = 2_654_435_769
"""2^32 divided by the golden ratio: the upper bits of its multiples are spread evenly, whatever the step."""


def queue_of_group(message_group: str, queues: int) -> int:
    """Return the queue of a message group, by consistent hashing ("jump hash", Lamping and Veach).

    When the topic gets more queues, a group either stays in its queue or moves to a new one.
    """
    key = int.from_bytes(blake2b(message_group.encode(), digest_size=8).digest(), "big")
    chosen = following = 0
    while following < queues:
        chosen = following
        key = (key * _JUMP + 1) & 0xFFFF_FFFF_FFFF_FFFF
        following = int((chosen + 1) * (_SPAN / ((key >> 33) + 1)))
    return chosen


def queue_of_priority(priority: int, queues: int) -> int:
    return min(priority, queues - 1)


class QueueChooser:
    """Chooses queues round robin, per topic.

    Counters are kept for a limited number of topics. Once some have been evicted, a topic without a counter begins at a
    spread-out queue number, so that no queue is favoured.
    """

    def __init__(self) -> None:
        self._counters: LruCache[str, count[int]] = LruCache(TOPICS_REMEMBERED)
        self._spread = _spread()
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


def _spread() -> Iterator[int]:
    """Yield numbers of 16 bits, each far from those before."""
    for number in count(1):
        yield (number * _SPREAD & 0xFFFF_FFFF) >> 16
