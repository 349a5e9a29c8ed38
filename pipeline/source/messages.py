"""The table `messages` has every record of the commit log, in log order within each partition."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import ClassVar, Final

import pyarrow as pa
from pyspark.sql.datasource import Filter, InputPartition
from pyspark.sql.pandas.types import to_arrow_type
from pyspark.sql.types import StringType, StructType

from quarry_mq.pipeline.source.conditions import bounds_of, names_in
from quarry_mq.pipeline.source.log_splits import (
    Damage,
    LogSplit,
    log_extent,
    open_segments,
    plan_splits,
    read_split,
    store_time_at,
)
from quarry_mq.pipeline.source.message_columns import COLUMNS, MessageRows
from quarry_mq.pipeline.source.object_store import WHOLE_STORE_SPLIT_BYTES, root_with_end, root_with_segment
from quarry_mq.pipeline.source.options import DamageMode, InvalidOption, ReadOptions
from quarry_mq.pipeline.source.table import ArrowRows, Rows, TableReader, Types, chosen
from quarry_mq.store.commitlog import SegmentList
from quarry_mq.store.errors import StoreDamaged
from quarry_mq.store.fs import PosixDisk

BODY: Final = "body"
DAMAGE: Final = "damage"
"""Column with `mode=quarantine`: what is wrong with the `storeSize` bytes from `phyOffset` on; null for a message."""

TYPES: Final[Types] = {name: column.type for name, column in COLUMNS.items()}
QUARANTINE_TYPES: Final[Types] = {**TYPES, DAMAGE: StringType()}
_SIZE_MAX: Final = 2**31 - 1


def message_schema(options: ReadOptions) -> StructType:
    """Return the schema of the requested columns, or of all but the body if none were requested.

    Raises InvalidOption.
    """
    names = options.columns or tuple(name for name in COLUMNS if name != BODY)
    if options.mode is DamageMode.FAIL:
        return chosen(TYPES, names)
    return chosen(QUARANTINE_TYPES, [*(name for name in names if name != DAMAGE), DAMAGE])


class MessageReader(TableReader):
    """Reads the commit log."""

    types: ClassVar[Types] = QUARANTINE_TYPES

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
        """Return the splits that may hold records in the requested range of store times."""
        low, high = bounds_of("storeTimestamp", self.conditions)
        if not splits or "storeTimestamp" not in map(names_in, self.conditions):
            return splits
        margin_ms = self.options.clock_margin_ms
        begins = [store_time_at(segments, split) for split in splits]
        kept = []
        for split, first_ms, next_ms in zip(splits, begins, [*begins[1:], None], strict=True):
            begins_late = first_ms is not None and first_ms > high + margin_ms
            ends_early = next_ms is not None and next_ms < low - margin_ms
            if not begins_late and not ends_early:
                kept.append(split)
        return kept

    def rows(self, partition: InputPartition) -> Iterator[Rows]:
        assert isinstance(partition, LogSplit)
        with (
            root_with_segment(self.options, partition.begin) as root,
            closing(open_segments(PosixDisk(), root)) as segments,
        ):
            for found in read_split(segments, partition, check_crc=self.options.check_crc):
                yield self._damaged(segments, found) if isinstance(found, Damage) else MessageRows(found)

    def _damaged(self, segments: SegmentList, damage: Damage) -> Rows:
        """Return one row that describes the damage. Raises StoreDamaged with `mode=fail`."""
        told = StoreDamaged(self._file_of(segments, damage), f"offset {damage.begin}: {damage.reason}")
        if self.options.mode is DamageMode.FAIL:
            raise told
        size = min(damage.end - damage.begin, _SIZE_MAX)
        known = {"phyOffset": damage.begin, "storeSize": size, DAMAGE: str(told)}
        arrays = [pa.array([known.get(field.name)], to_arrow_type(field.dataType)) for field in self.schema]
        return ArrowRows(pa.RecordBatch.from_arrays(arrays, self.schema.fieldNames()))

    def _file_of(self, segments: SegmentList, damage: Damage) -> Path:
        path = segments.path_of(damage.begin)
        return path if self.options.url is None else Path(self.options.url, path.parent.name, path.name)
