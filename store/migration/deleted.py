"""Deletions that a crash has taken back in RocksDB, but not in the files.

A queue that is deleted goes from the files at once, from RocksDB only with its next flush. A crash in between leaves
the two in disagreement, about messages that nobody is to see any more. The files are right.
"""

from __future__ import annotations

import structlog

from store.consumequeue import FileConsumeQueues, RocksConsumeQueues
from store.consumequeue.file_store import is_file_name
from store.offsets import PhysicalOffset

log = structlog.get_logger(__name__)


def forget_deleted(files: FileConsumeQueues, rocks: RocksConsumeQueues, complete_up_to: PhysicalOffset) -> None:
    """Cut what RocksDB has beyond the ends of queues. Below `complete_up_to` the files hold all that there is.

    To be done before recovery, with the files' watermark: else entries that it puts again would come to stand above the
    deleted ones. And after it, with the log's end: what of a deleted queue it put again may have gone with the rest.
    """
    gone = []
    for queue in list(rocks.queues()):
        if not is_file_name(queue.topic):
            continue
        end = files.next_offset(queue)
        if rocks.next_offset(queue) > end:
            beyond = rocks.entries(queue, end, 1)
            if not beyond or beyond[0].physical_offset < complete_up_to:
                gone.append((queue, end))
    if not gone:
        return
    # what the files lack must not come back with the next power cut: RocksDB is about to forget it for good
    for queue, _ in gone:
        files.sync_names(queue)
    files.flush_entries()
    for queue, end in gone:
        rocks.begin_anew(queue, end)
        log.info("deleted before a crash, gone from RocksDB, too", topic=queue.topic, queue=queue.number)
    # before the files get entries of the queue again: after another crash their end would no longer tell
    rocks.flush()
