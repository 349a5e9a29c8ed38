"""Repeat deletions of queues that a crash has undone in RocksDB, but not in the files.

A deleted queue is removed from the files at once, from RocksDB only with its next flush. After a crash in between the
two disagree about messages that must not be visible any more. The files are right.
"""

from __future__ import annotations

import structlog

from quarry_mq.store.consumequeue import FileConsumeQueues, RocksConsumeQueues
from quarry_mq.store.consumequeue.files.layout import is_file_name
from quarry_mq.store.message import ConsumeQueueEntry
from quarry_mq.store.offsets import PhysicalOffset, QueueId, QueueOffset

log = structlog.get_logger(__name__)


def delete_gone_queues(files: FileConsumeQueues, rocks: RocksConsumeQueues, complete_up_to: PhysicalOffset) -> None:
    """Remove such queues from RocksDB. Below `complete_up_to` the files must hold all entries.

    Call it before recovery with the files' watermark: otherwise entries that recovery puts again would come to stand
    above the deleted ones. Call it again after recovery with the log's end: recovery may have put entries of a deleted
    queue again and then removed them.
    """
    gone = [
        queue
        for queue in list(rocks.queues())
        if is_file_name(queue.topic) and _is_deleted(files, rocks, queue, complete_up_to)
    ]
    if not gone:
        return
    # entries missing in the files must not come back with the next power cut, once RocksDB has removed them for good
    files.flush_entries()
    for queue in gone:
        rocks.restart_at(queue, QueueOffset(0))
        log.info("deleted before a crash, gone from RocksDB, too", topic=queue.topic, queue=queue.number)
    # before the files get entries of the queue again: after another crash they would no longer show the deletion
    rocks.flush()


def _is_deleted(
    files: FileConsumeQueues, rocks: RocksConsumeQueues, queue: QueueId, complete_up_to: PhysicalOffset
) -> bool:
    """Return whether the files lack all entries that RocksDB has.

    A queue that lacks only some of them is damaged, which is not reported here.
    """
    first = rocks.entries(queue, QueueOffset(0), 1)
    if not first:
        # perhaps all entries have expired, and only the next offset is left
        return rocks.next_offset(queue) > files.next_offset(queue)
    if first[0].physical_offset >= complete_up_to or not _is_missing(files, queue, first[0]):
        return False
    last = rocks.last_entry_below(queue, complete_up_to)
    return last is not None and _is_missing(files, queue, last)


def _is_missing(files: FileConsumeQueues, queue: QueueId, entry: ConsumeQueueEntry) -> bool:
    """Return whether the files have no entry at the entry's offset, or one from after the deletion."""
    found = files.entries(queue, entry.queue_offset, 1)
    is_there = bool(found) and found[0].queue_offset == entry.queue_offset
    return not is_there or found[0].physical_offset > entry.physical_offset
