"""The module counts what consumer groups lose when the log begins later (rmq#4549: a full disk deleted messages that
no consumer had read).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

from quarry_mq.store.offsets import PhysicalOffset, QueueId, QueueOffset

PAGE_POSITIONS: Final = 64
"""Committed offsets per page: so few that the event loop's thread does not wait longer for the interpreter than for one
of its own calls.
"""


class Unread(NamedTuple):
    """Messages that a group has not received yet and never will, over all queues."""

    messages_by_group: dict[str, int]
    complete: bool
    """False when there were more committed offsets of groups than were read."""

    @property
    def messages(self) -> int:
        return sum(self.messages_by_group.values())


def count_unread(
    positions: Iterator[tuple[str, QueueId, QueueOffset]],
    unread_below: Callable[[QueueId, QueueOffset, PhysicalOffset], int],
    minimum: PhysicalOffset,
    *,
    positions_max: int,
    go_on: Callable[[], bool],
) -> Unread:
    """Return what each group has not read below `minimum`. Reads at most `positions_max` committed offsets.

    `go_on` is called after each page of them; it may take its time, and returns False to end the count. Messages that
    were delivered and not acknowledged are not counted; messages that a group's filter would skip are.
    """
    found: dict[str, int] = {}
    for looked_at, (group, queue, next_offset) in enumerate(positions):
        if looked_at >= positions_max or (looked_at % PAGE_POSITIONS == PAGE_POSITIONS - 1 and not go_on()):
            return Unread(found, complete=False)
        count = unread_below(queue, next_offset, minimum)
        if count:
            found[group] = found.get(group, 0) + count
    return Unread(found, complete=True)
