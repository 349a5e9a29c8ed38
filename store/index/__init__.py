"""Finding messages by their keys. Derived from the log, like queues (docs/formats/key-index.md).

Public face of the package: other packages import from here.
"""

from store.index.indexes import NO_INDEXES, KeyIndexes
from store.index.key_files import Answer, Unread
from store.index.message_index import FoundMessages, IndexState, MessageIndex
from store.index.wanted import TIME_MAX_MS

__all__ = [
    "NO_INDEXES",
    "TIME_MAX_MS",
    "Answer",
    "FoundMessages",
    "IndexState",
    "KeyIndexes",
    "MessageIndex",
    "Unread",
]
