"""The keys of a store's messages, kept up as the log grows.

What is dispatched is handed over at once, which costs next to nothing, and written soon after on another thread, many
records at a time. It need not be kept for that: what was handed over is in the log, so when too much waits, after a
start, or when the disk had no room, the index reads the log from where it has got to.

    handed over   dispatched, waits in memory or is to be read from the log
    written       in the files
    saved         in the files for good, and where to go on is written down
"""

from __future__ import annotations

import json
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from threading import Lock
from typing import Final, NamedTuple

from quarry_mq.store.errors import MessageGivenUp, OffsetOutOfRange, StoreDamaged, Unavailable
from quarry_mq.store.index.items import KeyItems, items_of
from quarry_mq.store.index.key_files import KeyFiles, Unread
from quarry_mq.store.index.wanted import WantedMessages
from quarry_mq.store.message import DispatchRequest
from quarry_mq.store.offsets import PhysicalOffset
from quarry_mq.store.record import StoredMessage

WAITING_MAX: Final = 65_536
"""Messages that wait in memory at most; behind that they are read from the log."""
WRITTEN_AT_ONCE: Final = 4_096
STATE_VERSION: Final = 1


class IndexState(NamedTuple):
    """What is saved: the items of all records below `up_to` are in the files, which were as `files` says.

    `shape` is what the files are made with.
    """

    up_to: PhysicalOffset
    files: object
    shape: Mapping[str, int]

    def pack(self) -> bytes:
        """As a row: JSON."""
        return json.dumps({"version": STATE_VERSION, **self._asdict()}).encode()

    @classmethod
    def unpack(cls, row: bytes) -> IndexState:
        stored = json.loads(row)
        return cls(PhysicalOffset(stored["up_to"]), stored["files"], stored["shape"])


class Portion(NamedTuple):
    """Records that follow each other in the log: those of [begin, end)."""

    begin: PhysicalOffset
    requests: Sequence[DispatchRequest]
    end: PhysicalOffset


ReadLog = Callable[[PhysicalOffset, PhysicalOffset], Generator[Portion, None, None]]
"""The records from one offset up to another. Raises OffsetOutOfRange, then or later, when the log has begun behind."""
ReadRecord = Callable[[PhysicalOffset], StoredMessage]
"""Raises OffsetOutOfRange, MessageGivenUp, StoreDamaged."""


class FoundMessages(NamedTuple):
    """The newest messages with a key; how far the index had got when it was asked, and how far it was to get.

    Messages may be missing that `unread` files tell of.
    """

    messages: list[StoredMessage]
    unread: list[Unread]
    indexed_up_to: PhysicalOffset
    handed_over: PhysicalOffset


class _Closed(Exception):
    """The index is wanted no more."""


class MessageIndex:
    """`hand_over` belongs to the thread that dispatches. Everything else may run on any thread beside it."""

    def __init__(
        self,
        files: KeyFiles,
        *,
        shape: Mapping[str, int],
        up_to: PhysicalOffset,
        end: PhysicalOffset,
        read_log: ReadLog,
        begin: Callable[[], PhysicalOffset],
        durable_up_to: Callable[[], PhysicalOffset],
        save: Callable[[IndexState], None],
    ) -> None:
        """The items of all records below `up_to` are in the files; the log goes on to `end`.

        `begin` tells where the log begins now, `durable_up_to` how far it is durable.
        """
        self._files = files
        self._read_log = read_log
        self._shape = shape
        self._begin = begin
        self._durable_up_to = durable_up_to
        self._save = save
        self._waiting: list[Portion] = []  # guarded by _handing, and without gaps
        self._waiting_count = 0  # guarded by _handing
        self._handed_over = end  # guarded by _handing
        self._handing = Lock()
        self._lock = Lock()
        self._written_up_to = up_to  # guarded by _lock, as are the files and all that follows
        self._to_save: IndexState | None = None
        self._saved_up_to: PhysicalOffset | None = None
        self._reading: Iterator[Portion] | None = None
        self._reading_to = up_to
        self._closed = False
        self._repairing = Lock()

    @property
    def handed_over(self) -> PhysicalOffset:
        return self._handed_over

    @property
    def written_up_to(self) -> PhysicalOffset:
        """The items of all records below are in the files."""
        return self._written_up_to

    @property
    def file_count(self) -> int:
        return self._files.file_count

    # -- keeping up

    def hand_over(self, requests: Sequence[DispatchRequest], end: PhysicalOffset) -> None:
        """These were dispatched: all there are from where the last ones ended up to `end`."""
        with self._handing:
            if self._waiting_count > WAITING_MAX:
                self._waiting = []
                self._waiting_count = 0
            self._waiting.append(Portion(self._handed_over, requests, end))
            self._waiting_count += len(requests)
            self._handed_over = end

    def step(self) -> bool:
        """Write some of what was handed over; whether more is left. Raises OSError, StoreDamaged.

        What an error kept from being written is read from the log by later calls.
        """
        with self._lock:
            if self._closed or self._files.failure is not None:
                return False
            try:
                portion = self._next()
                if portion is None:
                    return False
                items = items_of(portion.requests, with_tags=self._files.with_tags).behind(self._written_up_to)
                if len(items):
                    self._files.put(items)
            except BaseException:
                self._reading = None
                raise
            self._written_up_to = max(self._written_up_to, portion.end)
            return self._written_up_to < self._handed_over

    def _next(self) -> Portion | None:
        """What follows what is written: from memory where it begins there, else from the log."""
        while True:
            if self._reading is None:
                with self._handing:
                    begin = self._waiting[0].begin if self._waiting else self._handed_over
                if begin <= self._written_up_to:
                    return self._take()
                start = max(self._written_up_to, self._begin())
                self._reading = self._read_log(start, begin)
                self._reading_to = begin
            try:
                portion = next(self._reading, None)
            except OffsetOutOfRange:
                self._reading = None
                if self._begin() <= self._written_up_to:
                    raise
                # segments expired: there is nothing to find in them any more
                self._written_up_to = self._begin()
                continue
            if portion is not None:
                return portion
            self._reading = None
            return Portion(self._written_up_to, (), self._reading_to)

    def _take(self) -> Portion | None:
        """The first that wait in memory."""
        with self._handing:
            taken = 0
            requests: list[DispatchRequest] = []
            while taken < len(self._waiting) and len(requests) < WRITTEN_AT_ONCE:
                requests += self._waiting[taken].requests
                taken += 1
            if not taken:
                return None
            portion = Portion(self._waiting[0].begin, requests, self._waiting[taken - 1].end)
            del self._waiting[:taken]
            self._waiting_count -= len(requests)
        return portion

    def save(self) -> None:
        """Make what is written durable, and write down where a start after a crash goes on. Raises OSError, kv.KvError.

        What a start believes must not be about records that a power cut can take. As long as the log is not durable so
        far, a later call saves what is written now.
        """
        with self._lock:
            if self._closed or self._files.failure is not None:
                return
            if self._to_save is None or self._to_save.up_to == self._saved_up_to:
                self._to_save = IndexState(self._written_up_to, self._files.state, self._shape)
            state = self._to_save
            if state.up_to == self._saved_up_to or self._durable_up_to() < state.up_to:
                return
            self._files.flush()
            self._save(state)
            self._saved_up_to = state.up_to
            self._files.settle(state.files)

    def expire(self) -> int:
        """Remove the files about records that the log has no more; returns how many. Raises OSError."""
        with self._lock:
            return 0 if self._closed else self._files.expire(self._begin())

    def repair_one(self) -> bool:
        """Make files that turned out to be damaged anew from the log; whether there were any.

        Raises StoreDamaged for the log, OSError.
        """
        with self._repairing:
            try:
                return self._files.repair_one(self._items_again)
            except OffsetOutOfRange:
                return True  # segments expired meanwhile
            except _Closed:
                return False

    def _items_again(self, begin: PhysicalOffset, end: PhysicalOffset) -> Iterator[KeyItems]:
        with closing(self._read_log(max(begin, self._begin()), self._written_up_to)) as portions:
            for portion in portions:
                if self._closed:
                    raise _Closed
                yield items_of(portion.requests, with_tags=self._files.with_tags)
                if portion.end > end:
                    return

    def close(self) -> None:
        """Write and save all that was handed over; the log is durable. Raises as `step` and `save`."""
        try:
            while self.step():
                pass
            self._to_save = None  # all is durable: no need to save what there was before
            self.save()
        finally:
            with self._lock:
                self._closed = True
            with self._repairing, self._lock:
                self._files.close()

    # -- asking

    def find(self, topic: str, key: str, *, begin_ms: int, end_ms: int, limit: int, read: ReadRecord) -> FoundMessages:
        """The newest messages of a topic with a key, stored in [begin_ms, end_ms].

        What was handed over just now is found, too, unless the index is behind with the log. Raises StoreDamaged
        for a record, OSError for files that cannot be read, Unavailable after one could not be made durable.
        """
        if self._files.failure is not None:
            raise Unavailable(f"the key index cannot be trusted until the next start: {self._files.failure}")
        with suppress(OSError, StoreDamaged):  # who keeps it up is told; what is written is found
            while self._reading is None and self.step():
                pass
        wanted = WantedMessages(topic, key, begin_ms, end_ms)
        indexed_up_to = self._written_up_to

        def read_if_there(at: PhysicalOffset) -> StoredMessage | None:
            try:
                return read(at)
            except (OffsetOutOfRange, MessageGivenUp):
                return None

        answer = self._files.find(
            wanted.text,
            begin_ms=begin_ms,
            end_ms=end_ms,
            limit=limit,
            accept=lambda at: wanted.accept(at, read_if_there),
        )
        return FoundMessages(answer.found, answer.unread, indexed_up_to, self._handed_over)
