"""Messages for operators who are no consumers: pages of the messages that a topic holds, and tails of new ones.

A page has the messages of a topic in the order of the log, the oldest or the newest first. The queues of a topic are
merged by the log positions of their next records. Work on each queue is put off for as long as possible, for a topic
may have a hundred thousand of them: one range read returns where all of them end, and a queue whose end lies too far
away for the page is never opened. So the newest messages cost the same with ten queues and with many, and a page
further back costs a search in each queue that got a message since.

A tail shows messages as they become visible. No group receives them, and nothing waits for an operator. A tail is
notified of each batch of messages as consumers are. The messages that it has not looked at yet are bounded, and so is
the number that it returns per second; those that do not fit are counted. Without a tail, a batch costs a look-up in an
empty dict.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from heapq import heapify, heappop, heapreplace
from struct import Struct
from typing import Final, NamedTuple, Protocol
from zlib import crc32

from quarry_mq.protocol.clock import Clock
from quarry_mq.protocol.messages.bodies import uncompressed_parts
from quarry_mq.protocol.messages.system_flag import compression
from quarry_mq.protocol.names import trimmed
from quarry_mq.server.delivery import command_past
from quarry_mq.server.errors import TooManyTails, TooMuchForOneCall
from quarry_mq.server.filters import MessageFilter, SqlFilter, TagFilter
from quarry_mq.server.tasks import TimeSlice, until_set
from quarry_mq.store.consumequeue import ConsumeQueueEntry, QueueEnd
from quarry_mq.store.consumequeue.search import TimeBoundary
from quarry_mq.store.errors import BrokerError, Invalid, MessageGivenUp, StoreDamaged
from quarry_mq.store.index import TIME_MAX_MS
from quarry_mq.store.message import DispatchRequest, PhysicalOffset, QueueBounds, QueueId, QueueOffset
from quarry_mq.store.record import StoredMessage

CONTAINED_MAX: Final = 256
"""Bytes of the text that is searched in bodies."""
PART_SIZE: Final = 256 * 1024
"""Bytes of a body that are searched in one go: a tenth of a millisecond."""


class MessageWish(NamedTuple):
    """A filter for messages. An empty `contained` matches any body.

    `may_see` excludes messages that the reader may not see; None: the reader may see all.
    """

    filter: MessageFilter
    contained: bytes = b""
    may_see: Callable[[StoredMessage], bool] | None = None

    @classmethod
    def of(cls, expression: str, *, is_sql: bool, contained: bytes) -> MessageWish:
        """Build a filter from a request. Raises Invalid that names the field."""
        if len(contained) > CONTAINED_MAX:
            raise Invalid(f"filter.body_contains: {len(contained)} bytes, at most {CONTAINED_MAX} are allowed")
        is_written = bool(trimmed(expression))
        if not is_written and not contained:
            return EVERYTHING
        try:
            is_sql = is_sql and is_written
            chosen: MessageFilter = SqlFilter.parse(expression) if is_sql else TagFilter.parse(expression)
        except Invalid as error:
            raise Invalid(f"filter.expression: {error}") from error
        return cls(chosen, contained)

    def may_match(self, tags_code: int) -> bool:
        """Return whether the record may match and has to be read."""
        return self.filter.may_match(tags_code)

    async def matches(self, message: StoredMessage, time_slice: TimeSlice) -> bool:
        if self.may_see is not None and not self.may_see(message):
            return False
        return self.filter.matches(message.properties) and (
            not self.contained or await contains(message, self.contained, time_slice)
        )


EVERYTHING: Final = MessageWish(TagFilter.parse(""))


async def contains(message: StoredMessage, contained: bytes, time_slice: TimeSlice) -> bool:
    """Return whether the uncompressed body contains the bytes. A body that cannot be uncompressed does not."""
    overlap = b""
    for part in _parts(message):
        looked_at = overlap + part
        if contained in looked_at:
            return True
        overlap = looked_at[-(len(contained) - 1) :] if len(contained) > 1 else b""
        await time_slice.pause()
    return False


def _parts(message: StoredMessage) -> Iterator[bytes]:
    try:
        method = compression(message.system_flag)
    except ValueError:
        return
    body = message.body
    if method is not None:
        yield from uncompressed_parts(bytes(body), method, PART_SIZE)
        return
    for begin in range(0, len(body), PART_SIZE):
        yield bytes(body[begin : begin + PART_SIZE])


LAYOUT: Final = 1
_CURSOR: Final = Struct(">BBqI")
"""The position of the next page of messages, in the form that callers keep.

| field  | bytes | meaning                                                                          |
|--------|-------|----------------------------------------------------------------------------------|
| layout | 1     | 1; another number is of another version                                          |
| order  | 1     | 1: the oldest first                                                              |
| place  | 8     | offset in the log, big-endian: the page begins after (before) the record there   |
| of     | 4     | CRC-32 of topic, lite topic and queue, so that it is not used for anything else  |
"""
assert _CURSOR.size == 14


def pack_cursor(place: PhysicalOffset, *, is_ascending: bool, selected: str) -> bytes:
    """Encode a cursor. `selected` identifies the messages, by any text that is always the same for them."""
    return _CURSOR.pack(LAYOUT, is_ascending, place, crc32(selected.encode()))


def parse_cursor(cursor: bytes, *, is_ascending: bool, selected: str) -> PhysicalOffset:
    """Decode a cursor. Raises Invalid."""
    if not cursor or cursor[0] != LAYOUT:
        raise Invalid("cursor: not a cursor of this call, or one of another version: start again without a cursor")
    if len(cursor) != _CURSOR.size:
        raise Invalid(f"cursor: it has {len(cursor)} bytes, not {_CURSOR.size}: pass `next` of an answer unchanged")
    _, order, place, of = _CURSOR.unpack(cursor)
    if order not in {0, 1} or place < 0:
        raise Invalid("cursor: not a cursor of this call: start again without a cursor")
    if bool(order) is not is_ascending:
        raise Invalid("cursor: it was made for the other order; is_ascending must not change between pages")
    if of != crc32(selected.encode()):
        raise Invalid(
            "cursor: it was made for other messages; topic, lite_topic and queue must not change between pages"
        )
    return PhysicalOffset(place)


ENTRIES_AT_ONCE: Final = 32
ENDS_AT_ONCE: Final = 500
"""Queues whose last positions are read at once, in some 0.5 ms."""
ASKED: Final = 64
"""Queues that are searched for the time at which the page begins, before all others are."""
SEARCHED_MAX: Final = 20_000
"""Queues that one call may search, each for some 50 µs. A topic is created with 8,192 at most."""
UNLIMITED: Final = 1 << 62


class BrowsedStore(Protocol):
    """The part of the message store that browsing uses."""

    @property
    def dispatched_up_to(self) -> PhysicalOffset: ...

    def bounds(self, queue: QueueId) -> QueueBounds: ...

    def ends(self, topic: str, after: int, limit: int) -> list[QueueEnd]: ...

    def offset_at_time(self, queue: QueueId, time_ms: int, boundary: TimeBoundary) -> QueueOffset: ...

    def last_entry_below(self, queue: QueueId, at: PhysicalOffset) -> ConsumeQueueEntry | None: ...

    def entries(self, queue: QueueId, start: QueueOffset, limit: int) -> list[ConsumeQueueEntry]: ...

    def read(self, entry: ConsumeQueueEntry) -> StoredMessage: ...


class LogBeginning(Protocol):
    """The position at which the log begins now."""

    @property
    def minimum(self) -> PhysicalOffset: ...


class Selected(NamedTuple):
    """The queues to read: all queues of a topic, or one. A lite topic is queue 0 of its light queue."""

    topic: str
    queue: int | None = None


class Wanted(NamedTuple):
    """A page of messages stored in [begin_ms, end_ms], without the first `skip` of them.

    `beyond` is the log position after (newest first: before) which the page begins, `offset` an offset of the one queue
    that is selected. The page ends with `limit` messages, with `size_max` bytes of them unless the first alone is
    larger, and when `looked_at_max` messages were looked at or `read_max` bytes of them read.
    """

    limit: int
    size_max: int
    is_ascending: bool = True
    begin_ms: int = 0
    end_ms: int = TIME_MAX_MS
    beyond: PhysicalOffset | None = None
    offset: QueueOffset | None = None
    skip: int = 0
    looked_at_max: int = UNLIMITED
    read_max: int = UNLIMITED
    wish: MessageWish = EVERYTHING


class DamagedMessage(NamedTuple):
    """A message that a page leaves out, because its record is damaged."""

    queue: QueueId
    offset: QueueOffset
    reason: str

    @property
    def command(self) -> str:
        """Return the command with which a group goes on behind the message."""
        return command_past(self.queue, self.offset)


class Found(NamedTuple):
    """A page that was read. `next` is for `Wanted.beyond`; None when there was nothing further when the call began.

    `entries` are those of the messages. `looked_up_to_ms`: when the last message that was looked at was stored; None if
    there was none, or its record cannot be read.
    """

    messages: list[StoredMessage]
    entries: list[ConsumeQueueEntry]
    next: PhysicalOffset | None
    looked_at: int
    looked_up_to_ms: int | None
    damaged: list[DamagedMessage]


class MessageBrowser:
    """Reads pages of messages. Lives on the event loop's thread."""

    def __init__(self, store: BrowsedStore, log: LogBeginning, report: Callable[[Exception], None]) -> None:
        """`report` is called with the damage that a page goes past."""
        self._store = store
        self._log = log
        self._report = report

    def has_queue(self, topic: str, queue: int, count: int) -> bool:
        """Return whether a topic of `count` queues has this queue, or once had it."""
        ends = self._store.ends(topic, queue - 1, 1) if queue >= count else ()
        return 0 <= queue < count or any(each.number == queue for each in ends)

    async def find(self, selected: Selected, wanted: Wanted, time_slice: TimeSlice) -> Found:
        """Read a page. A damaged record is named in the page and reported, and counts as one of its messages.

        Raises StoreDamaged for other damage than that of a record, and TooMuchForOneCall if too many queues have
        messages between the page and the end of the log.
        """
        merge = _Merge(self._store, self._log, selected.topic, wanted)
        await merge.begin(selected, time_slice)
        page = _Page(self._store, wanted)
        while (entry := await merge.first(time_slice)) is not None:
            await time_slice.pause()
            if page.is_full:
                return await page.found(time_slice, has_more=True)
            try:
                if not await page.take(entry, time_slice):
                    return await page.found(time_slice, has_more=page.is_full)
            except StoreDamaged as damage:
                if entry.physical_offset >= self._log.minimum:
                    page.pass_over(merge.queue, entry, damage)
                    self._report(damage)
                # otherwise the message has expired since its entry was read
            merge.step()
        return await page.found(time_slice, has_more=False)


class _Page:
    """The messages of a page that were found so far."""

    def __init__(self, store: BrowsedStore, wanted: Wanted) -> None:
        self._store = store
        self._wanted = wanted
        self._messages: list[StoredMessage] = []
        self._entries: list[ConsumeQueueEntry] = []
        self._size = 0
        self._read = 0
        self._skipped = 0
        self._looked_at = 0
        self._last: ConsumeQueueEntry | None = None
        self._damaged: list[DamagedMessage] = []
        self.is_full = False

    async def take(self, entry: ConsumeQueueEntry, time_slice: TimeSlice) -> bool:
        """Add an entry and return whether to continue: not if the page is full, or later messages are out of its times.

        Raises StoreDamaged.
        """
        wanted = self._wanted
        if self._skipped < wanted.skip:
            self._skipped += 1
        elif wanted.wish.may_match(entry.tags_code):
            try:
                message = self._store.read(entry)
            except MessageGivenUp:
                message = None
            if message is not None and not await self._take(entry, message, time_slice):
                return False
        self._looked(entry)
        return True

    def pass_over(self, queue: QueueId, entry: ConsumeQueueEntry, damage: StoreDamaged) -> None:
        """Note a message whose record is damaged, unless it was surely stored outside the page's times."""
        stored_ms = entry.store_timestamp_ms
        if stored_ms is None or self._wanted.begin_ms <= stored_ms <= self._wanted.end_ms:
            self._damaged.append(DamagedMessage(queue, entry.queue_offset, damage.place))
        self._looked(entry)

    def _looked(self, entry: ConsumeQueueEntry) -> None:
        wanted = self._wanted
        self._last = entry
        self._looked_at += 1
        self.is_full = (
            len(self._messages) + len(self._damaged) >= wanted.limit
            or self._looked_at >= wanted.looked_at_max
            or self._read >= wanted.read_max
        )

    async def _take(self, entry: ConsumeQueueEntry, message: StoredMessage, time_slice: TimeSlice) -> bool:
        wanted = self._wanted
        stored_ms = message.store_timestamp_ms
        is_late, is_early = stored_ms > wanted.end_ms, stored_ms < wanted.begin_ms
        if is_late or is_early:
            # store times never go back
            return is_early if wanted.is_ascending else is_late
        self._read += message.size
        if not await wanted.wish.matches(message, time_slice):
            return True
        if self._messages and self._size + message.size > wanted.size_max:
            self.is_full = True
            return False
        self._size += message.size
        self._messages.append(message)
        self._entries.append(entry)
        return True

    async def found(self, time_slice: TimeSlice, *, has_more: bool) -> Found:
        last = self._last
        await time_slice.pause()
        return Found(
            self._messages,
            self._entries,
            last.physical_offset if has_more and last is not None else None,
            self._looked_at,
            None if last is None else _time_of(self._store, last),
            self._damaged,
        )


class _Merge:
    """The queues of a topic, merged in the order of the log.

    For each queue the heap holds a log position at or before which its next record lies (in the order of the page); it
    is exact for queues that are open.
    """

    def __init__(self, store: BrowsedStore, log: LogBeginning, topic: str, wanted: Wanted) -> None:
        self._store = store
        self._log = log
        self._topic = topic
        self._wanted = wanted
        self._horizon = store.dispatched_up_to
        """The log position of the first record that is not shown: queues already read might have got older ones."""
        self._heap: list[tuple[int, int]] = []
        self._open: dict[int, list[ConsumeQueueEntry]] = {}
        """Entries of open queues by queue number, the next entry last."""
        self._searched = 0

    async def begin(self, selected: Selected, time_slice: TimeSlice) -> None:
        found: list[QueueEnd] = []
        number = -1 if selected.queue is None else selected.queue - 1
        limit = ENDS_AT_ONCE if selected.queue is None else 1
        while ends := self._store.ends(self._topic, number, limit):
            number = ends[-1].number
            if selected.queue not in {None, number}:
                break
            found += [end for end in ends if end.physical_offset >= self._log.minimum]
            await time_slice.pause()
            if selected.queue is not None or len(ends) < limit:
                break
        early = await self._early(found, time_slice)
        for begin in range(0, len(found), ENDS_AT_ONCE):
            part = found[begin : begin + ENDS_AT_ONCE]
            self._heap += [(place, end.number) for end in part if (place := self._bound(end, early)) is not None]
            await time_slice.pause()
        heapify(self._heap)  # some 10 ms for a hundred thousand queues

    async def _early(self, ends: Sequence[QueueEnd], time_slice: TimeSlice) -> PhysicalOffset:
        """Return a log position below which nothing was stored at `begin_ms` or later, according to some of the queues.

        Queues that end below it need not be searched.
        """
        wanted = self._wanted
        early = PhysicalOffset(0)
        if not wanted.is_ascending or not wanted.begin_ms or wanted.beyond is not None or len(ends) <= ASKED:
            return early
        for end in ends[:: len(ends) // ASKED]:
            await time_slice.pause()
            queue = QueueId(self._topic, end.number)
            at = self._store.offset_at_time(queue, wanted.begin_ms, TimeBoundary.LOWER)
            before = self._up_to(queue, self._store.bounds(queue), at)
            if before:
                early = max(early, before[-1].physical_offset)
        return early

    def _bound(self, end: QueueEnd, early: PhysicalOffset) -> int | None:
        """Return the heap's bound for the first entry of a queue; None if it has no entry in the page's range."""
        wanted, last = self._wanted, end.physical_offset
        if not wanted.is_ascending:
            return -(last if wanted.beyond is None else min(last, wanted.beyond - 1))
        begin = early if wanted.beyond is None else wanted.beyond + 1
        return begin if last >= begin else None

    async def first(self, time_slice: TimeSlice) -> ConsumeQueueEntry | None:
        """Return the next entry of all queues; None if there is none. Raises TooMuchForOneCall, StoreDamaged."""
        while self._heap:
            place, number = self._heap[0]
            entries = self._open.get(number)
            if entries is None:
                await time_slice.pause()
                if entries := self._begun(QueueId(self._topic, number)):
                    self._open[number] = entries
                    heapreplace(self._heap, (self._place(entries[-1]), number))
                else:
                    heappop(self._heap)
            elif place >= self._horizon:
                return None
            else:
                return entries[-1]
        return None

    @property
    def queue(self) -> QueueId:
        """The queue of the entry that `first` returned."""
        return QueueId(self._topic, self._heap[0][1])

    def step(self) -> None:
        """Move past the entry that `first` returned."""
        _, number = self._heap[0]
        entries = self._open[number]
        done = entries.pop()
        if not entries:
            queue = QueueId(self._topic, number)
            entries = self._after(queue, done) if self._wanted.is_ascending else self._before(queue, done)
        if entries:
            self._open[number] = entries
            heapreplace(self._heap, (self._place(entries[-1]), number))
        else:
            del self._open[number]
            heappop(self._heap)

    def _place(self, entry: ConsumeQueueEntry) -> int:
        return entry.physical_offset if self._wanted.is_ascending else -entry.physical_offset

    # -- one queue

    def _begun(self, queue: QueueId) -> list[ConsumeQueueEntry]:
        """Return the first entries of a queue that may be on the page, the next one last."""
        return self._first_ascending(queue) if self._wanted.is_ascending else self._first_descending(queue)

    def _first_ascending(self, queue: QueueId) -> list[ConsumeQueueEntry]:
        wanted = self._wanted
        if wanted.offset is not None and wanted.beyond is None:
            return self._store.entries(queue, wanted.offset, ENTRIES_AT_ONCE)[::-1]
        oldest = self._store.entries(queue, QueueOffset(0), ENTRIES_AT_ONCE)
        is_early = [self._is_early(each) for each in oldest]
        # among very many queues most hold little: one read shows that
        if None not in is_early and (len(oldest) < ENTRIES_AT_ONCE or not is_early[-1]):
            return [each for each, early in zip(reversed(oldest), reversed(is_early), strict=True) if not early]
        self._count_search()
        if wanted.beyond is not None:
            passed = self._store.last_entry_below(queue, PhysicalOffset(wanted.beyond + 1))
            start = QueueOffset(0 if passed is None else passed.queue_offset + 1)
        else:
            start = self._store.offset_at_time(queue, wanted.begin_ms, TimeBoundary.LOWER)
        return self._store.entries(queue, start, ENTRIES_AT_ONCE)[::-1]

    def _is_early(self, entry: ConsumeQueueEntry) -> bool | None:
        """Return whether the entry lies before the page's beginning; None if the entry has no store time."""
        wanted = self._wanted
        if wanted.beyond is not None:
            return entry.physical_offset <= wanted.beyond
        if not wanted.begin_ms:
            return False
        return None if entry.store_timestamp_ms is None else entry.store_timestamp_ms < wanted.begin_ms

    def _after(self, queue: QueueId, done: ConsumeQueueEntry) -> list[ConsumeQueueEntry]:
        return self._store.entries(queue, QueueOffset(done.queue_offset + 1), ENTRIES_AT_ONCE)[::-1]

    def _first_descending(self, queue: QueueId) -> list[ConsumeQueueEntry]:
        wanted = self._wanted
        below = self._horizon if wanted.beyond is None else wanted.beyond
        bounds = self._store.bounds(queue)
        end = bounds.maximum if wanted.offset is None else min(bounds.maximum, QueueOffset(wanted.offset + 1))
        # most pages begin near the end: one read shows that
        newest = self._up_to(queue, bounds, QueueOffset(end))
        if newest and newest[0].physical_offset < below and self._is_in_time(newest[0]):
            return [each for each in newest if each.physical_offset < below and self._is_in_time(each)]
        self._count_search()
        if wanted.end_ms < TIME_MAX_MS and wanted.beyond is None:
            at = self._store.offset_at_time(queue, wanted.end_ms, TimeBoundary.UPPER)
            found = self._up_to(queue, bounds, QueueOffset(at + 1))
            # the first offset is also returned if no message is that old
            is_late = at == bounds.minimum and found and (_time_of(self._store, found[-1]) or 0) > wanted.end_ms
            return [] if is_late else found
        last = self._store.last_entry_below(queue, below)
        return [] if last is None else [last]

    def _is_in_time(self, entry: ConsumeQueueEntry) -> bool:
        """Return whether the entry's own store time shows that it is not after the page's time range."""
        wanted, stored_ms = self._wanted, entry.store_timestamp_ms
        if wanted.end_ms == TIME_MAX_MS:
            return True
        return stored_ms is not None and stored_ms <= wanted.end_ms

    def _before(self, queue: QueueId, done: ConsumeQueueEntry) -> list[ConsumeQueueEntry]:
        bounds = self._store.bounds(queue)
        if done.queue_offset <= bounds.minimum:
            return []
        if found := self._up_to(queue, bounds, done.queue_offset):
            return found
        last = self._store.last_entry_below(queue, done.physical_offset)
        return [] if last is None else [last]

    def _up_to(self, queue: QueueId, bounds: QueueBounds, end: QueueOffset) -> list[ConsumeQueueEntry]:
        """Return the last entries below an offset, ascending; fewer or none if there is a long gap."""
        begin = QueueOffset(max(bounds.minimum, end - ENTRIES_AT_ONCE))
        return [each for each in self._store.entries(queue, begin, ENTRIES_AT_ONCE) if each.queue_offset < end]

    def _count_search(self) -> None:
        self._searched += 1
        if self._searched > SEARCHED_MAX:
            raise TooMuchForOneCall(
                f"queue: more than {SEARCHED_MAX} queues of topic {self._topic} have messages since then: name a "
                "queue, or start closer to the newest message"
            )


def _time_of(store: BrowsedStore, entry: ConsumeQueueEntry) -> int | None:
    """Return when an entry's message was stored; None if it cannot be read."""
    if entry.store_timestamp_ms is not None:
        return entry.store_timestamp_ms
    try:
        return store.read(entry).store_timestamp_ms
    except BrokerError:
        return None


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
    damaged: list[DamagedMessage]


class Tail:
    """Give one operator a view of new messages."""

    def __init__(self, selected: Selected, wish: MessageWish) -> None:
        self.selected = selected
        self.wish = wish
        self.is_over = False
        """True once the broker stops."""
        self._waiting: deque[tuple[int, ConsumeQueueEntry]] = deque()
        self._overflown = 0
        self._arrived = asyncio.Event()

    def offer(self, queue: int, offset: QueueOffset, request: DispatchRequest) -> None:
        """Note that a message became visible. Must not raise: the broker's sends pass through here."""
        if self.selected.queue not in {None, queue} or not self.wish.may_match(request.tags_code):
            return
        if len(self._waiting) >= WAITING_MAX:
            self._overflown += 1
        else:
            entry = ConsumeQueueEntry(
                offset, request.physical_offset, request.size, request.tags_code, request.store_timestamp_ms
            )
            self._waiting.append((queue, entry))
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

    def take(self) -> tuple[int, ConsumeQueueEntry] | None:
        """Take the queue and the entry of the next message that was not looked at; None without one."""
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

    def __init__(self, store: ReadStore, log: LogBeginning, report: Callable[[Exception], None]) -> None:
        """`report` is called with the damage that a tail goes past."""
        self._store = store
        self._log = log
        self._report = report
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
        """Return the matching messages that have arrived, within the limits. Damaged records are named and reported."""
        seen = Seen([], [], 0, [])
        left_out, size = tail.take_overflown(), 0
        is_wanted_unread = tail.wish is EVERYTHING
        for _ in range(WAITING_MAX):
            if len(seen.messages) == count_max or size >= size_max or (taken := tail.take()) is None:
                break
            queue, entry = taken
            await time_slice.pause()
            has_room = rate.has_room()
            if is_wanted_unread and not has_room:
                left_out += 1
                continue
            try:
                message = await self._wanted(entry, tail.wish, time_slice)
            except StoreDamaged as damage:
                place = QueueId(tail.selected.topic, queue)
                seen.damaged.append(DamagedMessage(place, entry.queue_offset, damage.place))
                self._report(damage)
                continue
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
