"""Deletions that a crash has taken back in RocksDB, but not in the files.

A queue that is deleted goes from the files at once, from RocksDB only with its next flush. A crash in between leaves
the two in disagreement, about messages that nobody is to see any more. The files are right.
"""

from __future__ import annotations

from typing import Final

import structlog

from store.consumequeue import FileConsumeQueues, RocksConsumeQueues
from store.consumequeue.file_store import is_file_name
from store.offsets import PhysicalOffset, QueueId, QueueOffset

log = structlog.get_logger(__name__)

BEGIN: Final = QueueOffset(0)


def finish_deletions(files: FileConsumeQueues, rocks: RocksConsumeQueues, complete_up_to: PhysicalOffset) -> None:
    """Remove queues of which RocksDB has entries that the files lack, though they are complete below an offset.

    To be done before recovery, with the files' watermark: else entries that it puts again would come to stand above the
    deleted ones. A deletion that was cut short half way through the files of a queue is gone through with, too.
    """
    gone = [
        queue
        for queue in list(rocks.queues())
        if is_file_name(queue.topic) and _was_deleted(files, rocks, queue, complete_up_to)
    ]
    if gone:
        for queue in gone:
            files.begin_anew(queue, BEGIN)
            files.sync_names(queue)
        # nothing of them may come back with the next power cut: RocksDB is about to forget them for good
        files.flush_entries()
        _cut(rocks, [(queue, BEGIN) for queue in gone])


def forget_deleted(files: FileConsumeQueues, rocks: RocksConsumeQueues) -> None:
    """Let no queue go on further in RocksDB than in the files.

    To be done after recovery: what it has put again of a deleted queue may have gone with the end of the log.
    """
    ahead = []
    for queue in list(rocks.queues()):
        if is_file_name(queue.topic):
            end = files.next_offset(queue)
            if rocks.next_offset(queue) > end:
                ahead.append((queue, end))
    if ahead:
        _cut(rocks, ahead)


def _was_deleted(
    files: FileConsumeQueues, rocks: RocksConsumeQueues, queue: QueueId, complete_up_to: PhysicalOffset
) -> bool:
    if _last(files, queue) == _last(rocks, queue):
        return False  # the usual case, told without a search
    stored = rocks.last_entry_below(queue, complete_up_to)
    if stored is None:
        return False
    held = files.entries(queue, stored.queue_offset, 1)
    return not held or held[0][:2] != stored[:2]


def _last(queues: FileConsumeQueues | RocksConsumeQueues, queue: QueueId) -> tuple[int, int | None]:
    """The next offset, and where the record before it lies."""
    following = queues.next_offset(queue)
    found = queues.entries(queue, QueueOffset(max(0, following - 1)), 1)
    return following, found[0].physical_offset if found else None


def _cut(rocks: RocksConsumeQueues, ends: list[tuple[QueueId, QueueOffset]]) -> None:
    for queue, end in ends:
        rocks.begin_anew(queue, end)
        log.info("deleted before a crash, gone from RocksDB, too", topic=queue.topic, queue=queue.number)
    # before the files get entries of the queue again: after another crash they would no longer tell
    rocks.flush()
