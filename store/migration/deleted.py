"""Deletions that a crash has taken back in RocksDB, but not in the files.

A queue that is deleted goes from the files at once, from RocksDB only with its next flush. A crash in between leaves
the two in disagreement, about messages that nobody is to see any more. The files are right.
"""

from __future__ import annotations

import structlog

from quarry_mq.store.consumequeue import FileConsumeQueues, RocksConsumeQueues
from quarry_mq.store.consumequeue.files.layout import is_file_name
from quarry_mq.store.message import ConsumeQueueEntry
from quarry_mq.store.offsets import PhysicalOffset, QueueId, QueueOffset

log = structlog.get_logger(__name__)


def forget_deleted(files: FileConsumeQueues, rocks: RocksConsumeQueues, complete_up_to: PhysicalOffset) -> None:
    """Take out of RocksDB what it has of such queues. Below `complete_up_to` the files hold all that there is.

    To be done before recovery, with the files' watermark: else entries that it puts again would come to stand above the
    deleted ones. And after it, with the log's end: what of a deleted queue it put again may have gone with the rest.
    """
    gone = [
        queue
        for queue in list(rocks.queues())
        if is_file_name(queue.topic) and _is_deleted(files, rocks, queue, complete_up_to)
    ]
    if not gone:
        return
    # what the files lack must not come back with the next power cut: RocksDB is about to forget it for good
    files.flush_entries()
    for queue in gone:
        rocks.begin_anew(queue, QueueOffset(0))
        log.info("deleted before a crash, gone from RocksDB, too", topic=queue.topic, queue=queue.number)
    # before the files get entries of the queue again: after another crash they would no longer tell
    rocks.flush()


def _is_deleted(
    files: FileConsumeQueues, rocks: RocksConsumeQueues, queue: QueueId, complete_up_to: PhysicalOffset
) -> bool:
    """Whether the files lack all that RocksDB has. A queue that lacks some of it is damaged, which is not told here."""
    first = rocks.entries(queue, QueueOffset(0), 1)
    if not first:
        # perhaps all of it has expired, and only the numbering is left
        return rocks.next_offset(queue) > files.next_offset(queue)
    if first[0].physical_offset >= complete_up_to or not _is_missing(files, queue, first[0]):
        return False
    last = rocks.last_entry_below(queue, complete_up_to)
    return last is not None and _is_missing(files, queue, last)


def _is_missing(files: FileConsumeQueues, queue: QueueId, entry: ConsumeQueueEntry) -> bool:
    """Whether the files have nothing in the place of the entry, or what came after the deletion."""
    found = files.entries(queue, entry.queue_offset, 1)
    is_there = bool(found) and found[0].queue_offset == entry.queue_offset
    return not is_there or found[0].physical_offset > entry.physical_offset
