"""Bringing bytes of a segment into memory before the scan gets to them, in a thread of its own."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from concurrent.futures import Executor, Future, wait
from threading import get_ident
from typing import Final

from quarry_mq.store.scan.columns import Bytes

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
        self._loads_in: int | None = None

    def await_bytes(self, position: int) -> None:
        """Return when the bytes below the position are there."""
        if position <= self._loaded_up_to:
            return
        while self._asked_up_to < min(position + self._ahead, self._end):
            end = min(self._asked_up_to + PORTION_BYTES, self._end)
            self._loading.append((end, self._executor.submit(self._load_portion, self._asked_up_to, end)))
            self._asked_up_to = end
        self._ahead = min(2 * self._ahead + PORTION_BYTES, AHEAD_BYTES)
        while self._loaded_up_to < position:
            end, loading = self._loading.popleft()
            loading.result()
            self._loaded_up_to = end

    def settle(self) -> None:
        """Return when nothing is being loaded any more; to be called when the executor was told to take nothing new.

        A scan that was given up may be ended by the garbage collector, in whatever thread it happens to run: one that
        is being started, which holds the lock that joining a thread takes, or the executor's own. So this waits for
        loads and never for the thread, and in that thread not at all.
        """
        if get_ident() != self._loads_in:
            wait([loading for _, loading in self._loading if not loading.cancelled()])

    def _load_portion(self, begin: int, end: int) -> None:
        self._loads_in = get_ident()
        self._load(begin, end)


def map_pages(octets: Bytes, begin: int, end: int) -> None:
    """Have the pages of a part of a mapping in memory. Lets other threads run meanwhile."""
    if begin < end:
        octets[begin:end:_PAGE_BYTES].max()
