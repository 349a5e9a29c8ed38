"""The table `messages`: every record of the commit log, in log order within each partition."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.datasource import DataSourceReader, Filter, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from pipeline.source.conditions import bounds_of, holds, is_applicable, names_in
from pipeline.source.log_splits import (
    Damage,
    LogSplit,
    log_extent,
    open_segments,
    plan_splits,
    read_split,
    store_time_at,
)
from pipeline.source.message_columns import BODY, COLUMNS, DAMAGE, DAMAGE_FIELD, SCHEMA, MessageRows
from pipeline.source.options import DamageMode, InvalidOption, ReadOptions
from store.commitlog import SegmentList
from store.disk import PosixDisk
from store.errors import StoreDamaged

_FILTERED: frozenset[str] = frozenset(COLUMNS.keys() - {"properties", BODY})


def schema_of(options: ReadOptions) -> StructType:
    """The columns that were asked for; all but the body when nothing was said. Raises InvalidOption."""
    names = options.columns or tuple(name for name in COLUMNS if name != BODY)
    unknown = [name for name in names if name not in COLUMNS and name != DAMAGE]
    if unknown:
        raise InvalidOption(f"option 'columns': no column {unknown[0]!r}; there are {', '.join(COLUMNS)}")
    fields = [SCHEMA[name] for name in names if name != DAMAGE]
    return StructType([*fields, DAMAGE_FIELD] if options.mode is DamageMode.QUARANTINE else fields)


class MessageReader(DataSourceReader):
    """Reads the columns of `schema`, which may be any of the table's."""

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        self._options = options
        self._names = tuple(schema.fieldNames())
        self._schema = schema
        self._conditions: list[Filter] = []
        _check_schema(schema, options)

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        # damage is about no message: with a filter it would be passed over
        takes = self._options.mode is DamageMode.FAIL
        for condition in filters:
            if takes and is_applicable(condition, _FILTERED):
                self._conditions.append(condition)
            else:
                yield condition

    def partitions(self) -> Sequence[InputPartition]:
        disk, options = PosixDisk(), self._options
        segments = open_segments(disk, options.path)
        try:
            extent = log_extent(disk, options.path, segments)
            splits = plan_splits(segments, extent, options.split_bytes)
            return self._in_time(segments, self._in_place(splits))
        finally:
            segments.close()

    def _in_place(self, splits: list[LogSplit]) -> list[LogSplit]:
        """The splits that may hold records between the physical offsets that were asked for."""
        low, high = bounds_of("phyOffset", self._conditions)
        return [split for split in splits if low < split.end and split.begin <= high]

    def _in_time(self, segments: SegmentList, splits: list[LogSplit]) -> list[LogSplit]:
        """The splits that may hold records of the times that were asked for."""
        low, high = bounds_of("storeTimestamp", self._conditions)
        if not splits or "storeTimestamp" not in map(names_in, self._conditions):
            return splits
        margin_ms = self._options.clock_margin_ms
        begins = [store_time_at(segments, split) for split in splits]
        kept = []
        for split, first_ms, behind_ms in zip(splits, begins, [*begins[1:], None], strict=True):
            begins_late = first_ms is not None and first_ms > high + margin_ms
            ends_early = behind_ms is not None and behind_ms < low - margin_ms
            if not begins_late and not ends_early:
                kept.append(split)
        return kept

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, LogSplit)
        schema = to_arrow_schema(self._schema, timezone="UTC")
        segments = open_segments(PosixDisk(), self._options.path)
        for found in read_split(segments, partition, check_crc=self._options.check_crc):
            if isinstance(found, Damage):
                yield self._damaged(segments, found, schema)
                continue
            rows = self._selected(MessageRows(found))
            if len(rows):
                yield pa.RecordBatch.from_arrays([self._column(rows, name) for name in self._names], schema=schema)

    def _selected(self, rows: MessageRows) -> MessageRows:
        """The rows for which all conditions hold. What one throws out the next one does not look at."""
        for condition in self._conditions:
            if not len(rows):
                break
            rows = rows.select(pc.fill_null(holds(condition, rows.array), fill_value=False))
        return rows

    def _column(self, rows: MessageRows, name: str) -> pa.Array:
        return pa.nulls(len(rows), pa.string()) if name == DAMAGE else rows.array(name)

    def _damaged(self, segments: SegmentList, damage: Damage, schema: pa.Schema) -> pa.RecordBatch:
        path = segments.path_of(damage.begin)
        if self._options.mode is DamageMode.FAIL:
            raise StoreDamaged(path, f"offset {damage.begin}: {damage.reason}")
        size = min(damage.end - damage.begin, np.iinfo(np.int32).max)
        known = {"phyOffset": damage.begin, "storeSize": size, DAMAGE: f"{path}: {damage.reason}"}
        return pa.RecordBatch.from_pylist([{name: known.get(name) for name in self._names}], schema=schema)


def _check_schema(schema: StructType, options: ReadOptions) -> None:
    """Raises InvalidOption for a schema of the user's own that names what there is not."""
    for field in schema:
        expected = DAMAGE_FIELD if field.name == DAMAGE else SCHEMA[field.name] if field.name in COLUMNS else None
        if expected is None:
            raise InvalidOption(f"schema: no column {field.name!r}; there are {', '.join(COLUMNS)}")
        if expected.dataType != field.dataType:
            raise InvalidOption(
                f"schema: column {field.name!r} is of type {expected.dataType.simpleString()}, "
                f"not {field.dataType.simpleString()}"
            )
    if options.mode is DamageMode.QUARANTINE and DAMAGE not in schema.fieldNames():
        raise InvalidOption(f"schema: with mode=quarantine it needs the column {DAMAGE!r}")
