"""What one receive is being given."""

from __future__ import annotations

from typing import Final

from quarry_mq.server.delivery.model import Delivered, DeliverySettings, ReceiveRequest
from quarry_mq.store.message import ConsumeQueueEntry

LENGTH_PER_ENTRY: Final = 256
"""So many characters of a filter take as long to evaluate as it takes to read a record, more or less."""


class Taken:
    """The messages taken for a receive so far, and how much more it may take.

    Bounded in messages by the request, in bytes by what an answer may hold of the broker's memory, and in entries
    looked at (`entries_left`), so that a filter which matches nothing does not hold up the loop.
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

    def __init__(self, request: ReceiveRequest, settings: DeliverySettings) -> None:
        self.messages: list[Delivered] = []
        self._count = 0
        self.entries_left = settings.entries_scanned_per_pass
        self.new_ones_left = settings.in_flight_per_group_max
        """How many messages may be taken that are not in flight already."""
        self.is_over_limit = False
        """Whether there was one more."""
        self.entry_cost = 1 + request.filter.length // LENGTH_PER_ENTRY
        """What each entry takes of `entries_left`: a long expression takes long to evaluate."""
        self._messages_max = request.batch_size
        self._part_max = request.batch_size
        self._bytes_left = settings.answer_bytes_max
        self._no_room = False

    def begin_part(self, messages_max: int) -> None:
        """From here on at most so many more, until the next part begins."""
        self._part_max = min(self._messages_max, self._count + messages_max)

    @property
    def is_over(self) -> bool:
        """Whether no part may add anything."""
        return self._no_room or self._count >= self._messages_max or self.entries_left <= 0

    @property
    def is_full(self) -> bool:
        return self._no_room or self._count >= self._part_max

    @property
    def room(self) -> int:
        """For so many messages at most."""
        return self._part_max - self._count

    def has_room_for(self, entry: ConsumeQueueEntry) -> bool:
        """Whether the entry's record may be taken, too. The first may be of any size.

        After one that does not fit nothing does: smaller ones behind it would come out of order.
        """
        if self._count and entry.size > self._bytes_left:
            self._no_room = True
        return not (self._no_room or self._count >= self._part_max)

    def may_add_new(self) -> bool:
        """Whether a message may be taken that is not in flight already."""
        self.is_over_limit = self.new_ones_left <= 0
        return not self.is_over_limit

    def add(self, entry: ConsumeQueueEntry, delivered: Delivered) -> None:
        self.messages.append(delivered)
        self._count += 1
        self._bytes_left -= entry.size

    def expect(self, entry: ConsumeQueueEntry) -> None:
        """The entry's record, which is not in flight already, comes into `messages` later, with others."""
        self._count += 1
        self._bytes_left -= entry.size
        self.new_ones_left -= 1
