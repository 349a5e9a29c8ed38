"""The sink sends rows as messages to a live broker, at least once; a repetition sends the same ids again.

A row has its own id, or one that is made of its content and its position: query and batch, partition, place in the
partition. When a task or batch runs again, it sends the same ids if the same rows come to the same positions.
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
from quarry_mq.pipeline.stream.options import SinkOptions
from quarry_mq.pipeline.stream.outgoing import check_columns, messages_of
from quarry_mq.pipeline.stream.sender import Sender
from quarry_mq.protocol.clock import SystemClock

_QUERY: Final = "sql.streaming.queryId"
_BATCH: Final = "streaming.sql.batchId"
"""Local properties by which Spark tells a task the stream's query and batch."""


@dataclass(frozen=True)
class Sent(WriterCommitMessage):
    """The number of messages that one task sent."""

    messages: int


class BatchSink(DataSourceArrowWriter):
    """The sink of `df.write`."""

    def __init__(self, options: SinkOptions, schema: StructType, *, overwrite: bool) -> None:
        """Check the columns. Raises InvalidOption with the column's name."""
        _check(options, schema, overwrite=overwrite)
        self._options = options
        # made once, where the write is planned: all tasks and their repetitions have the same
        self._write = options.write_id or str(uuid.uuid4())

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        return _write(iterator, self._options, self._write, _task())


class StreamSink(DataSourceStreamArrowWriter):
    """The sink of `df.writeStream`."""

    def __init__(self, options: SinkOptions, schema: StructType, *, overwrite: bool) -> None:
        """Check the columns. Raises InvalidOption with the column's name."""
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
    client = options.connection.client()
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
