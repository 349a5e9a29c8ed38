"""The data source `quarry`: what a store holds, as Spark tables.

    register(spark)
    spark.read.format("quarry").option("path", STORE).option("table", "messages").load()

Public face of the package: other packages import from here.
"""

from __future__ import annotations

from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader
from pyspark.sql.types import StructType

from pipeline.source.messages import MessageReader, schema_of
from pipeline.source.options import InvalidOption, read_options

__all__ = ["InvalidOption", "QuarryDataSource", "register"]


class QuarryDataSource(DataSource):
    """The entry that Spark knows. Options: docs/pipeline.md."""

    @classmethod
    def name(cls) -> str:
        return "quarry"

    def schema(self) -> StructType:
        return schema_of(read_options(self.options))

    def reader(self, schema: StructType) -> DataSourceReader:
        return MessageReader(read_options(self.options), schema)


def register(spark: SparkSession) -> None:
    """Make the format `quarry` known to the session, and let Spark hand its filters down to it."""
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    spark.dataSource.register(QuarryDataSource)
