"""Report how many queues of which kinds a store has, how many entries they hold, and what they take on disk.

For reports to people, not for scrapes: every queue is read once, a page at a time. In RocksDB that means reading its
bounds, some microseconds for each queue; in files it means reading the files.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from heapq import nlargest
from pathlib import Path
from typing import Final, NamedTuple

from quarry_mq.kv import Family, KeyRange, KeyValueEngine
from quarry_mq.protocol.names import DEAD_LETTER_PREFIX, RETRY_PREFIX, is_light_queue, is_system_topic
from quarry_mq.store.consumequeue import FileConsumeQueueReader
from quarry_mq.store.consumequeue.rocks_layout import (
    BOUND_SIZE,
    OFFSET_FAMILY,
    parse_bound,
    parse_bound_key,
)
from quarry_mq.store.errors import Unavailable
from quarry_mq.store.fs import Disk
from quarry_mq.store.message import PhysicalOffset, QueueId

ROWS_PER_SCAN: Final = 1_000


class QueueKind(Enum):
    """The kinds of queues, told apart by the names of their topics; the value is the kind's name in reports."""

    ORDINARY = "ordinary"
    RETRY = "retry"
    DEAD_LETTER = "dead_letter"
    SYSTEM = "system"
    LIGHT = "light"


class CountedQueue(NamedTuple):
    """A queue and the number of entries from its first to its last stored one; 0 once the log has no records of it."""

    queue: QueueId
    entries: int


class DiskUse(NamedTuple):
    """The number of files, the sum of their lengths, and the bytes of their blocks: less where files have holes."""

    files: int
    apparent_bytes: int
    allocated_bytes: int


@dataclass(slots=True)
class KindSummary:
    queues: int = 0
    empty: int = 0
    entries: int = 0


@dataclass(slots=True)
class QueueSummary:
    kinds: dict[QueueKind, KindSummary] = field(default_factory=lambda: {kind: KindSummary() for kind in QueueKind})
    largest: list[CountedQueue] = field(default_factory=list)
    """The queues with the most entries, the largest first."""
    disk: dict[str, DiskUse] = field(default_factory=dict)
    """Disk use of `file` and `rocksdb`, for each that exists."""
    stats: Mapping[str, int] = field(default_factory=dict)
    """Statistics of RocksDB, see `KeyValueEngine.statistics`."""


class SummarySource(NamedTuple):
    """The places where a store keeps its queues, and which of the two is read. `engine` None: RocksDB has none."""

    disk: Disk
    file_directory: Path
    rocksdb_directory: Path
    engine: KeyValueEngine | None
    reads_rocksdb: bool
    minimum: PhysicalOffset


def summarize_queues(
    source: SummarySource, *, largest_max: int, go_on: Callable[[], bool] = lambda: True
) -> QueueSummary:
    """Count the queues of a store. Any thread.

    `go_on` is called between two pages and may pause. When it returns False, Unavailable is raised.
    Raises kv.KvError, StoreUnusable, OSError.
    """
    summary = QueueSummary()
    if source.reads_rocksdb and source.engine is not None:
        pages = _counted_in_rocksdb(source.engine.family(OFFSET_FAMILY), source.minimum)
    else:
        pages = _counted_in_files(FileConsumeQueueReader(source.disk, source.file_directory), source.minimum)
    for page in pages:
        for each in page:
            kind = summary.kinds[kind_of(each.queue.topic)]
            kind.queues += 1
            kind.empty += not each.entries
            kind.entries += each.entries
        least = summary.largest[-1].entries if len(summary.largest) == largest_max > 0 else -1
        larger = [each for each in page if each.entries > least]
        summary.largest = nlargest(largest_max, [*summary.largest, *larger], key=lambda each: each.entries)
        if not go_on():
            raise Unavailable("the broker stops")
    if source.engine is not None:
        summary.disk["rocksdb"] = _disk_use(source.disk, [source.rocksdb_directory])
        summary.stats = source.engine.statistics()
    in_files = _disk_use(source.disk, _queue_directories(source.disk, source.file_directory))
    if in_files.files:
        summary.disk["file"] = in_files
    return summary


def kind_of(topic: str) -> QueueKind:
    if is_light_queue(topic):
        return QueueKind.LIGHT
    if topic.startswith(RETRY_PREFIX):
        return QueueKind.RETRY
    if topic.startswith(DEAD_LETTER_PREFIX):
        return QueueKind.DEAD_LETTER
    return QueueKind.SYSTEM if is_system_topic(topic) else QueueKind.ORDINARY


def _counted_in_rocksdb(bounds: Family, minimum: PhysicalOffset) -> Iterator[Sequence[CountedQueue]]:
    """Yield pages of queues without look-ups: in key order all max offsets of a topic come before its min offsets."""
    key: bytes | None = b""
    topic = ""
    counted: dict[int, CountedQueue] = {}
    while key is not None:
        rows = bounds.scan(KeyRange(key, None), limit=ROWS_PER_SCAN)
        page: list[CountedQueue] = []
        for row, value in rows:
            if len(value) != BOUND_SIZE:
                continue  # the checkpoint
            queue, is_maximum = parse_bound_key(row)
            if queue.topic != topic:
                page += counted.values()
                topic, counted = queue.topic, {}
            bound = parse_bound(value)
            if is_maximum:
                is_empty = bound.physical_offset < minimum
                counted[queue.number] = CountedQueue(queue, 0 if is_empty else bound.queue_offset + 1)
            elif queue.number in counted:
                before = counted[queue.number]
                counted[queue.number] = CountedQueue(queue, max(0, before.entries - bound.queue_offset))
        key = rows[-1][0] + b"\0" if len(rows) == ROWS_PER_SCAN else None
        yield page if key is not None else [*page, *counted.values()]


def _counted_in_files(files: FileConsumeQueueReader, minimum: PhysicalOffset) -> Iterator[Sequence[CountedQueue]]:
    for queue in files.queues():
        bounds = files.bounds(queue, minimum)
        yield (CountedQueue(queue, bounds.maximum - bounds.minimum),)


def _queue_directories(disk: Disk, directory: Path) -> Iterator[Path]:
    for topic in disk.list_directory(directory):
        if topic.is_directory:
            for queue in disk.list_directory(directory / topic.name):
                if queue.is_directory:
                    yield directory / topic.name / queue.name


def _disk_use(disk: Disk, directories: Sequence[Path] | Iterator[Path]) -> DiskUse:
    files = apparent = allocated = 0
    for directory in directories:
        for entry in disk.list_directory(directory):
            if not entry.is_directory:
                files += 1
                apparent += entry.size
                allocated += disk.allocated_bytes(directory / entry.name)
    return DiskUse(files, apparent, allocated)
