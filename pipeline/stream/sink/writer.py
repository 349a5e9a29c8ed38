"""The sink sends rows as messages to a live broker, at least once; a repetition sends the same ids again.

A row has its own id, or one that is made of its content and its position: query and batch, partition, place in the
partition. When a task or batch runs again, it sends the same ids if the same rows come to the same positions.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import islice
from threading import Event
from typing import Final

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from quarry_mq.pipeline.source.options import InvalidOption
from quarry_mq.pipeline.stream.options import SinkOptions
from quarry_mq.pipeline.stream.sink.outgoing import check_columns, messages_of
from quarry_mq.pipeline.stream.sink.sender import Sender
from quarry_mq.pipeline.stream.sink.sent_before import SentBefore
from quarry_mq.protocol.clock import SystemClock

_QUERY: Final = "sql.streaming.queryId"
_BATCH: Final = "streaming.sql.batchId"
_RUN: Final = "spark.jobGroup.id"
"""Local properties by which Spark tells a task the stream's query, batch and run."""
_RUNS: Final[dict[str, tuple[int, float]]] = {}
"""The first batch of each run that this process of Spark's has seen, and when, in seconds of the monotonic clock."""
KILLED_TASKS_S: Final = 3.0
"""Seconds that tasks of an earlier run may go on after it was stopped: Spark gives them two to end by themselves."""
MESSAGES_AT_ONCE: Final = 1_024


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
        task = _task()
        may_be_again = self._options.write_id is not None or task.attemptNumber() > 0
        return _write(iterator, self._options, self._write, task, may_be_again=may_be_again)


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
        may_be_again = self._options.deduplicates and _may_be_again(task, int(batch))
        return _write(iterator, self._options, f"{query}/{batch}", task, may_be_again=may_be_again)


def _check(options: SinkOptions, schema: StructType, *, overwrite: bool) -> None:
    if overwrite:
        raise InvalidOption("mode 'overwrite': messages can only be added, with the mode 'append'")
    check_columns(schema, options.topic)


def _task() -> TaskContext:
    task = TaskContext.get()
    if task is None:
        raise RuntimeError("rows are sent by tasks of Spark only")
    return task


def _write(
    batches: Iterator[pa.RecordBatch], options: SinkOptions, write: str, task: TaskContext, *, may_be_again: bool
) -> Sent:
    clock = SystemClock()
    client = options.connection.client()
    count = 0
    with ExitStack() as stack:
        before = stack.enter_context(SentBefore(options, client, clock)) if options.deduplicates else None
        sender = Sender(client, options.in_flight_max, unsent=None if before is None else before.unsent_now)
        stack.callback(sender.close)
        stack.callback(client.close)
        for batch in batches:
            messages = messages_of(
                batch,
                topic=options.topic,
                write=write,
                partition=task.partitionId(),
                first_row=count,
                now_ms=clock.wall_ms(),
            )
            # rows that a shuffle has brought may be sent again by a first attempt: Spark does not tell of which stage
            asks = before is not None and (may_be_again or "messageId" in batch.schema.names)
            while some := list(islice(messages, MESSAGES_AT_ONCE)):
                if before is not None and asks:
                    some = before.unsent(some)
                elif before is not None and not count:
                    # a broker that does not tell is an error now, and not when a task is repeated
                    before.unsent(some[:1])
                for message in some:
                    sender.add(message)
            count += batch.num_rows
        sender.finish()
    return Sent(count)


def _may_be_again(task: TaskContext, batch: int) -> bool:
    """Return whether messages of a stream's batch may have been sent: by an attempt, or by a run that was killed.

    A run begins with the batch that the run before it did not end. If this process sees the run for the first time, it
    takes the batch for the first one of the run, which only costs time.
    """
    clock, run = SystemClock(), task.getLocalProperty(_RUN)
    if run is None:
        return True
    first, since_s = _RUNS.setdefault(run, (batch, clock.monotonic_s()))
    if batch > first:
        return task.attemptNumber() > 0
    Event().wait(max(0.0, since_s + KILLED_TASKS_S - clock.monotonic_s()))
    return True
