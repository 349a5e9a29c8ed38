"""Describe the store of a broker for `StorageService`: the log's files, when they expire, and the databases."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from datetime import datetime
from itertools import pairwise
from typing import Final, NamedTuple

from quarry_mq.kv import KvError
from quarry_mq.protocol.clock import Clock
from quarry_mq.server.errors import NoIndex
from quarry_mq.server.maintenance.key_index import KeyIndex
from quarry_mq.server.observability.metrics.instruments import EngineStats
from quarry_mq.server.tasks import TimeSlice, Worker
from quarry_mq.store.consumequeue import ConsumeQueueEntry
from quarry_mq.store.errors import BrokerError
from quarry_mq.store.fs import DiskSpace
from quarry_mq.store.layout.paths import segment_name
from quarry_mq.store.message import PhysicalOffset, QueueBounds, QueueId, QueueOffset
from quarry_mq.store.metadata import Topic
from quarry_mq.store.opening.open_store import OpenStore
from quarry_mq.store.retention import ExpirySettings

HOUR_MS = 3_600_000


def expires_at_ms(settings: ExpirySettings, newest_ms: int, now_ms: int) -> int:
    """Return the expiry time of a file whose newest record is of `newest_ms`. Hours are those of the local clock."""
    at_ms = max(newest_ms + settings.retention_ms, now_ms)
    if not settings.delete_when:
        return at_ms
    for _ in range(48):  # two days of hours, for clocks that are put forward
        try:
            local = datetime.fromtimestamp(at_ms / 1000)
        except (OverflowError, ValueError, OSError):  # the records' times may be any number
            return at_ms
        if local.hour in settings.delete_when:
            break
        at_ms += HOUR_MS - (local.minute * 60_000 + local.second * 1000 + local.microsecond // 1000)
    return at_ms


SHOWN_MAX: Final = 1_000
"""Files of the log that are shown; if there are more, the first and the last ones."""
TABLES: Final = ".table_bytes"


class SegmentView(NamedTuple):
    """A file of the log. `size`: bytes that are filled. `last_ms`: no record is newer. Unknown times are None."""

    name: str
    begin: PhysicalOffset
    size: int
    first_ms: int | None
    last_ms: int | None


class NextExpiry(NamedTuple):
    """The file that expires next by its age, where it ends, and the earliest time of its expiry."""

    name: str
    end: PhysicalOffset
    at_ms: int


class RocksStats(NamedTuple):
    """The statistics of a RocksDB column family. `family` is empty for those of the whole database."""

    database: str
    family: str
    stats: Mapping[str, int]


class StorageView(NamedTuple):
    """The storage of a broker. See `Storage` of storage.proto."""

    space: DiskSpace | None
    settings: ExpirySettings
    segments: list[SegmentView]
    segment_count: int
    log_begin: PhysicalOffset
    log_end: PhysicalOffset
    oldest_ms: int | None
    newest_ms: int | None
    expiry: NextExpiry | None
    parts: Mapping[str, int | None]
    families: list[RocksStats]


class SpanView(NamedTuple):
    """Describe one queue's messages. See `QueueSpan` of storage.proto."""

    queue: int
    bounds: QueueBounds
    first_ms: int | None
    last_ms: int | None
    expires_next: int | None


class StorageLook:
    """Describes the store. Lives on the event loop's thread; the disk is read on a thread of its own."""

    def __init__(
        self, store: OpenStore, index: KeyIndex, expiry_settings: Callable[[], ExpirySettings], clock: Clock
    ) -> None:
        self._store = store
        self._index = index
        self._expiry_settings = expiry_settings
        self._clock = clock
        self.worker: Final = Worker("looking")
        """The thread that reads and never writes."""

    async def stop(self) -> None:
        """Stop the thread. Nothing runs on it any more when this returns."""
        await self.worker.stop()

    async def storage(self) -> StorageView:
        """Describe the log, its expiry and the databases. Raises OSError, kv.KvError."""
        return await self.worker.run(self._look, await self._index_bytes())

    async def spans(self, topic: Topic, after: int, limit: int, time_slice: TimeSlice) -> tuple[list[SpanView], bool]:
        """Return at most `limit` queues with numbers above `behind`, and whether there are more. Raises kv.KvError."""
        messages = self._store.messages
        numbers = {*range(after + 1, min(topic.queue_count, after + limit + 2))}
        numbers.update(each.number for each in messages.ends(topic.name, after, limit + 1))
        chosen = sorted(numbers)[: limit + 1]
        expiry = await self.worker.run(self._next_expiry)
        spans = []
        for number in chosen[:limit]:
            await time_slice.pause()
            spans.append(self._span(QueueId(topic.name, number), None if expiry is None else expiry.end))
        return spans, len(chosen) > limit

    # -- the log

    def _look(self, index_bytes: int | None) -> StorageView:
        log, messages = self._store.expiry, self._store.messages
        bases = log.bases
        log_end = messages.reader.end
        shown = bases if len(bases) <= SHOWN_MAX else [*bases[: SHOWN_MAX // 2], *bases[-SHOWN_MAX // 2 :]]
        segments = [self._segment(base, log_end) for base in shown]
        families = list(self._families())
        tables = [stats["table_bytes"] for _, _, stats in families if "table_bytes" in stats]
        parts: dict[str, int | None] = {"RocksDB": sum(tables) if tables else None}
        if index_bytes is not None:
            parts["key index"] = index_bytes
        if self._store.queues.files is not None:
            parts["consume queues in files"] = None  # there may be a million files
        return StorageView(
            log.space(),
            self._expiry_settings(),
            segments,
            len(bases),
            bases[0] if bases else log_end,
            log_end,
            segments[0].first_ms if segments else None,
            messages.last_stored_ms or None,
            self._next_expiry(),
            parts,
            families,
        )

    def _segment(self, base: PhysicalOffset, log_end: PhysicalOffset) -> SegmentView:
        log = self._store.expiry
        end = PhysicalOffset(base + log.segment_size)
        after_ms = log.first_stored_ms(end)
        last_ms = self._store.messages.last_stored_ms or None if end >= log_end else after_ms
        size = max(0, min(end, log_end) - base)
        return SegmentView(segment_name(base), base, size, log.first_stored_ms(base), last_ms if size else None)

    def _next_expiry(self) -> NextExpiry | None:
        log = self._store.expiry
        for base, following in pairwise(log.bases[:2]):
            newest_ms = log.first_stored_ms(following)
            if newest_ms is not None:
                at_ms = expires_at_ms(self._expiry_settings(), newest_ms, self._clock.wall_ms())
                return NextExpiry(segment_name(base), following, at_ms)
        return None

    # -- beside the log

    async def _index_bytes(self) -> int | None:
        try:
            return sum(each.size_bytes for each in await self._index.files() if each.is_local)
        except NoIndex:
            return None

    def _families(self) -> Iterator[RocksStats]:
        store = self._store
        engines: dict[str, EngineStats] = {
            "queues": store.queues,
            "state": store.state_engine,
            "held": store.messages.pending,
        }
        for database, engine in engines.items():
            found: dict[str, dict[str, int]] = {}
            for name, value in engine.statistics().items():
                family, dot, stat = name.partition(".")
                found.setdefault(family if dot else "", {})[stat if dot else name] = value
            for family, stats in found.items():
                yield RocksStats(database, family, stats)

    # -- queues

    def _span(self, queue: QueueId, expiring_end: PhysicalOffset | None) -> SpanView:
        messages = self._store.messages
        bounds = messages.bounds(queue)
        first_ms = last_ms = None
        if bounds.minimum < bounds.maximum:
            first_ms = self._time_at(queue, bounds.minimum)
            last_ms = self._time_at(queue, QueueOffset(bounds.maximum - 1))
        expires_next = None
        if expiring_end is not None:
            expires_next = self._store.queues.store.unread_below(queue, bounds.minimum, expiring_end)
        return SpanView(queue.number, bounds, first_ms, last_ms, expires_next)

    def _time_at(self, queue: QueueId, offset: QueueOffset) -> int | None:
        found = self._store.messages.entries(queue, offset, 1)
        return self._time_of(found[0]) if found else None

    def _time_of(self, entry: ConsumeQueueEntry) -> int | None:
        if entry.store_timestamp_ms is not None:
            return entry.store_timestamp_ms
        try:
            return self._store.messages.read(entry).store_timestamp_ms
        except (BrokerError, KvError, OSError):
            return None
