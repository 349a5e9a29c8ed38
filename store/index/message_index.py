"""Index the keys of a store's messages as the log grows.

Dispatched records are handed over at once, which costs next to nothing. Another thread writes them soon after, many
records at a time. They need not be kept in memory until then: the log has them, so the index reads the log from its
current position when too many records wait, after a start, or when the disk was full.

    handed over   dispatched, waits in memory or is to be read from the log
    written       in the files
    saved         durable in the files, and the position to resume from is stored
"""

from __future__ import annotations

import json
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field
from threading import Lock
from typing import Final, NamedTuple

from quarry_mq.protocol.messages.property_names import REAL_TOPIC, UNIQUE_KEY
from quarry_mq.store.errors import MessageGivenUp, OffsetOutOfRange, StoreDamaged, Unavailable
from quarry_mq.store.index.key_files import Answer, KeyFiles, Unread
from quarry_mq.store.index.keys import KeyItems, items_of, key_text, keys_of
from quarry_mq.store.message import DispatchRequest, PhysicalOffset
from quarry_mq.store.record import StoredMessage

TIME_MAX_MS: Final = 2**63 - 1
"""A time later than every store time."""


@dataclass(frozen=True, slots=True)
class WantedMessages:
    """A request for messages of a topic with a key, stored in [begin_ms, end_ms]."""

    topic: str
    key: str
    begin_ms: int
    end_ms: int
    _seen: set[PhysicalOffset] = field(default_factory=set, init=False)

    @property
    def text(self) -> str:
        """The text whose hash an index stores."""
        return key_text(self.topic, self.key)

    def matches(self, record: StoredMessage) -> bool:
        return (
            record.topic == self.topic
            and self.begin_ms <= record.store_timestamp_ms <= self.end_ms
            and self.key in keys_of(record.properties)
        )

    def accept(
        self, at: PhysicalOffset, read: Callable[[PhysicalOffset], StoredMessage | None]
    ) -> StoredMessage | None:
        """Return the record at an offset that an index names, if it matches and was not named before."""
        if at in self._seen:
            return None
        self._seen.add(at)
        record = read(at)
        return record if record is not None and self.matches(record) else None


WAITING_MAX: Final = 65_536
"""The largest number of messages that wait in memory; if there are more, they are read from the log."""
WRITTEN_AT_ONCE: Final = 4_096
STATE_VERSION: Final = 1


class IndexState(NamedTuple):
    """The saved state: the items of all records below `up_to` are in the files, whose state was `files`.

    `shape` is the shape with which the files are made.
    """

    up_to: PhysicalOffset
    files: object
    shape: Mapping[str, int]

    def pack(self) -> bytes:
        """Return the state as a row: JSON."""
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
"""Yields the records from one offset up to another. Raises OffsetOutOfRange, at once or later, if they have expired."""
ReadRecord = Callable[[PhysicalOffset], StoredMessage]
"""Reads one record. Raises OffsetOutOfRange, MessageGivenUp, StoreDamaged."""


class FoundMessages(NamedTuple):
    """The newest messages with a key, how far the index had got when it was queried, and how far it was to get.

    Messages in the `unread` files may be missing.
    """

    messages: list[StoredMessage]
    unread: list[Unread]
    indexed_up_to: PhysicalOffset
    handed_over: PhysicalOffset


class _Closed(Exception):
    """The index was closed during a repair."""


class MessageIndex:
    """Keeps one kind of index files up to date with the log, and searches them.

    `hand_over` belongs to the thread that dispatches. Everything else may run on any thread beside it.
    """

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
        """Begin with files that hold the items of all records below `up_to`; the log ends at `end`.

        `begin` returns the log's current min offset, `durable_up_to` the offset up to which the log is durable.
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
        """The offset below which the items of all records are in the files."""
        return self._written_up_to

    @property
    def file_count(self) -> int:
        return self._files.file_count

    # -- keeping up

    def hand_over(self, requests: Sequence[DispatchRequest], end: PhysicalOffset) -> None:
        """Take dispatched requests: all there are from the end of the last call's up to `end`."""
        with self._handing:
            if self._waiting_count > WAITING_MAX:
                self._waiting = []
                self._waiting_count = 0
            self._waiting.append(Portion(self._handed_over, requests, end))
            self._waiting_count += len(requests)
            self._handed_over = end

    def step(self) -> bool:
        """Write some of what was handed over; return whether more is left. Raises OSError, StoreDamaged.

        What an error prevented from being written is read from the log by later calls.
        """
        with self._lock:
            if self._closed or self._files.failure is not None:
                return False
            try:
                portion = self._next()
                if portion is None:
                    return False
                items = items_of(portion.requests, with_tags=self._files.with_tags).after(self._written_up_to)
                if len(items):
                    self._files.put(items)
            except BaseException:
                self._reading = None
                raise
            self._written_up_to = max(self._written_up_to, portion.end)
            return self._written_up_to < self._handed_over

    def _next(self) -> Portion | None:
        """Return the records that follow the written ones: from memory if it begins there, else from the log."""
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
                # segments expired: they need not be indexed any more
                self._written_up_to = self._begin()
                continue
            if portion is not None:
                return portion
            self._reading = None
            return Portion(self._written_up_to, (), self._reading_to)

    def _take(self) -> Portion | None:
        """Return the first records that wait in memory."""
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
        """Make the written items durable, and store where to resume after a crash. Raises OSError, kv.KvError.

        The stored position must not cover records that a power cut can remove. While the log is not durable up to
        there, it is saved by a later call.
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
        """Remove files of records that the log no longer has; return how many. Raises OSError."""
        with self._lock:
            return 0 if self._closed else self._files.expire(self._begin())

    def repair_one(self) -> bool:
        """Rebuild files that were found damaged from the log; return whether there were any.

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
        """Write and save all that was handed over; the log must be durable. Raises as `step` and `save`."""
        try:
            while self.step():
                pass
            self._to_save = None  # all is durable: an older state need not be saved
            self.save()
        finally:
            with self._lock:
                self._closed = True
            with self._repairing, self._lock:
                self._files.close()

    # -- asking

    def find(self, topic: str, key: str, *, begin_ms: int, end_ms: int, limit: int, read: ReadRecord) -> FoundMessages:
        """Return the newest messages of a topic with a key, stored in [begin_ms, end_ms].

        Messages handed over just now are found, too, unless the index lags behind the log. Raises StoreDamaged for a
        record, OSError for files that cannot be read, Unavailable after a failed flush.
        """
        self._catch_up()
        indexed_up_to = self._written_up_to
        answer = self._search(WantedMessages(topic, key, begin_ms, end_ms), limit, read)
        return FoundMessages(answer.found, answer.unread, indexed_up_to, self._handed_over)

    def find_ids(
        self,
        topic: str,
        ids: Sequence[str],
        *,
        waiting_in: Sequence[str],
        begin_ms: int,
        up_to: PhysicalOffset,
        read: ReadRecord,
    ) -> list[StoredMessage]:
        """Return a message for each of the ids that messages of a topic have, stored at `begin_ms` or later.

        Finds all messages below `up_to`, also those that wait in the topics `waiting_in` to go to the topic. Raises
        Unavailable if some may be missing: the index lags behind, or a file cannot be read. Raises StoreDamaged for a
        record, OSError.
        """
        self._catch_up()
        if self._written_up_to < up_to:
            raise Unavailable(
                f"the key index has got to offset {self._written_up_to} of the log, and {up_to} is needed"
            )
        found: list[StoredMessage] = []
        for message_id in ids:

            def has_id(record: StoredMessage, message_id: str = message_id) -> bool:
                properties = record.properties
                return properties.get(UNIQUE_KEY) == message_id and topic in (record.topic, properties.get(REAL_TOPIC))

            for name in (topic, *waiting_in):
                answer = self._search(WantedMessages(name, message_id, begin_ms, TIME_MAX_MS), 1, read, has_id)
                if answer.found:
                    found.append(answer.found[0])
                    break
                if answer.unread:
                    raise Unavailable(f"a file of the key index cannot be read: {answer.unread[0].name}")
        return found

    def _catch_up(self) -> None:
        """Write what was handed over, unless the index reads the log. Raises Unavailable after a failed flush."""
        if self._files.failure is not None:
            raise Unavailable(f"the key index is not usable until the next start: {self._files.failure}")
        with suppress(OSError, StoreDamaged):  # the thread that writes reports these; written items are found
            while self._reading is None and self.step():
                pass

    def _search(
        self,
        wanted: WantedMessages,
        limit: int,
        read: ReadRecord,
        is_wanted: Callable[[StoredMessage], bool] = lambda _record: True,
    ) -> Answer[StoredMessage]:
        def read_if_there(at: PhysicalOffset) -> StoredMessage | None:
            try:
                return read(at)
            except (OffsetOutOfRange, MessageGivenUp):
                return None

        def accept(at: PhysicalOffset) -> StoredMessage | None:
            record = wanted.accept(at, read_if_there)
            return record if record is not None and is_wanted(record) else None

        return self._files.find(
            wanted.text,
            begin_ms=wanted.begin_ms,
            end_ms=wanted.end_ms,
            limit=limit,
            accept=accept,
        )
