"""The tables of what a store derives from its log and from calls of clients: units, queues, positions, index.

Public face of the package: other packages import from here.
"""

from quarry_mq.pipeline.source.derived.entries import EntryReader, QueueReader
from quarry_mq.pipeline.source.derived.index import IndexReader
from quarry_mq.pipeline.source.derived.positions import PositionReader

__all__ = ["EntryReader", "IndexReader", "PositionReader", "QueueReader"]
