"""Defines which messages of a store a job processes."""

from __future__ import annotations

from dataclasses import dataclass

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as sql
from pyspark.sql.datasource import Filter, GreaterThanOrEqual, In, LessThan, LessThanOrEqual
from pyspark.sql.types import DataType, TimestampType

from quarry_mq.pipeline.source.times import microseconds_of, moment_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """Conditions that a message must meet, all of them. Store times are in ms, both included."""

    topics: tuple[str, ...] = ()
    tags: tuple[str, ...] = ()
    from_ms: int | None = None
    to_ms: int | None = None
    where: str | None = None
    """A condition in Spark's SQL over the columns of `messages`."""

    def rows(self, table: DataFrame, begin: int, end: int) -> DataFrame:
        """Return the rows with physical offsets in [begin, end) that meet the conditions."""
        rows = table.filter(self._conditions(begin, end, table.schema["storeTimestamp"].dataType))
        return rows if self.where is None else rows.filter(self.where)

    def _conditions(self, begin: int, end: int, time_type: DataType) -> Column:
        wanted = (sql.col("phyOffset") >= begin) & (sql.col("phyOffset") < end)
        if self.topics:
            wanted &= sql.col("topic").isin(*self.topics)
        if self.tags:
            wanted &= sql.col("tags").isin(*self.tags)
        if self.from_ms is not None:
            wanted &= sql.col("storeTimestamp") >= _time(self.from_ms, time_type)
        if self.to_ms is not None:
            wanted &= sql.col("storeTimestamp") <= _time(self.to_ms, time_type)
        return wanted

    def filters(self, begin: int, end: int) -> list[Filter]:
        """Return the conditions but `where`, and the range [begin, end) of offsets, as a reader of the log applies."""
        found: list[Filter] = [GreaterThanOrEqual(("phyOffset",), begin), LessThan(("phyOffset",), end)]
        if self.topics:
            found.append(In(("topic",), self.topics))
        if self.tags:
            found.append(In(("tags",), self.tags))
        if self.from_ms is not None:
            found.append(GreaterThanOrEqual(("storeTimestamp",), moment_of(self.from_ms)))
        if self.to_ms is not None:
            found.append(LessThanOrEqual(("storeTimestamp",), moment_of(self.to_ms)))
        return found


def _time(time_ms: int, time_type: DataType) -> Column:
    """Return a time as a value of a column of this type."""
    if isinstance(time_type, TimestampType):
        return sql.timestamp_micros(sql.lit(microseconds_of(moment_of(time_ms))))
    return sql.lit(time_ms)
