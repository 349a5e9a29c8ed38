"""Show operators messages as they become visible. No group receives them, and nothing waits for an operator.

A tail is notified of each batch of messages as consumers are. The messages that it has not looked at yet are bounded,
and so is the number that it returns per second; those that do not fit are counted. Without a tail, a batch costs a
look-up in an empty dict.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Final, NamedTuple, Protocol

from quarry_mq.protocol.clock import Clock
from quarry_mq.server.admin.browsing.browser import EVERYTHING, LogBeginning, MessageWish, Selected
from quarry_mq.server.errors import TooManyTails
from quarry_mq.server.tasks.supervision import until_set
from quarry_mq.server.tasks.time_slice import TimeSlice
from quarry_mq.store.consumequeue import ConsumeQueueEntry
from quarry_mq.store.errors import MessageGivenUp, StoreDamaged
from quarry_mq.store.message import DispatchRequest
from quarry_mq.store.offsets import QueueOffset
from quarry_mq.store.record import StoredMessage

TAILS_MAX: Final = 32
WAITING_MAX: Final = 2_000
"""Messages that a tail has not looked at yet, some 200 bytes each."""
SECOND_S: Final = 1.0


class ReadStore(Protocol):
    def read(self, entry: ConsumeQueueEntry) -> StoredMessage: ...


class Seen(NamedTuple):
    """The messages that a tail returns at once. `left_out`: matching messages for which there was no space."""

    messages: list[StoredMessage]
    entries: list[ConsumeQueueEntry]
    left_out: int


class Tail:
    """Give one operator a view of new messages."""

    def __init__(self, selected: Selected, wish: MessageWish) -> None:
        self.selected = selected
        self.wish = wish
        self.is_over = False
        """True once the broker stops."""
        self._waiting: deque[ConsumeQueueEntry] = deque()
        self._overflown = 0
        self._arrived = asyncio.Event()

    def offer(self, queue: int, offset: QueueOffset, request: DispatchRequest) -> None:
        """Note that a message became visible. Must not raise: the broker's sends pass through here."""
        if self.selected.queue not in {None, queue} or not self.wish.may_match(request.tags_code):
            return
        if len(self._waiting) >= WAITING_MAX:
            self._overflown += 1
        else:
            self._waiting.append(
                ConsumeQueueEntry(
                    offset, request.physical_offset, request.size, request.tags_code, request.store_timestamp_ms
                )
            )
        self._arrived.set()

    def end(self) -> None:
        self.is_over = True
        self._arrived.set()

    async def arrival(self, timeout_s: float) -> None:
        """Return when something has arrived, when the tail is over, or after that time."""
        if not self._waiting and not self.is_over:
            self._arrived.clear()
            await until_set(self._arrived, timeout_s)

    @property
    def has_some(self) -> bool:
        return bool(self._waiting or self._overflown)

    def take(self) -> ConsumeQueueEntry | None:
        """Take the entry of the next message that was not looked at; None without one."""
        return self._waiting.popleft() if self._waiting else None

    def take_overflown(self) -> int:
        """Return the number of messages for which there was no space, since the last call."""
        overflown, self._overflown = self._overflown, 0
        return overflown


class Rate:
    """A limit on the number of messages in any second."""

    def __init__(self, per_second: int, clock: Clock) -> None:
        self._per_second = per_second
        self._clock = clock
        self._times_s: deque[float] = deque()

    def has_room(self) -> bool:
        before_s = self._clock.monotonic_s() - SECOND_S
        while self._times_s and self._times_s[0] <= before_s:
            self._times_s.popleft()
        return len(self._times_s) < self._per_second

    def count(self) -> None:
        self._times_s.append(self._clock.monotonic_s())


class Tails:
    """Keep all tails of a broker. Lives on the event loop's thread."""

    def __init__(self, store: ReadStore, log: LogBeginning) -> None:
        self._store = store
        self._log = log
        self._by_topic: dict[str, dict[Tail, None]] = {}
        self._count = 0
        self._is_over = False

    @contextmanager
    def looking_on(self, selected: Selected, wish: MessageWish) -> Iterator[Tail]:
        """Open a tail that sees messages from now on. Raises TooManyTails."""
        if self._count >= TAILS_MAX:
            raise TooManyTails(f"{TAILS_MAX} callers already follow new messages: end one of them")
        tail = Tail(selected, wish)
        if self._is_over:
            tail.end()
        self._count += 1
        self._by_topic.setdefault(selected.topic, {})[tail] = None
        try:
            yield tail
        finally:
            self._count -= 1
            of_topic = self._by_topic[selected.topic]
            del of_topic[tail]
            if not of_topic:
                del self._by_topic[selected.topic]

    def messages_arrived(self, requests: Sequence[DispatchRequest]) -> None:
        """Note that these messages became visible. Must not raise."""
        by_topic = self._by_topic
        if not by_topic:
            return
        for request in requests:
            for tail in by_topic.get(request.topic, ()):
                tail.offer(request.queue_number, request.queue_offset, request)
            for name, offset in request.light_queues:
                for tail in by_topic.get(name, ()):
                    tail.offer(0, offset, request)

    def end_all(self) -> None:
        """End all tails because the broker stops, as if their callers had ended them."""
        self._is_over = True
        for of_topic in self._by_topic.values():
            for tail in of_topic:
                tail.end()

    async def look(self, tail: Tail, rate: Rate, *, count_max: int, size_max: int, time_slice: TimeSlice) -> Seen:
        """Return the matching messages that have arrived, within the limits. Raises StoreDamaged."""
        seen = Seen([], [], 0)
        left_out, size = tail.take_overflown(), 0
        is_wanted_unread = tail.wish is EVERYTHING
        for _ in range(WAITING_MAX):
            if len(seen.messages) == count_max or size >= size_max or (entry := tail.take()) is None:
                break
            await time_slice.pause()
            has_room = rate.has_room()
            if is_wanted_unread and not has_room:
                left_out += 1
                continue
            message = await self._wanted(entry, tail.wish, time_slice)
            if message is None:
                continue
            if not has_room:
                left_out += 1
                continue
            rate.count()
            seen.messages.append(message)
            seen.entries.append(entry)
            size += message.size
        return seen._replace(left_out=left_out)

    async def _wanted(self, entry: ConsumeQueueEntry, wish: MessageWish, time_slice: TimeSlice) -> StoredMessage | None:
        try:
            message = self._store.read(entry)
        except MessageGivenUp:
            return None
        except StoreDamaged:
            if entry.physical_offset < self._log.minimum:
                return None  # the message has expired by now
            raise
        return message if await wish.matches(message, time_slice) else None
