"""The common part of all table readers: columns, conditions, and batches of rows."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from typing import ClassVar, Final, Protocol, Self

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.datasource import DataSourceReader, Filter, InputPartition
from pyspark.sql.types import ArrayType, BinaryType, DataType, MapType, StructField, StructType, TimestampType

from quarry_mq.pipeline.source.conditions import holds, is_applicable
from quarry_mq.pipeline.source.options import InvalidOption, ReadOptions, nearest
from quarry_mq.pipeline.source.times import TIME_COLUMNS, TimeForm, arrow_schema, timestamps

Types = Mapping[str, DataType]
"""The columns of a table in their order."""

_NOT_COMPARED: Final = MapType | ArrayType | BinaryType


class Rows(Protocol):
    """Rows whose columns are made when they are requested."""

    def __len__(self) -> int: ...

    def array(self, name: str) -> pa.Array:
        """Return the column of this name, in the type that Spark expects."""

    def select(self, rows: pa.BooleanArray) -> Self:
        """Return the marked rows."""


class ArrowRows:
    """Rows whose columns are all made already."""

    def __init__(self, batch: pa.RecordBatch) -> None:
        self._batch = batch

    def __len__(self) -> int:
        return int(self._batch.num_rows)

    def array(self, name: str) -> pa.Array:
        return self._batch.column(name)

    def select(self, rows: pa.BooleanArray) -> ArrowRows:
        return ArrowRows(self._batch.filter(rows))


def chosen(types: Types, names: Iterable[str]) -> StructType:
    """Return the schema of some columns, in the requested order. Raises InvalidOption for an unknown column."""
    fields = []
    for name in names:
        if name not in types:
            raise InvalidOption(
                f"option 'columns': no column {name!r}{nearest(name, types)}; there are {', '.join(types)}"
            )
        fields.append(StructField(name, types[name]))
    return StructType(fields)


def check_schema(schema: StructType, types: Types) -> None:
    """Check a schema that the user gave. Raises InvalidOption for an unknown column or a wrong type."""
    for field in schema:
        expected = types.get(field.name)
        if expected is None:
            raise InvalidOption(
                f"schema: no column {field.name!r}{nearest(field.name, types)}; there are {', '.join(types)}"
            )
        if field.dataType not in _possible(field.name, expected):
            raise InvalidOption(
                f"schema: column {field.name!r} is of type {expected.simpleString()}, "
                f"not {field.dataType.simpleString()}"
            )


def _possible(name: str, expected: DataType) -> list[DataType]:
    """Return the types that a schema may give to a column: a time may be a timestamp or a number."""
    return [form.type for form in TimeForm] if name in TIME_COLUMNS else [expected]


def types_of(types: Types, form: TimeForm) -> Types:
    """Return the columns with times in this form."""
    return {name: form.type if name in TIME_COLUMNS else kind for name, kind in types.items()}


class TableReader(DataSourceReader):
    """Reads the columns of a schema, which may be any of the table's, for the rows that meet all conditions.

    Readers make times as numbers. Where the schema says that a column is a timestamp, it becomes one here.
    """

    types: ClassVar[Types]

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        """Raises InvalidOption for a schema that does not fit the table."""
        check_schema(schema, self.types)
        self.options = options
        self.schema = schema
        self.conditions: list[Filter] = []
        self._times = {field.name for field in schema if isinstance(field.dataType, TimestampType)}

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        for condition in filters:
            if self.options.push_filters and self.applies(condition):
                self.conditions.append(condition)
            else:
                yield condition

    def applies(self, condition: Filter) -> bool:
        """Return whether the reader applies the condition; Spark applies the others."""
        comparable = {name for name, kind in self.types.items() if not isinstance(kind, _NOT_COMPARED)}
        return is_applicable(condition, comparable)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        # Spark plans one task with an empty partition where there are no partitions
        if type(partition) is InputPartition:
            return
        schema = arrow_schema(self.schema)
        for rows in self.rows(partition):
            found = self._selected(rows)
            if len(found):
                yield pa.RecordBatch.from_arrays([self._column(found, name) for name in schema.names], schema=schema)

    @abstractmethod
    def rows(self, partition: InputPartition) -> Iterator[Rows]:
        """Yield all rows of one partition, batch by batch."""

    def _selected(self, rows: Rows) -> Rows:
        """Return the rows that meet all conditions. Rows that one condition rejects are not checked by the next."""
        for condition in self.conditions:
            if not len(rows):
                break
            column_of = partial(self._column, rows)
            rows = rows.select(pc.fill_null(holds(condition, column_of), fill_value=False))
        return rows

    def _column(self, rows: Rows, name: str) -> pa.Array:
        array = rows.array(name)
        return timestamps(array) if name in self._times and pa.types.is_integer(array.type) else array
