"""Puts that wait, so that many of the same keys cost the database one.

What waits is in memory like a memtable without a write-ahead log, and lost like one. It is never told from what is
stored: reads of keys find it, and before anything else that could tell it is stored.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from heapq import merge
from itertools import islice
from threading import RLock

from quarry_mq.kv.engine import KeyRange
from quarry_mq.kv.errors import KvError

Pair = tuple[bytes, bytes]


class LaterPuts:
    """Those of one family. Any thread; who adds waits for who stores."""

    __slots__ = ("_lock", "_store", "_waiting")

    def __init__(self, store: Callable[[list[Pair]], None]) -> None:
        """`store` writes pairs of different keys, in any order. Raises `kv.KvError`."""
        self._store = store
        self._waiting: dict[bytes, bytes] = {}
        self._lock = RLock()

    def add(self, pairs: Iterable[Pair]) -> None:
        with self._lock:
            self._waiting.update(pairs)

    def get(self, key: bytes) -> bytes | None:
        return self._waiting.get(key)

    def settle(self, *, more_than: int = 0) -> None:
        """Store what waits, if it is more than that. Raises `kv.KvError`; then it waits on."""
        if len(self._waiting) <= more_than:
            return
        with self._lock:
            if self._waiting:
                # in no order: their sorting costs twice what it spares the database (ADR 47)
                self._store(list(self._waiting.items()))
                # not emptied: who reads a key looks here, and then in the database, where it is by now
                self._waiting = {}

    def unsettled(self) -> Mapping[bytes, bytes]:
        """What still waits when as much as possible is stored: all of it where the database takes no writes any more.

        Whoever writes is told of that. Reads go on.
        """
        try:
            self.settle()
        except KvError:
            with self._lock:
                return dict(self._waiting)
        return {}

    def forget(self) -> None:
        """As a crash does."""
        with self._lock:
            self._waiting = {}


def merged(stored: Iterable[Pair], waiting: Mapping[bytes, bytes], keys: KeyRange, *, reverse: bool) -> Iterator[Pair]:
    """The pairs of a range in order (from its end when `reverse`), of those that are stored and those that wait."""
    ours = sorted(
        ((key, value) for key, value in waiting.items() if keys.start <= key and (keys.end is None or key < keys.end)),
        reverse=reverse,
    )
    others = (pair for pair in stored if pair[0] not in waiting)
    return merge(ours, others, key=lambda pair: pair[0], reverse=reverse)


def scanned(
    stored: list[Pair], waiting: Mapping[bytes, bytes], keys: KeyRange, limit: int | None, *, reverse: bool
) -> list[Pair]:
    """The first `limit` of them, from the first `limit` that are stored."""
    return list(islice(merged(stored, waiting, keys, reverse=reverse), limit))
