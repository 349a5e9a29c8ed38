"""Defines how times are columns: as TIMESTAMP, or as whole milliseconds since 1970."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.pandas.types import to_arrow_type
from pyspark.sql.types import DataType, LongType, StructType, TimestampType

from quarry_mq.protocol.times import TIME_MS_MAX
from quarry_mq.store.scan.columns import Flags, Integers

TIME_COLUMNS: Final = frozenset({"storeTimestamp", "bornTimestamp"})
"""Columns of all tables that hold a time."""

TIME_MS_MIN: Final = -62_135_596_800_000
"""The first millisecond of the year 1. SQL and Python know timestamps from here to the year 9999."""

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_ARROW: Final = pa.timestamp("us", tz="UTC")


class TimeForm(StrEnum):
    """The form of the columns that hold times."""

    TIMESTAMP = "timestamp"
    MILLIS = "millis"

    @property
    def type(self) -> DataType:
        return TimestampType() if self is TimeForm.TIMESTAMP else LongType()


def arrow_schema(schema: StructType) -> pa.Schema:
    """Return a schema in Arrow's types. Spark's own function takes the time zone in other ways in other versions."""
    return pa.schema([pa.field(each.name, _arrow_type(each.dataType), each.nullable) for each in schema])


def _arrow_type(kind: DataType) -> pa.DataType:
    return _ARROW if isinstance(kind, TimestampType) else to_arrow_type(kind)


def timestamps(times_ms: pa.Array) -> pa.Array:
    """Return milliseconds since 1970 as timestamps, null for a number that is not in the years 1 to 9999.

    A record's times may be any numbers. One in a distant year would end a query that collects it, and would move a
    watermark beyond all other messages.
    """
    if times_ms.null_count:
        valid, numbers = times_ms.is_valid().to_numpy(zero_copy_only=False), pc.fill_null(times_ms, 0).to_numpy()
    else:
        valid, numbers = None, times_ms.to_numpy()
    is_time = is_calendar_time(numbers)
    if valid is None and is_time.all():
        return pa.array(numbers * 1000).view(_ARROW)
    mask = ~is_time if valid is None else ~(is_time & valid)
    return pa.array(np.where(is_time, numbers, 0) * 1000, mask=mask).view(_ARROW)


def is_calendar_time(times_ms: Integers) -> Flags:
    """Return which numbers are milliseconds in the years 1 to 9999."""
    within: Flags = (times_ms >= TIME_MS_MIN) & (times_ms <= TIME_MS_MAX)
    return within


def moment_of(time_ms: int) -> datetime:
    """Return milliseconds since 1970 as a time in UTC; the first or last one for a number that is in no calendar."""
    return _EPOCH + timedelta(milliseconds=max(TIME_MS_MIN, min(time_ms, TIME_MS_MAX)))


def microseconds_of(moment: datetime) -> int:
    """Return the exact microseconds since 1970 of a time with a zone."""
    since = moment - _EPOCH
    return (since.days * 86_400 + since.seconds) * 1_000_000 + since.microseconds
