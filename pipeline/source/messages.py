"""The table `messages` has every record of the commit log, in log order within each partition."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import ClassVar, Final

import numpy as np
import pyarrow as pa
from pyspark.sql.datasource import Filter, InputPartition
from pyspark.sql.types import StringType, StructType

from quarry_mq.pipeline.source.conditions import bounds_of, names_in
from quarry_mq.pipeline.source.log_splits import (
    Damage,
    LogSplit,
    log_extent,
    open_segment,
    open_segments,
    plan_splits,
    read_split,
    store_time_at,
    store_time_of_segment,
)
from quarry_mq.pipeline.source.message_columns import COLUMNS, MessageRows
from quarry_mq.pipeline.source.object_store import WHOLE_STORE_SPLIT_BYTES, root_with_end, root_with_segment
from quarry_mq.pipeline.source.options import DamageMode, InvalidOption, ReadOptions
from quarry_mq.pipeline.source.table import ArrowRows, Rows, TableReader, Types, chosen, types_of
from quarry_mq.pipeline.source.times import arrow_schema, is_calendar_time
from quarry_mq.store.commitlog import SegmentList
from quarry_mq.store.errors import OffsetOutOfRange, StoreDamaged, StoreUnusable
from quarry_mq.store.fs import PosixDisk
from quarry_mq.store.message import PhysicalOffset
from quarry_mq.store.scan import RecordBatch

BODY: Final = "body"
DAMAGE: Final = "damage"
"""Column with `mode=quarantine`: what is wrong with the `storeSize` bytes from `phyOffset` on; null for a message."""

TYPES: Final[Types] = {name: column.type for name, column in COLUMNS.items()}
QUARANTINE_TYPES: Final[Types] = {**TYPES, DAMAGE: StringType()}
_SIZE_MAX: Final = 2**31 - 1
_PROBES_AT_ONCE: Final = 16
"""Segments whose first record the driver reads at the same time. Most of this is waiting for the disk."""


def message_schema(options: ReadOptions) -> StructType:
    """Return the schema of the requested columns, or of all but the body if none were requested.

    Raises InvalidOption.
    """
    names = options.columns or tuple(name for name in COLUMNS if name != BODY)
    if options.mode is DamageMode.FAIL:
        return chosen(types_of(TYPES, options.timestamps), names)
    return chosen(types_of(QUARANTINE_TYPES, options.timestamps), [*(name for name in names if name != DAMAGE), DAMAGE])


class MessageReader(TableReader):
    """Reads the commit log."""

    types: ClassVar[Types] = QUARANTINE_TYPES
    time_column: ClassVar[str] = "storeTimestamp"

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        super().__init__(options, schema)
        if (options.mode is DamageMode.QUARANTINE) != (DAMAGE in schema.fieldNames()):
            raise InvalidOption(f"schema: the column {DAMAGE!r} belongs to mode=quarantine, and that to it")

    def applies(self, condition: Filter) -> bool:
        # a damaged place is no message: a filter would leave it out
        return self.options.mode is DamageMode.FAIL and super().applies(condition)

    def partitions(self) -> Sequence[InputPartition]:
        disk, options = PosixDisk(), self.options
        split_bytes = options.split_bytes if options.url is None else WHOLE_STORE_SPLIT_BYTES
        with root_with_end(options) as root, closing(open_segments(disk, root)) as segments:
            extent = log_extent(disk, root, segments)
            return self._in_time(segments, self._in_place(plan_splits(segments, extent, split_bytes)))

    def _in_place(self, splits: list[LogSplit]) -> list[LogSplit]:
        """Return the splits that may hold records in the requested range of physical offsets."""
        low, high = bounds_of("phyOffset", self.conditions)
        return [split for split in splits if low < split.end and split.begin <= high]

    def _in_time(self, segments: SegmentList, splits: list[LogSplit]) -> list[LogSplit]:
        """Return the splits of the segments that may hold records in the requested range of store times."""
        low, high = bounds_of(self.time_column, self.conditions)
        if not splits or self.time_column not in map(names_in, self.conditions):
            return splits
        bases = list(dict.fromkeys(split.segment_begin for split in splits))
        with ThreadPoolExecutor(_PROBES_AT_ONCE) as executor:
            begins = list(executor.map(partial(store_time_of_segment, segments), bases))
        kept = {
            base
            for base, begin_ms, next_ms in zip(bases, begins, [*begins[1:], None], strict=True)
            if self._may_hold(begin_ms, next_ms, low, high)
        }
        return [split for split in splits if split.segment_begin in kept]

    def _may_hold(self, first_ms: int | None, next_ms: int | None, low: int, high: int) -> bool:
        """Return whether records stored between these times may have a store time from `low` to `high`."""
        first_ms, next_ms, margin_ms = _plausible(first_ms), _plausible(next_ms), self.options.clock_margin_ms
        begins_late = first_ms is not None and first_ms > high + margin_ms
        ends_early = next_ms is not None and next_ms < low - margin_ms
        return not begins_late and not ends_early

    def rows(self, partition: InputPartition) -> Iterator[Rows]:
        assert isinstance(partition, LogSplit)
        try:
            with (
                root_with_segment(self.options, partition) as root,
                closing(open_segment(PosixDisk(), root, partition)) as segments,
            ):
                if self._is_out_of_time(segments, partition):
                    return
                for found in read_split(segments, partition, check_crc=self.options.check_crc):
                    yield self._damaged(segments, found) if isinstance(found, Damage) else self.shown(segments, found)
        except (FileNotFoundError, OffsetOutOfRange) as error:
            raise StoreUnusable(
                self.options.path,
                f"offsets [{partition.begin}, {partition.end}): the segment is gone, as it expires while a broker runs "
                f"({error}); run the query again, or read a backup",
            ) from error

    def _is_out_of_time(self, segments: SegmentList, split: LogSplit) -> bool:
        """Return whether the split has no records in the requested range of store times."""
        if self.time_column not in map(names_in, self.conditions):
            return False
        low, high = bounds_of(self.time_column, self.conditions)
        located = split.located(segments)
        is_inside = located.end < split.limit
        next_ms = store_time_at(segments, replace(located, begin=located.end)) if is_inside else None
        return not self._may_hold(store_time_at(segments, located), next_ms, low, high)

    def shown(self, segments: SegmentList, batch: RecordBatch) -> Rows:
        """Return the rows of some records."""
        del segments  # for those who override it
        return MessageRows(batch)

    def _damaged(self, segments: SegmentList, damage: Damage) -> Rows:
        """Return one row that describes the damage. Raises StoreDamaged with `mode=fail`."""
        told = self.refused(segments, damage.begin, damage.reason)
        size = min(damage.end - damage.begin, _SIZE_MAX)
        known = {"phyOffset": damage.begin, "storeSize": size, DAMAGE: str(told)}
        schema = arrow_schema(self.schema)
        arrays = [pa.array([known.get(field.name)], field.type) for field in schema]
        return ArrowRows(pa.RecordBatch.from_arrays(arrays, schema=schema))

    def refused(self, segments: SegmentList, at: PhysicalOffset, reason: str) -> StoreDamaged:
        """Return the error with file, offset and reason for a row of `mode=quarantine`; with `mode=fail` raise it."""
        path = segments.path_of(at)
        if self.options.url is not None:
            path = Path(self.options.url, path.parent.name, path.name)
        error = StoreDamaged(path, f"offset {at}: {reason}")
        if self.options.mode is DamageMode.FAIL:
            error.remedy = "with the option mode=quarantine the query goes on, and has this as a row"
            raise error
        return error


def _plausible(time_ms: int | None) -> int | None:
    """Return the time; None for a number that no clock gives, which says nothing of the records that follow."""
    return time_ms if time_ms is not None and is_calendar_time(np.array(time_ms)).all() else None
