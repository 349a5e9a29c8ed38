"""Cache the recently used parts of the slots of uploaded files.

A search for a key whose part is cached saves one of two requests to the object store, or both if the slot has no run.
Cached parts were checked when they were read.
"""

from __future__ import annotations

from collections import OrderedDict
from threading import Lock

from quarry_mq.store.index.tiered.layout import PART_SIZE, Slots
from quarry_mq.store.index.tiered.runs import LoadPart


class SlotCache:
    """A cache with a bounded number of parts. Any thread."""

    def __init__(self, bytes_max: int) -> None:
        self._parts_max = bytes_max // PART_SIZE
        self._parts: OrderedDict[tuple[str, int], Slots] = OrderedDict()  # guarded by _lock
        self._lock = Lock()

    @property
    def size_bytes(self) -> int:
        """The size of the cached parts."""
        return len(self._parts) * PART_SIZE

    def part(self, object_name: str, number: int, load: LoadPart) -> Slots:
        """Return a part of the slots of an object; errors of `load` pass through."""
        key = object_name, number
        with self._lock:
            cached = self._parts.get(key)
            if cached is not None:
                self._parts.move_to_end(key)
                return cached
        part = load(number)
        with self._lock:
            self._parts[key] = part
            self._parts.move_to_end(key)
            while len(self._parts) > self._parts_max:
                self._parts.popitem(last=False)
        return part

    def evict(self, object_name: str) -> None:
        """Evict an object that is replaced or removed."""
        with self._lock:
            for key in [each for each in self._parts if each[0] == object_name]:
                del self._parts[key]
