"""The module buffers puts, so that many puts of the same keys cost the database one.

Buffered pairs are in memory like a memtable without a write-ahead log, and lost like one. `get` sees them; every other
operation that could observe that they are not stored first stores them.
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
    """The buffered puts of one family. Any thread may call; a thread that adds pairs waits for one that stores them."""

    __slots__ = ("_lock", "_store", "_waiting")

    def __init__(self, store: Callable[[list[Pair]], None]) -> None:
        """Make an empty buffer. `store` writes pairs of different keys, in any order, and raises `kv.KvError`."""
        self._store = store
        self._waiting: dict[bytes, bytes] = {}
        self._lock = RLock()

    def add(self, pairs: Iterable[Pair]) -> None:
        with self._lock:
            self._waiting.update(pairs)

    def get(self, key: bytes) -> bytes | None:
        return self._waiting.get(key)

    def settle(self, *, more_than: int = 0) -> None:
        """Store the buffered pairs, if there are more than `more_than`. Raises `kv.KvError`; then they
        stay buffered.
        """
        if len(self._waiting) <= more_than:
            return
        with self._lock:
            if self._waiting:
                # unsorted: sorting costs twice what it saves the database (ADR 47)
                self._store(list(self._waiting.items()))
                # replaced, not emptied: a reader looks here first, and then in the database, where the key is by now
                self._waiting = {}

    def unsettled(self) -> Mapping[bytes, bytes]:
        """Store as much as possible and return the rest: all pairs if the database accepts no writes any more.

        Reads continue; the error is reported to callers that write.
        """
        try:
            self.settle()
        except KvError:
            with self._lock:
                return dict(self._waiting)
        return {}

    def clear(self) -> None:
        """Drop the buffered pairs, as a crash does."""
        with self._lock:
            self._waiting = {}


def merged(stored: Iterable[Pair], waiting: Mapping[bytes, bytes], keys: KeyRange, *, reverse: bool) -> Iterator[Pair]:
    """Yield the pairs of a range in order (from its end when `reverse`), both stored and buffered ones."""
    ours = sorted(
        ((key, value) for key, value in waiting.items() if keys.start <= key and (keys.end is None or key < keys.end)),
        reverse=reverse,
    )
    others = (pair for pair in stored if pair[0] not in waiting)
    return merge(ours, others, key=lambda pair: pair[0], reverse=reverse)


def scanned(
    stored: list[Pair], waiting: Mapping[bytes, bytes], keys: KeyRange, limit: int | None, *, reverse: bool
) -> list[Pair]:
    """Return the first `limit` merged pairs, from the first `limit` stored ones."""
    return list(islice(merged(stored, waiting, keys, reverse=reverse), limit))
