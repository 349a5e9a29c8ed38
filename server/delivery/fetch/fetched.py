"""The messages fetched for one receive, and the bounds of how many more it may get."""

from __future__ import annotations

from typing import Final

from quarry_mq.server.delivery.model import Delivered, ReceiveRequest
from quarry_mq.store.message import ConsumeQueueEntry

ENTRIES_SCANNED_MAX: Final = 4_096
"""Entries that one receive or pull scans in one go."""
ANSWER_SIZE_MAX: Final = 8 << 20
"""Bytes of records in one receive's answer, which is in memory as a whole until its client has read it.

This is twice the largest message of the default limits: above that more bytes per answer make nothing faster.
"""
LENGTH_PER_ENTRY: Final = 256
"""Characters of a filter expression that take about as long to evaluate as it takes to read a record."""


class Taken:
    """Collects the messages taken for a receive, and tells how many more it may take.

    It is bounded in messages by the request, in bytes by what an answer may hold of the broker's memory, and in entries
    scanned (`entries_left`), so that a filter which matches nothing does not hold up the loop.
    """

    __slots__ = (
        "_bytes_left",
        "_count",
        "_messages_max",
        "_no_room",
        "_part_max",
        "entries_left",
        "entry_cost",
        "is_over_limit",
        "messages",
        "new_ones_left",
    )

    def __init__(self, request: ReceiveRequest, new_ones_max: int) -> None:
        self.messages: list[Delivered] = []
        self._count = 0
        self.entries_left = ENTRIES_SCANNED_MAX
        self.new_ones_left = new_ones_max
        """Number of messages that may be taken beside those that are in flight already."""
        self.is_over_limit = False
        """True if a new message was found beyond that number."""
        self.entry_cost = 1 + request.filter.length // LENGTH_PER_ENTRY
        """Number that each scanned entry takes from `entries_left`: a long expression takes long to evaluate."""
        self._messages_max = request.batch_size
        self._part_max = request.batch_size
        self._bytes_left = ANSWER_SIZE_MAX
        self._no_room = False

    def begin_part(self, messages_max: int) -> None:
        """Begin a part of the source, of which at most `messages_max` messages may be taken."""
        self._part_max = min(self._messages_max, self._count + messages_max)

    @property
    def is_over(self) -> bool:
        """Return whether no part may add anything any more."""
        return self._no_room or self._count >= self._messages_max or self.entries_left <= 0

    @property
    def is_full(self) -> bool:
        return self._no_room or self._count >= self._part_max

    @property
    def room(self) -> int:
        """Return how many messages the current part may still add."""
        return self._part_max - self._count

    def has_room_for(self, entry: ConsumeQueueEntry) -> bool:
        """Return whether the entry's record may be taken as well. The first one may be of any size.

        After one that does not fit no other does: smaller ones after it would come out of order.
        """
        if self._count and entry.size > self._bytes_left:
            self._no_room = True
        return not (self._no_room or self._count >= self._part_max)

    def may_add_new(self) -> bool:
        """Return whether a message may be taken that is not in flight already."""
        self.is_over_limit = self.new_ones_left <= 0
        return not self.is_over_limit

    def add(self, entry: ConsumeQueueEntry, delivered: Delivered) -> None:
        self.messages.append(delivered)
        self._count += 1
        self._bytes_left -= entry.size

    def expect(self, entry: ConsumeQueueEntry) -> None:
        """Count a new message whose record is added to `messages` later, together with others."""
        self._count += 1
        self._bytes_left -= entry.size
        self.new_ones_left -= 1
