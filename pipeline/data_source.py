"""The data source `quarry`: what a store holds as Spark tables, and topics of live brokers as streams and sinks.

register(spark)
spark.read.format("quarry").option("path", STORE).option("table", "messages").load()
spark.readStream.format("quarry").option("endpoints", "127.0.0.1:8081").option("topic", "orders").load()
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

from quarry_mq.pipeline.source import reader_of, schema_of
from quarry_mq.pipeline.source.options import read_options


class QuarryDataSource(DataSource):
    """The entry that Spark knows. Options: docs/pipeline.md."""

    @classmethod
    def name(cls) -> str:
        return "quarry"

    def schema(self) -> StructType:
        if "endpoints" in self.options:
            from quarry_mq.pipeline.stream.options import source_options
            from quarry_mq.pipeline.stream.reader import stream_schema

            return stream_schema(source_options(self.options))
        return schema_of(read_options(self.options))

    def reader(self, schema: StructType) -> DataSourceReader:
        return reader_of(read_options(self.options), schema)

    # what talks to a broker is imported where it is asked for: tables of stores need no gRPC

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        from quarry_mq.pipeline.stream.options import source_options
        from quarry_mq.pipeline.stream.reader import StreamReader

        return StreamReader(source_options(self.options), schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:  # noqa: FBT001 - Spark's own
        from quarry_mq.pipeline.stream.options import sink_options
        from quarry_mq.pipeline.stream.writer import BatchSink

        return BatchSink(sink_options(self.options, is_stream=False), schema, overwrite=overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: FBT001
        from quarry_mq.pipeline.stream.options import sink_options
        from quarry_mq.pipeline.stream.writer import StreamSink

        return StreamSink(sink_options(self.options, is_stream=True), schema, overwrite=overwrite)


def register(spark: SparkSession) -> None:
    """Make the format `quarry` known to the session, and let Spark hand its filters down to it."""
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    spark.dataSource.register(QuarryDataSource)
