"""Limits on the memory of incoming requests: incomplete messages, and headers of open calls."""

from __future__ import annotations

from typing import Final

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
