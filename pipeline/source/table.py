"""The common part of all table readers: columns, conditions, and batches of rows."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from typing import ClassVar, Protocol, Self

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.datasource import DataSourceReader, Filter, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import BinaryType, DataType, MapType, StructField, StructType

from quarry_mq.pipeline.source.conditions import holds, is_applicable
from quarry_mq.pipeline.source.options import InvalidOption, ReadOptions

Types = Mapping[str, DataType]
"""The columns of a table in their order."""


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
            raise InvalidOption(f"option 'columns': no column {name!r}; there are {', '.join(types)}")
        fields.append(StructField(name, types[name]))
    return StructType(fields)


def check_schema(schema: StructType, types: Types) -> None:
    """Check a schema that the user gave. Raises InvalidOption for an unknown column or a wrong type."""
    for field in schema:
        expected = types.get(field.name)
        if expected is None:
            raise InvalidOption(f"schema: no column {field.name!r}; there are {', '.join(types)}")
        if expected != field.dataType:
            raise InvalidOption(
                f"schema: column {field.name!r} is of type {expected.simpleString()}, "
                f"not {field.dataType.simpleString()}"
            )


class TableReader(DataSourceReader):
    """Reads the columns of a schema, which may be any of the table's, for the rows that meet all conditions."""

    types: ClassVar[Types]

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        """Raises InvalidOption for a schema that does not fit the table."""
        check_schema(schema, self.types)
        self.options = options
        self.schema = schema
        self.conditions: list[Filter] = []

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        for condition in filters:
            if self.applies(condition):
                self.conditions.append(condition)
            else:
                yield condition

    def applies(self, condition: Filter) -> bool:
        """Return whether the reader applies the condition; Spark applies the others."""
        comparable = {name for name, kind in self.types.items() if not isinstance(kind, MapType | BinaryType)}
        return is_applicable(condition, comparable)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        # Spark plans one task with an empty partition where there are no partitions
        if type(partition) is InputPartition:
            return
        schema = to_arrow_schema(self.schema, timezone="UTC")
        for rows in self.rows(partition):
            found = self._selected(rows)
            if len(found):
                yield pa.RecordBatch.from_arrays([found.array(name) for name in schema.names], schema=schema)

    @abstractmethod
    def rows(self, partition: InputPartition) -> Iterator[Rows]:
        """Yield all rows of one partition, batch by batch."""

    def _selected(self, rows: Rows) -> Rows:
        """Return the rows that meet all conditions. Rows that one condition rejects are not checked by the next."""
        for condition in self.conditions:
            if not len(rows):
                break
            rows = rows.select(pc.fill_null(holds(condition, rows.array), fill_value=False))
        return rows
