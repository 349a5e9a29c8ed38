"""Expiry: old segments leave the log, by age or because the disk fills up (ADR 11).

`decide` says which, and does nothing; `LogExpiry` looks, lets the log begin later and removes the files;
`SegmentRemover` does the last without getting in the way of appends. `QueueExpiry` has consume queues follow (ADR 15).
"""

from quarry_mq.store.retention.log_expiry import LogExpiry
from quarry_mq.store.retention.queue_expiry import DueRound, QueueExpiry
from quarry_mq.store.retention.remover import SegmentRemover
from quarry_mq.store.retention.rules import (
    Candidate,
    Cause,
    ExpirySettings,
    FileSystem,
    Forced,
    Plan,
    Situation,
    decide,
    refusal,
)
from quarry_mq.store.retention.unread import Unread

__all__ = [
    "Candidate",
    "Cause",
    "DueRound",
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
