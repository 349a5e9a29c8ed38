"""The module records where the log began in the past, to tell since when a queue has been empty.

A queue whose last entry lies below the log's beginning is empty. No row says since when, and with millions of queues
none should. But the log's beginning moves only some times a day: a note of each move is enough to answer for every
queue.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from operator import itemgetter
from struct import Struct
from typing import Final

from quarry_mq.store.offsets import PhysicalOffset

_NOTE: Final = Struct(">qq")  # wall time in ms, physical offset
NOTES_MAX: Final = 2_048
"""The number of notes kept, 32 KiB. Above that, every other note is dropped: queues then seem to be empty for a shorter
time than they are.
"""


class LogBegins:
    """The notes are pairs of time and offset, both ascending."""

    def __init__(self, packed: bytes, save: Callable[[bytes], None]) -> None:
        """Read the notes from `packed`; `save` stores the packed notes whenever they change."""
        self._notes = list(_NOTE.iter_unpack(packed))
        self._save = save

    def note(self, now_ms: int, begin: PhysicalOffset, *, since_ms: int) -> None:
        """Note that the log begins at `begin` now. No caller will ask for times before `since_ms` any more."""
        notes = self._notes
        # notes of a clock that was ahead, or of a log that was restored from a backup, are dropped
        kept = [each for each in notes if each[0] <= now_ms and each[1] <= begin]
        kept = kept[max(0, bisect_right(kept, since_ms, key=itemgetter(0)) - 1) :]
        if not kept or kept[-1][1] < begin:
            kept.append((now_ms, begin))
        if len(kept) > NOTES_MAX:
            kept = [*kept[:-1:2], kept[-1]]
        if kept != notes:
            self._notes = kept
            self._save(b"".join(_NOTE.pack(*each) for each in kept))

    def at(self, time_ms: int) -> PhysicalOffset | None:
        """Return where the log began at that time, or earlier; None when it is not known."""
        place = bisect_right(self._notes, time_ms, key=itemgetter(0))
        return PhysicalOffset(self._notes[place - 1][1]) if place else None
