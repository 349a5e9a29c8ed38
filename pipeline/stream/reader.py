"""The source reads topics of live brokers as a stream.

A stream has each message exactly once, by Spark's own checkpoints. A batch of it is a range of offsets for each queue,
which Spark stores before anything of it is read. Reading it again gives the same messages; the broker keeps no state of
it.

How far a stream has read is the next offset of each queue. Spark keeps the offsets in its checkpoint, as `{"orders":
{"quarry/0": 1207, "quarry/1": 1198}}`, and takes two for equal when their texts are equal: so queues are written in
order.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Any, Final

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from quarry_mq.client.queues import Start
from quarry_mq.pipeline.source.options import InvalidOption
from quarry_mq.pipeline.stream.batch import read_ranges
from quarry_mq.pipeline.stream.brokers import lost
from quarry_mq.pipeline.stream.columns import check_live_schema
from quarry_mq.pipeline.stream.group_offsets import GroupOffsets
from quarry_mq.pipeline.stream.live import LiveQueues
from quarry_mq.pipeline.stream.offsets import Offsets, Queue, limited, to_json, waiting
from quarry_mq.pipeline.stream.source_options import SourceOptions
from quarry_mq.protocol.clock import Clock, SystemClock

LOOK_INTERVAL_S: Final = 0.2
"""Seconds between two calls for the end: while no messages come, Spark asks for it a hundred times a second."""
LOOK_PART: Final = 4
"""The pause after a call for the ends, as a multiple of the call's duration: thousands of queues take long."""


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Plans batches on the driver, and reads them in tasks."""

    def __init__(self, options: SourceOptions, schema: StructType, *, clock: Clock | None = None) -> None:
        """Check the schema. Raises InvalidOption for an unknown column."""
        check_live_schema(options, schema)
        self._options = options
        self._schema = schema
        self._clock = clock or SystemClock()
        self._look_again_s = float("-inf")
        self._begun_s = float("-inf")
        """Time at which the last batch began. The next one waits for enough messages until `delay_max_ms` later."""
        self._seen: Offsets = {}
        self._last: Offsets | None = None
        """The ends at which a query with Trigger.AvailableNow stops."""

    @cached_property
    def _live(self) -> LiveQueues:
        return LiveQueues(self._options)

    @cached_property
    def _group(self) -> GroupOffsets:
        return GroupOffsets(self._options, self._live.address, self._clock)

    # -- planning

    def initialOffset(self) -> dict[str, Any]:
        options = self._options
        return to_json(
            self._live.positions(options.start, self._live.find(), is_time_required=options.is_time_required)
        )

    def getDefaultReadLimit(self) -> ReadLimit:
        """Return the limits in the form that Spark knows. Only whether there are any decides: see `latestOffset`."""
        options = self._options
        if options.batch_max is not None:
            return ReadMaxRows(options.batch_max)
        if options.batch_bytes_max is not None:
            return ReadMaxBytes(options.batch_bytes_max)
        return ReadMinRows(options.batch_min) if options.batch_min else ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:
        self._last = self._look()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """Return the end of the next batch.

        Raises MessagesLost when a queue ends before its start, unless losses are ignored by option.
        """
        self.commit(start)  # Spark names the end of the last batch here before it calls `commit` for it
        begins = self._kept(start)
        ends = {**begins, **(self._look_now_and_then() if self._last is None else self._last)}
        for queue, begin in begins.items():
            if ends[queue] < begin:
                ends[queue] = self._ended_early(queue, begin)
        # Spark sets aside all limits for a query that is to read everything in one batch
        if not isinstance(limit, ReadAllAvailable):
            ends = self._limited(begins, ends)
        return to_json(ends)

    def reportLatestOffset(self) -> dict[str, Any] | None:
        return to_json(self._seen) if self._seen else None

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        return self._live.plan(self._kept(start), self._kept(end))

    def commit(self, end: dict[str, Any]) -> None:
        """Store the end as the group's offsets, if an option says so.

        Raises InvalidOption if the group may not be used, at the first call.
        """
        if self._options.commits_offsets:
            self._group.store(self._kept(end))

    def stop(self) -> None:
        for kept in ("_group", "_live"):
            if kept in self.__dict__:
                getattr(self, kept).close()

    def _kept(self, kept: dict[str, Any]) -> Offsets:
        """Return the offsets of a checkpoint. Raises InvalidOption if the query reads something else."""
        options = self._options
        for topic in kept:
            is_read = options.pattern.fullmatch(topic) if options.pattern else topic in options.topics
            if not is_read and topic not in options.assigned:
                raise InvalidOption(
                    f"option {options.subscription!r}: the checkpoint is of {topic}, which is not read now: "
                    "another query needs another checkpoint"
                )
        return self._live.parse(kept, options.subscription)

    def _limited(self, begins: Offsets, ends: Offsets) -> Offsets:
        """Return the end of a batch that keeps the limits of the options."""
        options, count = self._options, waiting(begins, ends)
        now_s = self._clock.monotonic_s()
        is_enough = self._last is not None or now_s - self._begun_s >= options.delay_max_ms / 1000
        if count < options.batch_min and not is_enough:
            return begins
        most = count if options.batch_max is None else options.batch_max
        if options.batch_bytes_max is not None and count:
            most = min(most, max(1, int(options.batch_bytes_max / self._live.body_bytes(begins, ends))))
        if count:
            self._begun_s = now_s
        return limited(begins, ends, most)

    def _look_now_and_then(self) -> Offsets:
        return self._seen if self._clock.monotonic_s() < self._look_again_s else self._look()

    def _look(self) -> Offsets:
        """Return the current ends of the queues."""
        begun_s = self._clock.monotonic_s()
        self._seen = self._live.offsets(self._live.find(), Start.LATEST)
        ended_s = self._clock.monotonic_s()
        self._look_again_s = ended_s + max(LOOK_INTERVAL_S, LOOK_PART * (ended_s - begun_s))
        return self._seen

    def _ended_early(self, queue: Queue, begin: int) -> int:
        """Return where to go on in a queue that seemed to end before the offset that was already reached."""
        [end] = self._live.offsets([queue], Start.LATEST).values()
        if end >= begin:
            return begin  # the ends were asked for before the query began there
        lost(
            self._options,
            f"{queue}: read up to offset {begin}, but it ends at {end}: the topic was created again, or the broker "
            "lost its last messages",
        )
        return end

    # -- reading

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read_ranges(partition, self._options, self._schema)
