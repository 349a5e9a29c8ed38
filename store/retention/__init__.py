"""The package removes old segments from the log, by age or because the disk fills up (ADR 11).

`decide` chooses the segments and changes nothing; `LogExpiry` gathers the facts, moves the log's beginning and removes
the files; `SegmentRemover` removes files without blocking appends. `QueueExpiry` cleans up consume queues accordingly
(ADR 15).
"""

from quarry_mq.store.retention.log_expiry import LogExpiry
from quarry_mq.store.retention.queue_expiry import DueSweep, QueueExpiry
from quarry_mq.store.retention.remover import SegmentRemover
from quarry_mq.store.retention.rules import (
    Candidate,
    Cause,
    ExpirySettings,
    FileSystem,
    Forced,
    Plan,
    Situation,
    Unread,
    decide,
    refusal,
)

__all__ = [
    "Candidate",
    "Cause",
    "DueSweep",
    "ExpirySettings",
    "FileSystem",
    "Forced",
    "LogExpiry",
    "Plan",
    "QueueExpiry",
    "SegmentRemover",
    "Situation",
    "Unread",
    "decide",
    "refusal",
]
