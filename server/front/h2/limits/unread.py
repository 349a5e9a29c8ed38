"""What waits in memory for clients to read it, of all connections together, and who gives way when it is too much."""

from __future__ import annotations

from typing import Final, Protocol

ROOM: Final = 8
"""Where there is too much, an eighth of the limit is made free, so that not every message makes somebody give way."""


class Reading(Protocol):
    """One connection, as far as reading is concerned."""

    @property
    def unread_size(self) -> int:
        """Bytes that wait for its client, in calls and in the transport."""

    @property
    def moved_in(self) -> int:
        """The pass in which it last took something."""

    @property
    def is_dragging(self) -> bool:
        """Whether it takes something, but would need more than a minute for all."""

    def look_at_pace(self) -> None:
        """A second is over."""

    def refresh(self) -> None:
        """See how much the transport still holds."""

    def give_up(self) -> None:
        """Let go of what waits, and end whatever that needs to."""


class Unread:
    """Bytes that wait for the clients of all connections, and how many may."""

    __slots__ = ("_is_relieving", "_waiting", "answered_calls", "number", "size", "size_max")

    def __init__(self, size_max: int) -> None:
        self.size = 0
        self.size_max = size_max
        self.number = 0
        """Of the pass that is under way."""
        self.answered_calls = 0
        """Calls that no handler holds any more and that are open because their answers wait."""
        self._waiting: dict[Reading, None] = {}
        self._is_relieving = False

    def grew(self, reading: Reading, size: int) -> None:
        """So many bytes more, or fewer, wait for one of them."""
        self.size += size
        if reading.unread_size:
            self._waiting[reading] = None
        else:
            self._waiting.pop(reading, None)

    @property
    def is_too_much(self) -> bool:
        return self.size > self.size_max

    def look_at_paces(self) -> None:
        """To be called every second."""
        for reading in self._waiting:
            reading.look_at_pace()

    def relieve(self) -> None:
        """Where there is too much, let the slowest give up what waits for them, until there is room again.

        That is who drags along, and then who has taken nothing for longest: whoever reads goes on, however young the
        others are.
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
