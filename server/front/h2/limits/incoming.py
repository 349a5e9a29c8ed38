"""How much of requests is held: what has come of messages that are not whole, and headers of calls that are open."""

from __future__ import annotations

from typing import Final

from quarry_mq.server.front.contract import FrontLimits

MESSAGES_PER_CONNECTION: Final = 4
"""So many messages of the largest size may be on their way in at once, on one connection."""

MESSAGES_PER_ADDRESS: Final = 8
MESSAGES_IN_ALL: Final = 16
"""Twice what one address may have: it alone does not keep others from sending."""


class Incoming:
    """Of all connections of a front, in bytes."""

    __slots__ = ("_of_address", "blocks_size", "size")

    def __init__(self) -> None:
        self.size = 0
        self.blocks_size = 0
        """Of header blocks of which the end has not come. Requests do not share a bound with them."""
        self._of_address: dict[str, int] = {}

    def grew(self, address: str, size: int) -> None:
        """So many bytes more, or fewer, are held of calls from the address."""
        self.size += size
        of_address = self._of_address.get(address, 0) + size
        if of_address:
            self._of_address[address] = of_address
        else:
            self._of_address.pop(address, None)

    def is_too_much(self, limits: FrontLimits, address: str, of_connection: int) -> bool:
        """For a connection of that address, of which so much is held itself."""
        largest = limits.max_message_size
        return (
            of_connection > MESSAGES_PER_CONNECTION * largest
            or self.of(address) > MESSAGES_PER_ADDRESS * largest
            or self.size > MESSAGES_IN_ALL * largest
        )

    def of(self, address: str) -> int:
        return self._of_address.get(address, 0)
