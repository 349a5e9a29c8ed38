"""Messages that are held back: in the log, and not yet where they are to go.

A delayed message waits for its time, a half message for the word of its producer. Which ones still wait is derived from
the log, as everything is, and kept in a database of its own.
"""

from quarry_mq.store.pending.before import HeldBefore
from quarry_mq.store.pending.changes import ReadRecord, due_of_request
from quarry_mq.store.pending.messages import HeldMessages, reading
from quarry_mq.store.pending.progress import progress_now
from quarry_mq.store.pending.rows import FAMILY, CheckDue, DueMessage, HalfMessage, Resolution, open_held_engine

__all__ = [
    "FAMILY",
    "CheckDue",
    "DueMessage",
    "HalfMessage",
    "HeldBefore",
    "HeldMessages",
    "ReadRecord",
    "Resolution",
    "due_of_request",
    "open_held_engine",
    "progress_now",
    "reading",
]
