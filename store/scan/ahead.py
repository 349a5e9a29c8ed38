"""The module loads bytes of a segment into memory before the scan needs them, in its own thread."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from concurrent.futures import Executor, Future, wait
from threading import get_ident
from typing import Final

from quarry_mq.store.scan.columns import Bytes

PORTION_BYTES: Final = 4 << 20
AHEAD_BYTES: Final = 32 << 20
"""Bytes that the thread gets ahead of the scan at most. It begins with zero: most starts have little to read."""
_PAGE_BYTES: Final = 4096


class ReadAhead:
    """The read-ahead loads the bytes of one segment from `begin` on, portion by portion.

    `load(begin, end)` is called in the executor for each portion, in order; `await_bytes` raises what it raised.
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
        """Wait until the bytes below the position are loaded."""
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
        """Wait until no load is running; to be called when the executor takes no new work any more.

        The garbage collector may end an abandoned scan in any thread: one that is just being started, which holds the
        lock that joining a thread takes, or the executor's own. So this waits for loads and never for the thread, and
        in the executor's thread it does not wait at all.
        """
        if get_ident() != self._loads_in:
            wait([loading for _, loading in self._loading if not loading.cancelled()])

    def _load_portion(self, begin: int, end: int) -> None:
        self._loads_in = get_ident()
        self._load(begin, end)


def map_pages(octets: Bytes, begin: int, end: int) -> None:
    """Bring the pages of a part of a mapping into memory. Lets other threads run meanwhile."""
    if begin < end:
        octets[begin:end:_PAGE_BYTES].max()
