"""Consume queues: the index of each (topic, queue) into the commit log.

Public face of the package: other packages import from here.
"""

from store.consumequeue.columns import ColumnRequests, UnitColumns
from store.consumequeue.double_write import DoubleWriteConsumeQueues
from store.consumequeue.files.reader import FileConsumeQueueReader
from store.consumequeue.files.store import FileConsumeQueues, units_in_files
from store.consumequeue.light_queues import LiteParentsStep
from store.consumequeue.names import LastEntry, LightQueueStep, QueueEnd
from store.consumequeue.protocol import ConsumeQueueStore
from store.consumequeue.rocks.engine import open_consume_queue_engine
from store.consumequeue.rocks.store import RocksConsumeQueues
from store.message import ConsumeQueueEntry

__all__ = [
    "ColumnRequests",
    "ConsumeQueueEntry",
    "ConsumeQueueStore",
    "DoubleWriteConsumeQueues",
    "FileConsumeQueueReader",
    "FileConsumeQueues",
    "LastEntry",
    "LightQueueStep",
    "LiteParentsStep",
    "QueueEnd",
    "RocksConsumeQueues",
    "UnitColumns",
    "open_consume_queue_engine",
    "units_in_files",
]
