"""Reads topics of live brokers as a batch, and what a task reads of a batch or a stream.

Spark before 4.3 can read batches, but not streams: see `reader`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from quarry_mq.pipeline.source.options import InvalidOption
from quarry_mq.pipeline.stream.columns import check_live_schema
from quarry_mq.pipeline.stream.live import LiveQueues, QueueRanges, brokers_of
from quarry_mq.pipeline.stream.source_options import SourceOptions


class BatchReader(DataSourceReader):
    """Reads the messages between two positions."""

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        """Check the schema. Raises InvalidOption for an unknown column."""
        check_live_schema(options, schema)
        self._options = options
        self._schema = schema

    def partitions(self) -> Sequence[InputPartition]:
        """Return what each task reads. Raises InvalidOption if a queue would end before its begin."""
        options = self._options
        with LiveQueues(options) as live:
            queues = live.find()
            start = live.positions(options.start, queues, is_time_required=options.is_time_required)
            end = live.positions(options.end, queues)
            for queue, begin in start.items():
                # two times may be in any order in a queue, and may have no message between them
                if end[queue] < begin and not (options.start.is_time or options.end.is_time):
                    raise InvalidOption(f"option {options.end.option!r}: {queue} begins at {begin}, after {end[queue]}")
            return live.plan(start, end)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read_ranges(partition, self._options, self._schema)


def read_ranges(partition: InputPartition, options: SourceOptions, schema: StructType) -> Iterator[pa.RecordBatch]:
    """Yield the messages of a partition as rows of the schema."""
    # Spark plans one task with an empty partition where there are no partitions
    if not isinstance(partition, QueueRanges):
        return
    with closing(brokers_of(options, partition.addresses)) as brokers:
        yield from brokers.batches(partition.ranges, schema)
