"""Times as columns: as timestamps, as numbers, in every session time zone, and numbers that are no time."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import SparkSession
from pyspark.sql import functions as sql
from pyspark.sql.datasource import (
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    LessThan,
    LessThanOrEqual,
    Not,
)
from pyspark.sql.types import LongType, TimestampType

from quarry_mq.pipeline.source import schema_of
from quarry_mq.pipeline.source.conditions import bounds_of
from quarry_mq.pipeline.source.options import Table, read_options
from quarry_mq.pipeline.source.times import TIME_MS_MIN, timestamps
from quarry_mq.protocol.times import TIME_MS_MAX
from tests.conftest import GoldenStore
from tests.pipeline.logs import write_store
from tests.pipeline.tables import messages, reader, rows_of
from tests.pipeline.test_source import plan_of, table
from tests.store.assembly import message

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
NOW_MS = 1_790_000_000_000
ODD_TIMES = (2**63 - 1, -(2**63), NOW_MS * 1000, TIME_MS_MAX + 1, TIME_MS_MIN - 1)


def time_of(time_ms: float) -> datetime:
    return EPOCH + timedelta(milliseconds=time_ms)


@pytest.mark.parametrize("name", ["messages", "units", "index"])
def test_times_are_timestamps_unless_numbers_are_asked_for(name: str) -> None:
    for options, kind in (({}, TimestampType()), ({"timestamps": "millis"}, LongType())):
        schema = schema_of(read_options({"path": "x", "table": Table(name).value, **options}))
        times = [field for field in schema if field.name.endswith("Timestamp")]
        assert {field.dataType for field in times} == {kind}
        assert len(times) == (2 if name == "messages" else 1)


def test_numbers_that_are_no_time_are_null(tmp_path: Path) -> None:
    times = [NOW_MS, *ODD_TIMES, 0, -1, TIME_MS_MAX, TIME_MS_MIN]
    stored = [max(0, each) for each in times]
    write_store(
        tmp_path,
        [(message()._replace(born_timestamp_ms=each), at) for each, at in zip(times, stored, strict=True)],
    )
    for column, values in (("storeTimestamp", stored), ("bornTimestamp", times)):
        found = messages(tmp_path, columns=column, timestamps="timestamp")
        assert [row[column] for row in found] == [None if each in ODD_TIMES else time_of(each) for each in values]
        assert [row[column] for row in messages(tmp_path, columns=column)] == values


def test_nulls_stay_nulls() -> None:
    assert timestamps(pa.array([None, 5, None], pa.int64())).to_pylist() == [None, time_of(5), None]
    assert timestamps(pa.array([], pa.int64())).to_pylist() == []


HALF = 0.5
"""A time between two milliseconds."""

COMPARISONS: list[tuple[type[Filter], Callable[[Any, Any], bool]]] = [
    (EqualTo, lambda stored, value: stored == value),
    (GreaterThan, lambda stored, value: stored > value),
    (GreaterThanOrEqual, lambda stored, value: stored >= value),
    (LessThan, lambda stored, value: stored < value),
    (LessThanOrEqual, lambda stored, value: stored <= value),
]


@pytest.mark.parametrize(("condition", "holds"), COMPARISONS)
@pytest.mark.parametrize("offset_ms", [3, 3 + HALF, -1, 40])
def test_conditions_on_times_keep_exactly_their_rows(
    tmp_path: Path, condition: type[Filter], holds: Callable[[Any, Any], bool], offset_ms: float
) -> None:
    write_store(tmp_path, [(message(), NOW_MS + number) for number in range(9)] + [(message(), 2**63 - 1)])
    value = time_of(NOW_MS + offset_ms)
    for some in (condition(("storeTimestamp",), value), Not(condition(("storeTimestamp",), value))):  # type: ignore[call-arg]
        found = messages(
            tmp_path, some, columns="storeTimestamp", timestamps="timestamp", splitBytes=200, clockMarginMs=0
        )
        expected = [
            time_of(NOW_MS + number)
            for number in range(9)
            if holds(time_of(NOW_MS + number), value) != isinstance(some, Not)
        ]
        assert [row["storeTimestamp"] for row in found] == expected


@given(st.integers(-(10**12), 10**12), st.sampled_from(COMPARISONS), st.integers(-(10**9), 10**9))
def test_bounds_in_milliseconds_lose_no_time(
    value_us: int, comparison: tuple[type[Filter], Callable[[Any, Any], bool]], stored_ms: int
) -> None:
    kind, holds = comparison
    value = EPOCH + timedelta(microseconds=value_us)
    low, high = bounds_of("t", [kind(("t",), value)])  # type: ignore[call-arg]
    assert holds(time_of(stored_ms), value) == (low <= stored_ms <= high)


def test_a_list_of_times(tmp_path: Path) -> None:
    write_store(tmp_path, [(message(), NOW_MS + number) for number in range(9)])
    wanted = [time_of(NOW_MS + 2), time_of(NOW_MS + 5 + HALF), time_of(NOW_MS + 7)]
    found = messages(tmp_path, In(("storeTimestamp",), wanted), columns="storeTimestamp", timestamps="timestamp")  # type: ignore[arg-type]
    assert [row["storeTimestamp"] for row in found] == [wanted[0], wanted[2]]


def test_a_first_record_with_an_odd_time_hides_no_split(tmp_path: Path) -> None:
    """A split is passed over if its first record says that it is too late: a number that is no time says nothing."""
    write_store(
        tmp_path, [(message(), 2**63 - 1), (message(), NOW_MS), (message(), NOW_MS * 1000), (message(), NOW_MS)]
    )
    for split_bytes in (200, 1 << 30):
        for low, high in ((NOW_MS, NOW_MS), (NOW_MS - 5, NOW_MS + 5)):
            made = reader(tmp_path, splitBytes=split_bytes, clockMarginMs=0, columns="storeTimestamp")
            assert not list(
                made.pushFilters(
                    [
                        GreaterThanOrEqual(("storeTimestamp",), low),
                        LessThanOrEqual(("storeTimestamp",), high),
                    ]
                )
            )
            assert len(rows_of(made)) == 2


# -- through Spark


@pytest.fixture
def zone(spark: SparkSession, request: pytest.FixtureRequest) -> Any:
    spark.conf.set("spark.sql.session.timeZone", request.param)
    yield request.param
    spark.conf.set("spark.sql.session.timeZone", "UTC")


@pytest.mark.parametrize("zone", ["UTC", "America/New_York", "Asia/Kathmandu"], indirect=True)
def test_conditions_are_in_the_time_zone_of_the_session_and_handed_down(
    spark: SparkSession, tmp_path: Path, zone: str
) -> None:
    hour = 3_600_000
    write_store(tmp_path, [(message(), NOW_MS + number * hour) for number in range(48)])
    text = "2026-09-22 06:15:00"
    frames = [
        table(spark, tmp_path, columns="storeTimestamp", pushFilters=True).filter(f"storeTimestamp >= {literal}")
        for literal in (f"'{text}'", f"timestamp_ntz'{text}'")
    ]
    [row] = spark.sql(f"select unix_millis(timestamp'{text}') as ms").collect()
    expected = [NOW_MS + number * hour for number in range(48) if NOW_MS + number * hour >= row["ms"]]
    for each in frames:
        assert " Filter " not in plan_of(each)
        found = each.select(sql.unix_millis("storeTimestamp").alias("ms"), sql.hour("storeTimestamp").alias("hour"))
        rows = found.orderBy("ms").collect()
        assert [one["ms"] for one in rows] == expected
        assert 0 < len(expected) < 48


def test_a_schema_chooses_the_form_of_each_time(spark: SparkSession, golden_store: GoldenStore) -> None:
    root = golden_store("file-clean") / "store"
    frame = spark.read.format("quarry").schema("storeTimestamp bigint, bornTimestamp timestamp").load(str(root))
    rows = frame.selectExpr("storeTimestamp", "unix_millis(bornTimestamp) as bornTimestamp").collect()
    assert [row.asDict() for row in rows] == messages(root, columns="storeTimestamp,bornTimestamp")
