"""Reads the log of a store as a stream. The position of a query is a physical offset, which Spark keeps.

A batch is a range of the log that begins and ends at records, so a batch that is read again has the same messages.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from typing import Any, Final

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxBytes, SupportsTriggerAvailableNow

from quarry_mq.pipeline.source.log_splits import LogExtent, open_segments, plan_splits, readable_range
from quarry_mq.pipeline.source.messages import MessageReader
from quarry_mq.protocol.clock import Clock, SystemClock
from quarry_mq.store.errors import StoreUnusable
from quarry_mq.store.fs import PosixDisk
from quarry_mq.store.message import PhysicalOffset
from quarry_mq.store.scan import first_record

LOOK_INTERVAL_S: Final = 1.0
"""Seconds between two looks at the log's end: a broker says once a second how far its log is durable."""
POSITION: Final = "phyOffset"


class StoreStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Plans batches on the driver, and reads them in tasks as a query of the table `messages` does."""

    def __init__(self, reader: MessageReader, *, clock: Clock | None = None) -> None:
        self._reader = reader
        self._options = reader.options
        self._clock = clock or SystemClock()
        self._look_again_s = float("-inf")
        self._end = PhysicalOffset(0)
        self._last: PhysicalOffset | None = None
        """The end at which a query with Trigger.AvailableNow stops."""

    def initialOffset(self) -> dict[str, Any]:
        begin, _ = self._readable()
        return {POSITION: begin}

    def getDefaultReadLimit(self) -> ReadLimit:
        bytes_max = self._options.batch_bytes_max
        return ReadAllAvailable() if bytes_max is None else ReadMaxBytes(bytes_max)

    def prepareForTriggerAvailableNow(self) -> None:
        _, self._last = self._readable()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """Return the end of the next batch. Raises StoreUnusable if the log ends before its start."""
        begin, end = PhysicalOffset(start[POSITION]), self._last
        if end is None:
            if self._clock.monotonic_s() >= self._look_again_s:
                _, self._end = self._readable()
                self._look_again_s = self._clock.monotonic_s() + LOOK_INTERVAL_S
            end = self._end
        if end < begin:
            raise StoreUnusable(
                self._options.path,
                f"the query has read up to offset {begin}, but the log ends at {end}: it is another store, or the "
                "broker lost its last messages; begin with a new checkpoint",
            )
        if isinstance(limit, ReadMaxBytes) and end - begin > limit.max_bytes:
            end = min(end, self._record_after(PhysicalOffset(begin + limit.max_bytes)))
        return {POSITION: end}

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Return the splits of the batch. Raises StoreUnusable if a part of it has expired."""
        begin = PhysicalOffset(start[POSITION])
        with closing(open_segments(PosixDisk(), self._options.path)) as segments:
            if begin < segments.minimum:
                raise StoreUnusable(
                    self._options.path,
                    f"messages of the offsets [{begin}, {segments.minimum}) expired before the query read them; "
                    "begin with a new checkpoint",
                )
            extent = LogExtent(begin, PhysicalOffset(end[POSITION]), None)
            splits = plan_splits(segments, extent, self._options.split_bytes)
        return [replace(split, begin=max(begin, split.begin)) for split in splits if split.end > begin]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return self._reader.read(partition)

    def _readable(self) -> tuple[PhysicalOffset, PhysicalOffset]:
        return readable_range(PosixDisk(), self._options.path, self._options.split_bytes)

    def _record_after(self, at: PhysicalOffset) -> PhysicalOffset:
        """Return where the first record from `at` on begins: if its segment has none, the next segment."""
        with closing(open_segments(PosixDisk(), self._options.path)) as segments:
            return first_record(segments, at) or PhysicalOffset(segments.base_of(at) + segments.segment_size)
