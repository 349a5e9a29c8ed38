"""The commit log holds all messages in arrival order, in mapped segment files (docs/formats/store-directory.md).

`SegmentList` manages the files, `CommitLogWriter` appends, `CommitLogFlusher` makes durable, `CommitLogReader` reads,
`cut` ends a log after its last good record.
"""

from quarry_mq.store.commitlog.cut import CutReport, bytes_after, cut, end_of_bytes, keep
from quarry_mq.store.commitlog.flush import BegunFlush, CommitLogFlusher
from quarry_mq.store.commitlog.reader import CommitLogReader
from quarry_mq.store.commitlog.receiver import CommitLogReceiver
from quarry_mq.store.commitlog.segments import KeptSize, SegmentList
from quarry_mq.store.commitlog.writer import CommitLogWriter, Poison

__all__ = [
    "BegunFlush",
    "CommitLogFlusher",
    "CommitLogReader",
    "CommitLogReceiver",
    "CommitLogWriter",
    "CutReport",
    "KeptSize",
    "Poison",
    "SegmentList",
    "bytes_after",
    "cut",
    "end_of_bytes",
    "keep",
]
