"""Lets read-only jobs process a damaged log: they count the messages beside the damage and report its place."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, TypeVar

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sql
from pyspark.sql.datasource import Filter

from quarry_mq.pipeline.source.conditions import holds
from quarry_mq.pipeline.source.log_splits import LogSplit
from quarry_mq.pipeline.source.messages import DAMAGE, MessageReader, message_schema
from quarry_mq.pipeline.source.options import SPLIT_BYTES, DamageMode, read_options
from quarry_mq.pipeline.source.times import TimeForm
from quarry_mq.store.errors import StoreDamaged

FIRST_DAMAGED: Final = 20
"""Damaged places that are listed; further ones are only counted."""

_Result = TypeVar("_Result")


@dataclass(frozen=True, slots=True)
class DamagedPlaces:
    """Stretches of the log that hold no records although records must be there."""

    count: int = 0
    first: tuple[str, ...] = ()
    """File, offset and reason of the first damaged places."""


NO_DAMAGE: Final = DamagedPlaces()


@dataclass(frozen=True, slots=True)
class LogTable:
    """Describes how a job reads the table `messages` of a store."""

    spark: SparkSession
    root: Path
    mode: DamageMode = DamageMode.FAIL
    split_bytes: int = SPLIT_BYTES
    has_one_filter: bool = True
    """Tells that each table that `rows` returns is read with one filter alone, so that the source may apply it."""

    def rows(self, columns: str, *, checked: bool = True, times: TimeForm = TimeForm.TIMESTAMP) -> DataFrame:
        """Return these columns of all messages, with times in this form.

        With `mode=quarantine` all checksums are checked, so that each reading leaves out the same messages.
        """
        if self.mode is DamageMode.FAIL:
            return self._read(self.mode, columns, times, checked=checked)
        return self._read(self.mode, columns, times, checked=True).filter(sql.col(DAMAGE).isNull()).drop(DAMAGE)

    def damage(self) -> DataFrame:
        """Return the damaged places: `phyOffset`, and as `damage` what is wrong."""
        return self._read(DamageMode.QUARANTINE, "phyOffset", TimeForm.TIMESTAMP, checked=True).filter(
            sql.col(DAMAGE).isNotNull()
        )

    def reader(
        self, columns: str, conditions: Iterable[Filter], *, times: TimeForm = TimeForm.TIMESTAMP
    ) -> MessageReader:
        """Return a reader of these columns for tasks that use it without a table of Spark: they pass it to `sound`."""
        given = {"path": str(self.root), "columns": columns, "mode": self.mode.value, "pushFilters": "true"}
        given["timestamps"] = times.value
        options = read_options({**given, "splitBytes": str(self.split_bytes)})
        reader = MessageReader(options, message_schema(options))
        list(reader.pushFilters(list(conditions)))
        return reader

    def _read(self, mode: DamageMode, columns: str, times: TimeForm, *, checked: bool) -> DataFrame:
        reader = self.spark.read.format("quarry").option("columns", columns).option("mode", mode.value)
        reader = reader.option("timestamps", times.value).option("pushFilters", self.has_one_filter)
        return reader.option("splitBytes", self.split_bytes).option("checkCrc", checked).load(str(self.root))


def sound(reader: MessageReader, split: LogSplit, conditions: Sequence[Filter]) -> Iterator[pa.RecordBatch]:
    """Yield the messages of a split that meet the conditions, and leave out damage where the reader shows it."""
    for batch in reader.read(split):
        if reader.options.mode is DamageMode.FAIL:
            yield batch
            continue
        rows = batch.filter(batch.column(DAMAGE).is_null()).drop_columns([DAMAGE])
        for condition in conditions:
            rows = rows.filter(pc.fill_null(holds(condition, rows.column), fill_value=False))
        if rows.num_rows:
            yield rows


def beside_damage(
    table: LogTable, run: Callable[[LogTable], _Result], begin: int = 0, end: int | None = None
) -> tuple[_Result, DamagedPlaces]:
    """Run a job over the log, and run it again without the damaged places if the first run meets some.

    Damage at or after `end`, or before `begin`, is not reported. The first run passes over splits that its filters rule
    out, which a search for damage cannot do. So the first run must not have had an effect when it fails. Raises what
    `run` raises for any other reason.
    """
    try:
        return run(table), NO_DAMAGE
    except PySparkException as error:
        if StoreDamaged.__name__ not in str(error):
            raise
    return run(replace(table, mode=DamageMode.QUARANTINE)), _places(table, begin, end)


def _places(table: LogTable, begin: int, end: int | None) -> DamagedPlaces:
    damage = table.damage().filter(sql.col("phyOffset") >= begin)
    if end is not None:
        damage = damage.filter(sql.col("phyOffset") < end)
    return places_of(damage)


def places_of(damage: DataFrame) -> DamagedPlaces:
    """Return the damaged places of rows with `phyOffset` and `damage`."""
    first = damage.orderBy("phyOffset").limit(FIRST_DAMAGED).collect()
    return DamagedPlaces(damage.count(), tuple(row[DAMAGE] for row in first))
