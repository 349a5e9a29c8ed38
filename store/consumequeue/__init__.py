"""Consume queues: the index of each (topic, queue) into the commit log.

Public face of the package: other packages import from here.
"""

from quarry_mq.store.consumequeue.double_write import DoubleWriteConsumeQueues
from quarry_mq.store.consumequeue.files.reader import FileConsumeQueueReader
from quarry_mq.store.consumequeue.files.store import FileConsumeQueues, entries_in_files
from quarry_mq.store.consumequeue.light_queues import LiteParentsStep
from quarry_mq.store.consumequeue.names import LastEntry, LightQueueStep, QueueEnd
from quarry_mq.store.consumequeue.protocol import ConsumeQueueStore
from quarry_mq.store.consumequeue.rocks.store import RocksConsumeQueues, open_consume_queue_engine
from quarry_mq.store.consumequeue.search import ColumnRequests, EntryColumns
from quarry_mq.store.message import ConsumeQueueEntry

__all__ = [
    "ColumnRequests",
    "ConsumeQueueEntry",
    "ConsumeQueueStore",
    "DoubleWriteConsumeQueues",
    "EntryColumns",
    "FileConsumeQueueReader",
    "FileConsumeQueues",
    "LastEntry",
    "LightQueueStep",
    "LiteParentsStep",
    "QueueEnd",
    "RocksConsumeQueues",
    "entries_in_files",
    "open_consume_queue_engine",
]
