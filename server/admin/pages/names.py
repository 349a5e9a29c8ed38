"""Pages of names out of very many. A search for a part of a name reads all names, in short steps.

A walk over a million names takes some 0.4 s of the event loop's time, in steps of a millisecond with a pause of the
same length after each, and one walk at a time. So the number of matching names is counted once, and kept for a while.
If few names match, they are kept as well, and the next pages need no walk at all.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Callable
from typing import Final, NamedTuple

from quarry_mq.protocol.clock import Clock
from quarry_mq.server.tasks.time_slice import TimeSlice
from quarry_mq.store.metadata.rows import NamesFound

ROWS_PER_STEP: Final = 512
PAUSES_PER_STEP: Final = 1
"""Pauses per step: half of the event loop's time is left to others."""
KEPT_S: Final = 10.0
KEPT_SEARCHES: Final = 16
KEPT_NAMES: Final = 1_000
"""Names that are kept of one search; if there are more, each page walks to them again."""

NamesBehind = Callable[[str, int, str], NamesFound]
"""Read at most some number of rows after a name, and return those whose names contain a text.

See `NamedRows.names_behind`.
"""


class NamePage(NamedTuple):
    """Names in their order. `matching` is the number of such names on all pages."""

    names: list[str]
    has_more: bool
    matching: int


class _Search(NamedTuple):
    at_s: float
    matching: int
    names: list[str] | None
    """All matching names; None if they are too many."""


class NameSearch:
    """Searches the names of one table. Lives on the event loop's thread."""

    def __init__(self, names_behind: NamesBehind, count: Callable[[], int | None], clock: Clock) -> None:
        """`count` returns the number of all names, None until they are counted."""
        self._names_behind = names_behind
        self._count = count
        self._clock = clock
        self._searches: OrderedDict[str, _Search] = OrderedDict()
        self._turn = asyncio.Semaphore(1)

    async def page(self, contains: str, after: str, limit: int, time_slice: TimeSlice) -> NamePage:
        """Return the first names after `after` that contain `contains`; "" stands for all."""
        part = contains.lower()
        count = self._count() if not part else None
        if count is None:
            search = await self._search(part, time_slice)
            if search.names is not None:
                first = bisect_right(search.names, after) if after else 0
                names = search.names[first : first + limit]
                return NamePage(names, first + limit < len(search.names), search.matching)
            count = search.matching
        names = await self._walk(part, after, limit + 1, time_slice)
        return NamePage(names[:limit], len(names) > limit, count)

    async def _search(self, part: str, time_slice: TimeSlice) -> _Search:
        async with self._turn:
            known = self._searches.get(part)
            if known is None or self._clock.monotonic_s() - known.at_s >= KEPT_S:
                known = await self._look_at_all(part)
        time_slice.restart()
        return known

    async def _look_at_all(self, part: str) -> _Search:
        time_slice = TimeSlice(self._clock, pauses=PAUSES_PER_STEP)
        names: list[str] = []
        matching, behind = 0, ""
        while True:
            found = self._names_behind(behind, ROWS_PER_STEP, part)
            matching += len(found.names)
            if len(names) <= KEPT_NAMES:
                names += found.names
            if found.last is None:
                break
            behind = found.last
            await time_slice.pause()
        search = _Search(self._clock.monotonic_s(), matching, names if matching <= KEPT_NAMES else None)
        self._searches[part] = search
        self._searches.move_to_end(part)
        if len(self._searches) > KEPT_SEARCHES:
            self._searches.popitem(last=False)
        return search

    async def _walk(self, part: str, after: str, limit: int, time_slice: TimeSlice) -> list[str]:
        names: list[str] = []
        behind = after
        while len(names) < limit:
            found = self._names_behind(behind, ROWS_PER_STEP, part)
            names += found.names
            if found.last is None:
                break
            behind = found.last
            await time_slice.pause()
        return names[:limit]
