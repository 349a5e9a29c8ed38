"""Messages of a topic by the time at which they were stored, in the order of the log."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from heapq import heapify, heappop, heapreplace
from typing import Final, NamedTuple, Protocol

from server.pacing import Pace
from store.consumequeue import ConsumeQueueEntry
from store.errors import MessageGivenUp
from store.offsets import QueueBounds, QueueId, QueueOffset
from store.record import StoredMessage
from store.time_search import TimeBoundary

ENTRIES_AT_ONCE: Final = 32
NOWHERE: Final = -1


class BrowsedStore(Protocol):
    """What is asked of the message store."""

    def bounds(self, queue: QueueId) -> QueueBounds: ...

    def offset_at_time(self, queue: QueueId, time_ms: int, boundary: TimeBoundary) -> QueueOffset: ...

    def entries(self, queue: QueueId, start: QueueOffset, limit: int) -> list[ConsumeQueueEntry]: ...

    def read(self, entry: ConsumeQueueEntry) -> StoredMessage: ...


class Place(NamedTuple):
    """Behind which record to go on, and when that was stored."""

    stored_ms: int
    physical_offset: int


class Wanted(NamedTuple):
    """Messages stored in [begin_ms, end_ms], behind a place, without the first `skip` of them.

    At most `limit`, and `size_max` bytes of them unless the first alone is larger.
    """

    begin_ms: int
    end_ms: int
    limit: int
    size_max: int
    after: Place | None = None
    skip: int = 0


class Found(NamedTuple):
    """`next` is where to go on; None when there is nothing behind."""

    messages: list[StoredMessage]
    next: Place | None


@dataclass(order=True, slots=True)
class _Cursor:
    """Somewhere in a queue; the one whose next record lies first in the log comes first."""

    physical_offset: int
    queue: QueueId = field(compare=False)
    entries: list[ConsumeQueueEntry] = field(compare=False)
    """Those to come, the next one last."""


class MessageBrowser:
    """Lives on the event loop's thread."""

    def __init__(self, store: BrowsedStore) -> None:
        self._store = store

    async def find(self, queues: Iterable[QueueId], wanted: Wanted, pace: Pace) -> Found:
        """Raises StoreDamaged: damage is told and never passed over; what an operator gave up is."""
        cursors = []
        for queue in queues:
            await pace.pause()
            cursor = await self._begin(queue, wanted, pace)
            if cursor is not None:
                cursors.append(cursor)
        heapify(cursors)
        messages: list[StoredMessage] = []
        skipped = size = 0
        last: Place | None = wanted.after
        while cursors:
            await pace.pause()
            if len(messages) == wanted.limit:
                return Found(messages, last)
            cursor = cursors[0]
            entry = cursor.entries[-1]
            if skipped < wanted.skip:
                skipped += 1
            else:
                try:
                    message = self._store.read(entry)
                except MessageGivenUp:
                    message = None
                if message is not None:
                    if message.store_timestamp_ms > wanted.end_ms:
                        break  # store times never go back
                    size += message.size
                    if messages and size > wanted.size_max:
                        return Found(messages, last)
                    messages.append(message)
                    last = Place(message.store_timestamp_ms, message.physical_offset)
            if self._step(cursor):
                heapreplace(cursors, cursor)
            else:
                heappop(cursors)
        return Found(messages, None)

    async def _begin(self, queue: QueueId, wanted: Wanted, pace: Pace) -> _Cursor | None:
        """At the first message that may be wanted; None where there is none."""
        from_ms = wanted.begin_ms if wanted.after is None else max(wanted.begin_ms, wanted.after.stored_ms)
        start = self._store.offset_at_time(queue, from_ms, TimeBoundary.LOWER)
        cursor = _Cursor(NOWHERE, queue, self._entries(queue, start))
        behind = NOWHERE if wanted.after is None else wanted.after.physical_offset
        while cursor.entries and cursor.entries[-1].physical_offset <= behind:
            await pace.pause()
            self._step(cursor)
        if not cursor.entries:
            return None
        cursor.physical_offset = cursor.entries[-1].physical_offset
        return cursor

    def _step(self, cursor: _Cursor) -> bool:
        """Go on by one message; whether there is one."""
        done = cursor.entries.pop()
        if not cursor.entries:
            cursor.entries = self._entries(cursor.queue, QueueOffset(done.queue_offset + 1))
        if cursor.entries:
            cursor.physical_offset = cursor.entries[-1].physical_offset
        return bool(cursor.entries)

    def _entries(self, queue: QueueId, start: QueueOffset) -> list[ConsumeQueueEntry]:
        return self._store.entries(queue, start, ENTRIES_AT_ONCE)[::-1]
