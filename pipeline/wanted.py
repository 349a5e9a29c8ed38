"""Defines which messages of a store a job processes."""

from __future__ import annotations

from dataclasses import dataclass

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as sql
from pyspark.sql.datasource import Filter, GreaterThanOrEqual, In, LessThan, LessThanOrEqual


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
        rows = table.filter(self._conditions(begin, end))
        return rows if self.where is None else rows.filter(self.where)

    def _conditions(self, begin: int, end: int) -> Column:
        wanted = (sql.col("phyOffset") >= begin) & (sql.col("phyOffset") < end)
        if self.topics:
            wanted &= sql.col("topic").isin(*self.topics)
        if self.tags:
            wanted &= sql.col("tags").isin(*self.tags)
        if self.from_ms is not None:
            wanted &= sql.col("storeTimestamp") >= self.from_ms
        if self.to_ms is not None:
            wanted &= sql.col("storeTimestamp") <= self.to_ms
        return wanted

    def filters(self, begin: int, end: int) -> list[Filter]:
        """Return the conditions but `where`, and the range [begin, end) of offsets, as a reader of the log applies."""
        found: list[Filter] = [GreaterThanOrEqual(("phyOffset",), begin), LessThan(("phyOffset",), end)]
        if self.topics:
            found.append(In(("topic",), self.topics))
        if self.tags:
            found.append(In(("tags",), self.tags))
        if self.from_ms is not None:
            found.append(GreaterThanOrEqual(("storeTimestamp",), self.from_ms))
        if self.to_ms is not None:
            found.append(LessThanOrEqual(("storeTimestamp",), self.to_ms))
        return found
