"""Find messages by their keys. Key indexes are derived from the log, like queues (docs/formats/key-index.md).

Public face of the package: other packages import from here.
"""

from quarry_mq.store.index.indexes import NO_INDEXES, KeyIndexes
from quarry_mq.store.index.key_files import Answer, Unread
from quarry_mq.store.index.message_index import TIME_MAX_MS, FoundMessages, IndexState, MessageIndex

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
