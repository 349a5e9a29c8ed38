"""Shows a store as tables for Spark: messages, units, queues, positions, index.

Public face of the package: other packages import from here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.types import StructType

from quarry_mq.pipeline.kafka_columns import KAFKA
from quarry_mq.pipeline.source.derived import EntryReader, IndexReader, PositionReader, QueueReader
from quarry_mq.pipeline.source.kafka import KafkaReader, kafka_schema
from quarry_mq.pipeline.source.messages import MessageReader, message_schema
from quarry_mq.pipeline.source.object_store import CopiedTableReader
from quarry_mq.pipeline.source.options import InvalidOption, ReadOptions, Table
from quarry_mq.pipeline.source.table import TableReader, chosen, types_of

if TYPE_CHECKING:
    from quarry_mq.pipeline.source.store_stream import StoreStreamReader

__all__ = ["InvalidOption", "reader_of", "schema_of", "stream_of"]

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
        return kafka_schema(options) if options.columns == (KAFKA,) else message_schema(options)
    types = types_of(_READERS[options.table].types, options.timestamps)
    return chosen(types, options.columns or types)


def reader_of(options: ReadOptions, schema: StructType) -> TableReader | CopiedTableReader:
    """Return the reader of the table. Raises InvalidOption for a schema that does not fit the table."""
    if options.table is Table.MESSAGES:
        return KafkaReader(options, schema) if options.columns == (KAFKA,) else MessageReader(options, schema)
    reader = _READERS[options.table](options, schema)
    return reader if options.url is None else CopiedTableReader(reader)


def stream_of(options: ReadOptions, schema: StructType) -> StoreStreamReader:
    """Return the reader of a store as a stream. Raises InvalidOption for what cannot be read so."""
    from quarry_mq.pipeline.source.store_stream import StoreStreamReader

    reader = reader_of(options, schema)
    if not isinstance(reader, MessageReader):
        raise InvalidOption(f"option 'table': only the table {Table.MESSAGES.value!r} can be read as a stream")
    if options.url is not None:
        raise InvalidOption("option 'path': a store in an object store cannot be read as a stream; read it with read")
    return StoreStreamReader(reader)
