"""The data source `quarry` shows a store as Spark tables, and topics of live brokers as streams and sinks.

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
    """The class that Spark registers as the format `quarry`. Its options are in docs/pipeline.md."""

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

    # modules that talk to a broker are imported on first use: tables of stores need no gRPC

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        from quarry_mq.pipeline.stream.options import source_options
        from quarry_mq.pipeline.stream.reader import StreamReader

        return StreamReader(source_options(self.options), schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:  # noqa: FBT001 - Spark's own
        from quarry_mq.pipeline.stream.options import sink_options
        from quarry_mq.pipeline.stream.writer import BatchSink

        return BatchSink(sink_options(self.options, is_stream=False), schema, overwrite=overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: FBT001 - Spark's own
        from quarry_mq.pipeline.stream.options import sink_options
        from quarry_mq.pipeline.stream.writer import StreamSink

        return StreamSink(sink_options(self.options, is_stream=True), schema, overwrite=overwrite)


def register(spark: SparkSession) -> None:
    """Register the format `quarry` with the session, and let Spark push its filters down to it."""
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    spark.dataSource.register(QuarryDataSource)
