"""Tables of a store, read as a task of Spark reads them but without Spark."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

from pyspark.sql.datasource import Filter

from quarry_mq.pipeline.source import reader_of, schema_of
from quarry_mq.pipeline.source.options import read_options
from quarry_mq.pipeline.source.table import TableReader

Row = dict[str, Any]


def reader(root: Path, **options: object) -> TableReader:
    """A reader as Spark makes it. Options are spelled as Spark users spell them; times are numbers unless asked for."""
    form = {} if options.get("columns") == "kafka" else {"timestamps": "millis"}
    form["pushFilters"] = "true"
    checked = read_options({"path": str(root), **form, **{name: str(value) for name, value in options.items()}})
    made = reader_of(checked, schema_of(checked))
    return cast("TableReader", made)  # the reader of a copied table has the calls that Spark uses


def rows_of(reader: TableReader) -> list[Row]:
    """All rows, partition by partition."""
    return [row for partition in reader.partitions() for batch in reader.read(partition) for row in batch.to_pylist()]


def table(root: Path, *conditions: Filter, **options: object) -> list[Row]:
    """The rows for which the conditions hold, all of which the reader must take upon itself."""
    made = reader(root, **options)
    assert not list(made.pushFilters(list(conditions)))
    return rows_of(made)


messages = table
"""The table that comes by itself."""


def plain(row: Row) -> Row:
    """The row with its properties as a dict."""
    return {**row, "properties": dict(row["properties"])} if row.get("properties") is not None else row
