"""Pending messages are in the log, but not yet in the queue that they are meant for.

A delayed message waits for its time, a half message for its producer to commit or roll back. Which messages are still
pending is derived from the log and kept in a separate database.
"""

from quarry_mq.store.pending.messages import (
    HALVES,
    LEVELS,
    TIMERS,
    PendingBefore,
    PendingMessages,
    ReadRecord,
    due_of_request,
    progress_now,
    reading,
    slot_before,
)
from quarry_mq.store.pending.rows import FAMILY, CheckDue, DueMessage, HalfMessage, Resolution, open_pending_engine

__all__ = [
    "FAMILY",
    "HALVES",
    "LEVELS",
    "TIMERS",
    "CheckDue",
    "DueMessage",
    "HalfMessage",
    "PendingBefore",
    "PendingMessages",
    "ReadRecord",
    "Resolution",
    "due_of_request",
    "open_pending_engine",
    "progress_now",
    "reading",
    "slot_before",
]
