"""Shows a store as tables for Spark: messages, units, queues, positions, index.

Public face of the package: other packages import from here.
"""

from __future__ import annotations

from pyspark.sql.types import StructType

from quarry_mq.pipeline.source.entries import EntryReader, QueueReader
from quarry_mq.pipeline.source.index import IndexReader
from quarry_mq.pipeline.source.messages import MessageReader, message_schema
from quarry_mq.pipeline.source.options import InvalidOption, ReadOptions, Table
from quarry_mq.pipeline.source.positions import PositionReader
from quarry_mq.pipeline.source.table import TableReader, chosen

__all__ = ["InvalidOption", "reader_of", "schema_of"]

_READERS: dict[Table, type[TableReader]] = {
    Table.MESSAGES: MessageReader,
    Table.ENTRIES: EntryReader,
    Table.QUEUES: QueueReader,
    Table.POSITIONS: PositionReader,
    Table.INDEX: IndexReader,
}


def schema_of(options: ReadOptions) -> StructType:
    """Return the schema of the requested columns, or of the table's default columns. Raises InvalidOption."""
    if options.table is Table.MESSAGES:
        return message_schema(options)
    types = _READERS[options.table].types
    return chosen(types, options.columns or types)


def reader_of(options: ReadOptions, schema: StructType) -> TableReader:
    """Return the reader of the table. Raises InvalidOption for a schema that does not fit the table."""
    return _READERS[options.table](options, schema)
