"""Routes of topics with many queues, as bytes."""

from __future__ import annotations

from collections import OrderedDict
from typing import Final

from quarry_mq.store.metadata import Topic

QUEUES_MIN: Final = 64
"""From here on making an answer anew costs more than 200 µs; one of 8,192 queues holds the event loop up for 10 ms."""

BYTES_MAX: Final = 16 << 20
"""Some forty of the largest answers."""

Key = tuple[bytes, bytes]
"""What an answer repeats for every queue: the topic's name as it was asked for, and the broker. Both serialized."""


class RouteAnswers:
    """The answers given lately, the latest last. All clients ask every 30 s, mostly for the same."""

    def __init__(self) -> None:
        self._answers: OrderedDict[Key, tuple[Topic, bytes]] = OrderedDict()
        self._size = 0

    @property
    def size(self) -> int:
        """Bytes of all answers and keys."""
        return self._size

    def find(self, key: Key, topic: Topic) -> bytes | None:
        """The answer for the topic as it is now."""
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
