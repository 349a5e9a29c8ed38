"""How Python looks for garbage that refers to itself, while clients are served and before (ADR 40).

What the broker makes goes when it is no longer referred to, and what it does often leaves no such garbage behind
(`tests/conformance/test_garbage.py`). It has to be looked for all the same, and Python stops everything meanwhile, for
as long as the number of objects makes it that are looked at.
"""

from __future__ import annotations

import asyncio
import gc
import sys
from collections.abc import Callable
from typing import Final

from quarry_mq.server.process.system import own_bytes
from quarry_mq.store.clock import Clock

OPENING_THRESHOLDS: Final = (10_000, 20, 50)
"""How many more objects there must be, of each age, before Python looks at them by itself, while nobody is served. With
its own numbers (700, 10, 10) it looks through all that is read back from a log several times a second.
"""

INTERVAL_S: Final = 0.25
"""Ten thousand clients that wait replace some 3,000 objects in this time: one or two milliseconds."""

GROWTH_LOOKED_AT_S: Final = 10.0
"""How often it is asked how much memory is in use, which takes a millisecond where that is a gigabyte."""

GROWN_RATIO: Final = 1.5
GROWN_LEAST: Final = 500_000
"""So many more pieces of memory, and half as much as after the last time: then all is looked at."""

GROWN_LEAST_BYTES: Final = 48 * 1024 * 1024
"""So much more memory, however few pieces it is, and all is looked at: what refers to itself may hold large ones. It is
asked at every look, since this much may come within a second."""

ALL_INTERVAL_S: Final = 900.0
"""After so long it is, however little has come."""


def look_for_garbage_seldom() -> None:
    """What is there by now is taken for something that stays, and not looked at any more.

    To be called when the modules are loaded, since reading a log back makes many objects.
    """
    gc.freeze()
    gc.set_threshold(*OPENING_THRESHOLDS)


class GarbageSearch:
    """Looks for garbage while clients are served."""

    def __init__(self, clock: Clock, own_memory: Callable[[], int | None] = own_bytes) -> None:
        """`own_memory` tells how many bytes of memory are the process's own; None where nothing tells."""
        self._clock = clock
        self._own_memory = own_memory
        self._growth_due_s = 0.0
        self._all_due_s = 0.0
        self._pieces_after_all = 0
        self._bytes_after_all = 0

    async def run(self) -> None:
        """Do it in place of Python, until cancelled."""
        gc.freeze()
        gc.disable()
        self._looked_at_all()
        try:
            while True:
                await asyncio.sleep(INTERVAL_S)
                self.look()
        finally:
            gc.unfreeze()
            gc.enable()

    def look(self) -> None:
        """At what is new, and at all of it when it is time for that."""
        if self._is_time_for_all():
            gc.unfreeze()
            gc.collect()
            gc.freeze()
            self._looked_at_all()
        else:
            gc.collect(0)
            gc.freeze()

    def _is_time_for_all(self) -> bool:
        now_s = self._clock.monotonic_s()
        if now_s >= self._all_due_s or (self._own_memory() or 0) >= self._bytes_after_all + GROWN_LEAST_BYTES:
            return True
        if now_s < self._growth_due_s:
            return False
        self._growth_due_s = now_s + GROWTH_LOOKED_AT_S
        before = self._pieces_after_all
        return sys.getallocatedblocks() >= max(before * GROWN_RATIO, before + GROWN_LEAST)

    def _looked_at_all(self) -> None:
        now_s = self._clock.monotonic_s()
        self._pieces_after_all = sys.getallocatedblocks()
        self._bytes_after_all = self._own_memory() or 0
        self._growth_due_s, self._all_due_s = now_s + GROWTH_LOOKED_AT_S, now_s + ALL_INTERVAL_S
