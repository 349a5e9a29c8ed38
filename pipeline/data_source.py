"""The data source `quarry` shows a store as Spark tables, and topics of live brokers as streams and sinks.

register(spark)
spark.read.format("quarry").option("path", STORE).option("table", "messages").load()
spark.readStream.format("quarry").option("endpoints", "127.0.0.1:8081").option("subscribe", "orders").load()
"""

from __future__ import annotations

import subprocess
import sys
from importlib.util import find_spec
from typing import Final

import pyspark
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)
from pyspark.sql.types import StructType

from quarry_mq.pipeline.source import reader_of, schema_of, stream_of
from quarry_mq.pipeline.source.options import InvalidOption, read_options

LIVE: Final = frozenset(
    {"endpoints", "nameservers", "subscribe", "subscribepattern", "assign", "kafka.bootstrap.servers"}
)
"""Options that only the source of live brokers has, in lower case."""
_NEEDED: Final = ("quarry_mq.pipeline", "numpy", "pyarrow")
"""Packages that the workers' Python must have."""
_ANSWER_TIMEOUT_S: Final = 30.0


class QuarryDataSource(DataSource):
    """The class that Spark registers as the format `quarry`. Its options are in docs/pipeline.md."""

    @classmethod
    def name(cls) -> str:
        return "quarry"

    # modules that talk to a broker are imported on first use: tables of stores need no gRPC

    def schema(self) -> StructType:
        if not self._is_live:
            return schema_of(read_options(self.options))
        from quarry_mq.pipeline.stream.columns import live_schema
        from quarry_mq.pipeline.stream.source_options import source_options

        return live_schema(source_options(self.options))

    def reader(self, schema: StructType) -> DataSourceReader:
        if not self._is_live:
            return reader_of(read_options(self.options), schema)
        from quarry_mq.pipeline.stream.batch import BatchReader
        from quarry_mq.pipeline.stream.source_options import Use, source_options

        return BatchReader(source_options(self.options, Use.BATCH), schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        if find_spec("pyspark.sql.streaming.datasource") is None:
            raise InvalidOption(
                f"readStream: it needs PySpark 4.3 or newer, and this is {pyspark.__version__}; use read"
            )
        if not self._is_live:
            return stream_of(read_options(self.options), schema)
        from quarry_mq.pipeline.stream.reader import StreamReader
        from quarry_mq.pipeline.stream.source_options import Use, source_options

        return StreamReader(source_options(self.options, Use.STREAM), schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:  # noqa: FBT001 - Spark's own
        from quarry_mq.pipeline.stream.options import sink_options
        from quarry_mq.pipeline.stream.sink.writer import BatchSink

        return BatchSink(sink_options(self.options, is_stream=False), schema, overwrite=overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: FBT001 - Spark's own
        from quarry_mq.pipeline.stream.options import sink_options
        from quarry_mq.pipeline.stream.sink.writer import StreamSink

        return StreamSink(sink_options(self.options, is_stream=True), schema, overwrite=overwrite)

    @property
    def _is_live(self) -> bool:
        """Tells that the options are those of a live broker, and not of a store."""
        return any(name.lower() in LIVE for name in self.options)


class WorkersUnusable(Exception):
    """The Python of Spark's workers cannot run the format. The text says what to set."""


def register(spark: SparkSession) -> None:
    """Register the format `quarry` with the session, and let Spark push its filters down to it.

    Raises WorkersUnusable.
    """
    _check_workers(spark)
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    spark.dataSource.register(QuarryDataSource)


def _check_workers(spark: SparkSession) -> None:
    """Raise WorkersUnusable unless the Python that Spark runs on this machine has the packages that it needs.

    Spark plans each read in such a Python, and its own error for a missing package does not name the Python.
    """
    try:
        python = spark.sparkContext.pythonExec
    except PySparkException:  # a session of Spark Connect: its Python is on another machine
        return
    looks = f"import importlib.util as u; print(*[each for each in {_NEEDED} if u.find_spec(each) is None])"
    try:
        told = subprocess.run(
            [python, "-c", looks], capture_output=True, text=True, timeout=_ANSWER_TIMEOUT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        problem = f"cannot be run ({error})"
    else:
        if told.returncode == 0 and not told.stdout.strip():
            return
        reason = told.stderr.strip().rpartition("\n")[2] or f"it lacks {told.stdout.strip()}"
        problem = f"cannot read the format quarry ({reason})"
    raise WorkersUnusable(
        f"Spark's workers run {python}, which {problem}: before the session begins, set the environment variable "
        f"PYSPARK_PYTHON, or spark.pyspark.python, to a Python with quarry-mq[pipeline], such as {sys.executable}"
    )
