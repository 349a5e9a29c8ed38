"""Caches the serialized routes of topics with many queues."""

from __future__ import annotations

from collections import OrderedDict
from typing import Final

from quarry_mq.store.metadata import Topic

QUEUES_MIN: Final = 64
"""Smallest number of queues for which answers are cached.

Building an answer costs more than 200 µs from there on, and one of 8,192 queues blocks the event loop for 10 ms.
"""

BYTES_MAX: Final = 16 << 20
"""Bytes of all answers: some forty of the largest."""

Key = tuple[bytes, bytes]
"""The parts that an answer repeats for every queue: the topic's name as the client wrote it, and the broker.

Both are serialized.
"""


class RouteAnswers:
    """The recent answers, the latest last. All clients ask every 30 s, mostly for the same topics."""

    def __init__(self) -> None:
        self._answers: OrderedDict[Key, tuple[Topic, bytes]] = OrderedDict()
        self._size = 0

    @property
    def size(self) -> int:
        """The bytes of all answers and keys."""
        return self._size

    def find(self, key: Key, topic: Topic) -> bytes | None:
        """Return the cached answer if the topic is still the same."""
        kept = self._answers.get(key)
        if kept is None or kept[0] != topic:
            return None
        self._answers.move_to_end(key)
        return kept[1]

    def keep(self, key: Key, topic: Topic, answer: bytes) -> None:
        self._drop(key)
        self._answers[key] = topic, answer
        self._size += _size(key, answer)
        while self._size > BYTES_MAX:
            self._drop(next(iter(self._answers)))

    def _drop(self, key: Key) -> None:
        kept = self._answers.pop(key, None)
        if kept is not None:
            self._size -= _size(key, kept[1])


def _size(key: Key, answer: bytes) -> int:
    return len(key[0]) + len(key[1]) + len(answer)
