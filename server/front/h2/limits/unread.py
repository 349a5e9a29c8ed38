"""A limit on the memory of answers that clients have not read, and the choice of connections that lose theirs."""

from __future__ import annotations

from typing import Final, Protocol

ROOM: Final = 8
"""Part of the limit that is made free if it is exceeded: an eighth, so that not every message causes a loss."""


class Reading(Protocol):
    """Describe one connection, as far as reading answers is concerned."""

    @property
    def unread_size(self) -> int:
        """Return the bytes that wait for the client to read them, in calls and in the transport."""

    @property
    def moved_in(self) -> int:
        """Return the number of the loop iteration in which the client last took something."""

    @property
    def is_dragging(self) -> bool:
        """Return whether the client takes something, but would need more than a minute for everything."""

    def look_at_pace(self) -> None:
        """Measure the pace; called every second."""

    def refresh(self) -> None:
        """Update how much the transport still holds."""

    def give_up(self) -> None:
        """Drop what waits, and end the calls or the connection if necessary."""


class Unread:
    """Bytes that wait for the clients of all connections to read them, and their limit."""

    __slots__ = ("_is_relieving", "_waiting", "answered_calls", "number", "size", "size_max")

    def __init__(self, size_max: int) -> None:
        self.size = 0
        self.size_max = size_max
        self.number = 0
        """Number of the current loop iteration."""
        self.answered_calls = 0
        """Calls that no handler holds any more and that are open because their answers wait."""
        self._waiting: dict[Reading, None] = {}
        self._is_relieving = False

    def grew(self, reading: Reading, size: int) -> None:
        """Add to the bytes that wait for one of the clients, or subtract."""
        self.size += size
        if reading.unread_size:
            self._waiting[reading] = None
        else:
            self._waiting.pop(reading, None)

    @property
    def is_too_much(self) -> bool:
        return self.size > self.size_max

    def look_at_paces(self) -> None:
        """Measure the pace of all waiting connections. To be called every second."""
        for reading in self._waiting:
            reading.look_at_pace()

    def relieve(self) -> None:
        """Let the slowest connections give up what waits for them if the limit is exceeded, until an eighth of it is
        free.

        Connections that read too slowly come first, then those that have read nothing for longest. A client that reads
        goes on, even if the others have waited only briefly.
        """
        if self._is_relieving:
            return
        self._is_relieving = True
        try:
            for reading in list(self._waiting):
                reading.refresh()
            if not self.is_too_much:
                return
            wanted = self.size_max - self.size_max // ROOM
            for reading in sorted(self._waiting, key=_slowest_first):
                if self.size <= wanted:
                    break
                reading.give_up()
        finally:
            self._is_relieving = False


def _slowest_first(reading: Reading) -> tuple[bool, int]:
    return not reading.is_dragging, reading.moved_in
