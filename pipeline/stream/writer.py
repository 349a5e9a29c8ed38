"""The sink: rows become messages of a live broker, at least once, each with an id that a repetition has again.

The id is the row's own, or made of what the row says and where it stands: of which query and batch, in which
partition, at which place. A task that is run again, or a batch, sends the same ids where the same rows come to the
same places.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from quarry_mq.pipeline.source.options import InvalidOption
from quarry_mq.pipeline.stream.client import BrokerClient
from quarry_mq.pipeline.stream.options import SinkOptions
from quarry_mq.pipeline.stream.outgoing import check_columns, messages_of
from quarry_mq.pipeline.stream.sender import Sender
from quarry_mq.store.clock import SystemClock

_QUERY: Final = "sql.streaming.queryId"
_BATCH: Final = "streaming.sql.batchId"
"""What Spark tells the tasks of a stream's batch."""


@dataclass(frozen=True)
class Sent(WriterCommitMessage):
    """What one task sent."""

    messages: int


class BatchSink(DataSourceArrowWriter):
    """`df.write`."""

    def __init__(self, options: SinkOptions, schema: StructType, *, overwrite: bool) -> None:
        """Raises InvalidOption naming the column."""
        _check(options, schema, overwrite=overwrite)
        self._options = options
        # made once, where the write is planned: all tasks and their repetitions have the same
        self._write = options.write_id or str(uuid.uuid4())

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        return _write(iterator, self._options, self._write, _task())


class StreamSink(DataSourceStreamArrowWriter):
    """`df.writeStream`."""

    def __init__(self, options: SinkOptions, schema: StructType, *, overwrite: bool) -> None:
        """Raises InvalidOption naming the column."""
        _check(options, schema, overwrite=overwrite)
        self._options = options

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        task = _task()
        query, batch = task.getLocalProperty(_QUERY), task.getLocalProperty(_BATCH)
        if query is None or batch is None:
            raise RuntimeError("Spark does not say of which batch this task is")
        return _write(iterator, self._options, f"{query}/{batch}", task)


def _check(options: SinkOptions, schema: StructType, *, overwrite: bool) -> None:
    if overwrite:
        raise InvalidOption("mode 'overwrite': messages can only be added, with the mode 'append'")
    check_columns(schema, options.topic)


def _task() -> TaskContext:
    task = TaskContext.get()
    if task is None:
        raise RuntimeError("rows are sent by tasks of Spark only")
    return task


def _write(batches: Iterator[pa.RecordBatch], options: SinkOptions, write: str, task: TaskContext) -> Sent:
    clock = SystemClock()
    client = BrokerClient(options.connection)
    sender = Sender(client, options.in_flight_max)
    count = 0
    try:
        for batch in batches:
            for message in messages_of(
                batch,
                topic=options.topic,
                write=write,
                partition=task.partitionId(),
                first_row=count,
                now_ms=clock.wall_ms(),
            ):
                sender.add(message)
            count += batch.num_rows
        sender.finish()
    finally:
        client.close()
        sender.close()
    return Sent(count)
