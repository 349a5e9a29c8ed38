"""Limits on the memory that peers can make the fronts use.

Memory is limited for incoming requests, that is for incomplete messages and headers of open calls, and for answers that
clients have not read. When unread answers exceed their limit, some connections are chosen that lose theirs.
"""

from __future__ import annotations

from typing import Final, Protocol

from quarry_mq.server.front.contract import FrontLimits

MESSAGES_PER_CONNECTION: Final = 4
"""Number of messages of the largest size that may be incomplete at once, on one connection."""

MESSAGES_PER_ADDRESS: Final = 8
MESSAGES_IN_ALL: Final = 16
"""Twice the number of one address, so that no single address keeps others from sending."""


class Incoming:
    """Counts the bytes of incoming requests of all connections of a front."""

    __slots__ = ("_of_address", "blocks_size", "size")

    def __init__(self) -> None:
        self.size = 0
        self.blocks_size = 0
        """Bytes of incomplete header blocks. Requests do not share a bound with them."""
        self._of_address: dict[str, int] = {}

    def grew(self, address: str, size: int) -> None:
        """Add to the bytes held of calls from the address, or subtract."""
        self.size += size
        of_address = self._of_address.get(address, 0) + size
        if of_address:
            self._of_address[address] = of_address
        else:
            self._of_address.pop(address, None)

    def is_too_much(self, limits: FrontLimits, address: str, of_connection: int) -> bool:
        """Return whether too much is held for a connection of that address that itself holds `of_connection` bytes."""
        largest = limits.max_message_size
        return (
            of_connection > MESSAGES_PER_CONNECTION * largest
            or self.of(address) > MESSAGES_PER_ADDRESS * largest
            or self.size > MESSAGES_IN_ALL * largest
        )

    def of(self, address: str) -> int:
        return self._of_address.get(address, 0)


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
