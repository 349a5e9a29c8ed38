"""Copy all entries of a stopped store from one kind of queues into the other."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from typing import Final

from quarry_mq.protocol.clock import Progress, ReportProgress
from quarry_mq.store.commitlog import SegmentList
from quarry_mq.store.consumequeue import ColumnRequests, FileConsumeQueues, RocksConsumeQueues
from quarry_mq.store.consumequeue.files.layout import is_file_name
from quarry_mq.store.consumequeue.search import EntryReader, EntryWindow, first_at_least
from quarry_mq.store.fs import Disk
from quarry_mq.store.message import PhysicalOffset, QueueId
from quarry_mq.store.migration.backfill import PresentAssignment, PresentEntries
from quarry_mq.store.recovery.recovery import whole_runs

ENTRIES_PER_WINDOW: Final = 65_536
QUEUES_PER_FLUSH: Final = 10_000
"""Queues between two flushes: bounds the memory for files that are not durable yet."""
BYTES_PER_FLUSH: Final = 1 << 30


def files_to_rocksdb(
    disk: Disk, segments: SegmentList, files: FileConsumeQueues, rocks: RocksConsumeQueues, report: ReportProgress
) -> None:
    """Fill empty queues in RocksDB with the entries that the files hold of the log, at the files' offsets.

    The log is read once from end to end, since the files have no store times. Records without an entry in the files
    (deleted topics) are left out. Queues without a record in the log keep their next offset. Durable when it returns.
    Raises StoreDamaged, kv.KvError, OSError.
    """
    start, end = segments.minimum, files.dispatched_up_to() or segments.minimum
    flushed = start
    with closing(PresentEntries(disk, files)) as present_entries:
        for run in whole_runs(segments, start, end, PresentAssignment(present_entries)):
            assert isinstance(run.requests, ColumnRequests)
            entries = run.requests.entries
            entries = entries.select(present_entries.mask(entries)).compact()
            if len(entries):
                rocks.put_missing_entries(entries)
            report(Progress("bringing the queues into RocksDB", run.end - start, end - start))
            if run.end - flushed >= BYTES_PER_FLUSH:
                rocks.flush()
                flushed = run.end
    for queue in files.queues():
        next_offset = files.next_offset(queue)
        if rocks.next_offset(queue) == 0 and next_offset > 0:
            rocks.reserve(queue, next_offset)
    rocks.put([], end)
    rocks.flush()


def rocksdb_to_files(
    rocks: RocksConsumeQueues,
    files: FileConsumeQueues,
    minimum: PhysicalOffset,
    entries_estimate: int,
    report: ReportProgress,
) -> None:
    """Fill empty file queues with RocksDB's entries of the log, each at its offset, except `queues_left_out`.

    Durable when it returns. Raises kv.KvError, StoreDamaged.
    """
    reader = rocks.entry_reader()
    done = 0
    for number, queue in enumerate(reader.queues(), 1):
        if not is_file_name(queue.topic):
            continue
        for window in windows_of(reader, queue, minimum):
            files.put_window(queue, window)
            done += len(window)
            report(Progress("writing queue files", done, max(done, entries_estimate)))
        files.reserve(queue, rocks.next_offset(queue))
        if number % QUEUES_PER_FLUSH == 0:
            files.flush_entries()
    files.flush_entries()


def queues_left_out(rocks: RocksConsumeQueues) -> list[QueueId]:
    """Return the light queues whose names cannot be file names: they are in RocksDB alone, and removed with it."""
    return [queue for queue in rocks.entry_reader().queues() if not is_file_name(queue.topic)]


def windows_of(reader: EntryReader, queue: QueueId, minimum: PhysicalOffset) -> Iterator[EntryWindow]:
    """Yield the entries of a queue whose records lie at or above `minimum`."""
    entries = reader.open(queue)
    first = first_at_least(entries.entry_at_or_after, entries.begin, entries.maximum, minimum)
    if first is None:
        return
    for begin in range(first.queue_offset, entries.maximum, ENTRIES_PER_WINDOW):
        window = entries.window(begin, begin + ENTRIES_PER_WINDOW)
        yield window.select(window.physical_offset >= minimum)
