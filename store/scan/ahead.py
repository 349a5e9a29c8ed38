"""Bringing bytes of a segment into memory before the scan gets to them, in a thread of its own."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from concurrent.futures import Executor, Future
from typing import Final

from store.scan.columns import Bytes

PORTION_BYTES: Final = 4 << 20
AHEAD_BYTES: Final = 32 << 20
"""As far as the thread gets ahead of the scan. It begins with nothing: at most starts there is little to read."""
_PAGE_BYTES: Final = 4096


class ReadAhead:
    """Loads the bytes of one segment from `begin` on, portion by portion.

    `load(begin, end)` is called in the executor for each portion, in order; what it raises comes out of
    `await_bytes`.
    """

    def __init__(self, executor: Executor, load: Callable[[int, int], None], begin: int, end: int) -> None:
        self._executor = executor
        self._load = load
        self._asked_up_to = begin
        self._loaded_up_to = begin
        self._end = end
        self._ahead = 0
        self._loading: deque[tuple[int, Future[None]]] = deque()

    def await_bytes(self, position: int) -> None:
        """Return when the bytes below the position are there."""
        if position <= self._loaded_up_to:
            return
        while self._asked_up_to < min(position + self._ahead, self._end):
            end = min(self._asked_up_to + PORTION_BYTES, self._end)
            self._loading.append((end, self._executor.submit(self._load, self._asked_up_to, end)))
            self._asked_up_to = end
        self._ahead = min(2 * self._ahead + PORTION_BYTES, AHEAD_BYTES)
        while self._loaded_up_to < position:
            end, loading = self._loading.popleft()
            loading.result()
            self._loaded_up_to = end


def map_pages(octets: Bytes, begin: int, end: int) -> None:
    """Have the pages of a part of a mapping in memory. Lets other threads run meanwhile."""
    if begin < end:
        octets[begin:end:_PAGE_BYTES].max()
