"""Schedule Python's search for cyclic garbage, before clients are served and while they are (ADR 40).

The broker's objects are freed by their reference counts, and what it does often leaves no cycles behind
(`tests/conformance/test_garbage.py`). Cycles have to be looked for all the same, and Python stops everything meanwhile,
for a time that grows with the number of objects it looks at.
"""

from __future__ import annotations

import asyncio
import gc
import sys
from collections.abc import Callable
from typing import Final

from quarry_mq.protocol.clock import Clock
from quarry_mq.server.process.process_metrics import own_bytes

OPENING_THRESHOLDS: Final = (10_000, 20, 50)
"""Growth in objects, by generation, after which Python looks for garbage by itself before clients are served. With its
defaults (700, 10, 10) it looks through everything that is read back from a log several times a second.
"""

INTERVAL_S: Final = 0.25
"""Seconds between two searches. Ten thousand waiting clients replace some 3,000 objects in this time, and searching
those takes one or two milliseconds."""

GROWTH_LOOKED_AT_S: Final = 10.0
"""Seconds between two counts of the pieces of memory in use, which take a millisecond for a gigabyte."""

GROWN_RATIO: Final = 1.5
GROWN_LEAST: Final = 500_000
"""All objects are searched when the pieces of memory have grown by half and by this number since the last such time."""

GROWN_BYTES_RATIO: Final = 1.25
GROWN_LEAST_BYTES: Final = 48 * 1024 * 1024
"""All objects are searched, too, when memory has grown by a quarter and by this much, in however few pieces: cycles may
hold large ones. Memory is measured at every search, since it may grow by this much within a second."""

ALL_INTERVAL_S: Final = 900.0
"""Seconds after which all objects are searched, however little memory has grown."""


def look_for_garbage_seldom() -> None:
    """Exclude the present objects from searches for garbage, and let Python search more rarely.

    To be called when the modules are loaded, since reading a log back makes many objects.
    """
    gc.freeze()
    gc.set_threshold(*OPENING_THRESHOLDS)


class GarbageSearch:
    """Search for garbage while clients are served."""

    def __init__(self, clock: Clock, own_memory: Callable[[], int | None] = own_bytes) -> None:
        """`own_memory` returns the bytes of memory that are the process's own; None if the system reports nothing."""
        self._clock = clock
        self._own_memory = own_memory
        self._growth_due_s = 0.0
        self._all_due_s = 0.0
        self._pieces_after_all = 0
        self._bytes_after_all = 0

    async def run(self) -> None:
        """Search in place of Python's own collector, until cancelled."""
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
        """Search the new objects, or all of them when that is due."""
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
        bytes_before = self._bytes_after_all
        bytes_due = max(bytes_before * GROWN_BYTES_RATIO, bytes_before + GROWN_LEAST_BYTES)
        if now_s >= self._all_due_s or (self._own_memory() or 0) >= bytes_due:
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
