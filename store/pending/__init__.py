"""Messages that are held back: in the log, and not yet where they are to go.

A delayed message waits for its time, a half message for the word of its producer. Which ones still wait is derived from
the log, as everything is, and kept in a database of its own.
"""

from store.pending.before import HeldBefore
from store.pending.changes import ReadRecord, due_of_request
from store.pending.messages import HeldMessages, reading
from store.pending.progress import progress_now
from store.pending.rows import FAMILY, CheckDue, DueMessage, HalfMessage, Resolution, open_held_engine

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
