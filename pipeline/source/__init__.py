"""The data source `quarry`: what a store holds as Spark tables, and topics of live brokers as streams and sinks.

    register(spark)
    spark.read.format("quarry").option("path", STORE).option("table", "messages").load()
    spark.readStream.format("quarry").option("endpoints", "127.0.0.1:8081").option("topic", "orders").load()

Public face of the package: other packages import from here.
"""

from __future__ import annotations

from pyspark.sql import SparkSession
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)
from pyspark.sql.types import StructType

from pipeline.source.index import IndexReader
from pipeline.source.messages import MessageReader, message_schema
from pipeline.source.options import InvalidOption, ReadOptions, Table, read_options
from pipeline.source.positions import PositionReader
from pipeline.source.queues import QueueReader
from pipeline.source.table import TableReader, chosen
from pipeline.source.units import UnitReader

__all__ = ["InvalidOption", "QuarryDataSource", "reader_of", "register", "schema_of"]


class QuarryDataSource(DataSource):
    """The entry that Spark knows. Options: docs/pipeline.md."""

    @classmethod
    def name(cls) -> str:
        return "quarry"

    def schema(self) -> StructType:
        if "endpoints" in self.options:
            from pipeline.stream.options import source_options
            from pipeline.stream.reader import stream_schema

            return stream_schema(source_options(self.options))
        return schema_of(read_options(self.options))

    def reader(self, schema: StructType) -> DataSourceReader:
        return reader_of(read_options(self.options), schema)

    # what talks to a broker is imported where it is asked for: tables of stores need no gRPC

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        from pipeline.stream.options import source_options
        from pipeline.stream.reader import StreamReader

        return StreamReader(source_options(self.options), schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:  # noqa: FBT001 - Spark's own
        from pipeline.stream.options import sink_options
        from pipeline.stream.writer import BatchSink

        return BatchSink(sink_options(self.options, is_stream=False), schema, overwrite=overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: FBT001
        from pipeline.stream.options import sink_options
        from pipeline.stream.writer import StreamSink

        return StreamSink(sink_options(self.options, is_stream=True), schema, overwrite=overwrite)


_READERS: dict[Table, type[TableReader]] = {
    Table.MESSAGES: MessageReader,
    Table.UNITS: UnitReader,
    Table.QUEUES: QueueReader,
    Table.POSITIONS: PositionReader,
    Table.INDEX: IndexReader,
}


def schema_of(options: ReadOptions) -> StructType:
    """The columns that were asked for, or those that come by themselves. Raises InvalidOption."""
    if options.table is Table.MESSAGES:
        return message_schema(options)
    types = _READERS[options.table].types
    return chosen(types, options.columns or types)


def reader_of(options: ReadOptions, schema: StructType) -> TableReader:
    """Raises InvalidOption for a schema that does not fit the table."""
    return _READERS[options.table](options, schema)


def register(spark: SparkSession) -> None:
    """Make the format `quarry` known to the session, and let Spark hand its filters down to it."""
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    spark.dataSource.register(QuarryDataSource)
