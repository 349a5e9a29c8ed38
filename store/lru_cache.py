"""The module is a bounded cache with two generations that keeps recently used entries, at the price of one dict
access.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Generic, TypeVar

Key = TypeVar("Key")
Value = TypeVar("Value")


class LruCache(Generic[Key, Value]):
    """The cache has two generations of at most `generation_max` entries each.

    An entry that is read or written moves into the young generation. When that is full, the old one is dropped and the
    young one takes its place. So an entry used within the last `generation_max` accesses of other keys is always there.
    """

    def __init__(self, generation_max: int) -> None:
        self._generation_max = generation_max
        self._young: dict[Key, Value] = {}
        self._old: dict[Key, Value] = {}

    def get(self, key: Key) -> Value | None:
        value = self._young.get(key)
        if value is None:
            value = self._old.get(key)
            if value is not None:
                self._young[key] = value
        return value

    def put(self, key: Key, value: Value) -> None:
        self._young[key] = value

    def put_all(self, values: Mapping[Key, Value]) -> None:
        self._young.update(values)

    def discard(self, key: Key) -> None:
        self._young.pop(key, None)
        self._old.pop(key, None)

    def __iter__(self) -> Iterator[Key]:
        """Iterate over a copy of all keys."""
        return iter(self._young.keys() | self._old.keys())

    @property
    def is_full(self) -> bool:
        """Return whether it is time to `rotate`."""
        return len(self._young) >= self._generation_max

    def rotate(self, kept: Mapping[Key, Value] | None = None) -> None:
        """Drop the old generation; the young one takes its place. The new young one starts with the `kept` entries."""
        self._old = self._young
        self._young = dict(kept or {})
