"""Settings of sessions that our jobs choose themselves."""

from __future__ import annotations

from unittest.mock import Mock

import pytest

from quarry_mq.pipeline.session import shuffle_partitions, shuffles_for

MIB = 1 << 20
NAME = "spark.sql.shuffle.partitions"


@pytest.mark.parametrize(
    ("log_bytes", "cores", "expected"),
    [
        (0, 4, 1),
        (10 * MIB, 4, 1),
        (150 * MIB, 4, 3),
        (10_000 * MIB, 4, 20),
        (10_000 * MIB, 100, 100),
        (10**14, 100, 10_000),
    ],
)
def test_partitions_by_the_size_of_the_log(log_bytes: int, cores: int, expected: int) -> None:
    assert shuffle_partitions(log_bytes, cores) == expected


def session(partitions: str, *, configured: bool = False) -> Mock:
    spark = Mock()
    spark.sparkContext.defaultParallelism = 4
    spark.sparkContext.getConf().contains.return_value = configured
    spark.conf.get.return_value = partitions
    return spark


def test_the_number_lasts_as_long_as_the_job() -> None:
    spark = session("200")
    with shuffles_for(spark, 150 * MIB):
        spark.conf.set.assert_called_once_with(NAME, 3)
        spark.conf.unset.assert_not_called()
    spark.conf.unset.assert_called_once_with(NAME)


@pytest.mark.parametrize("spark", [session("7"), session("200", configured=True)])
def test_a_number_that_was_chosen_for_the_session_stays(spark: Mock) -> None:
    with shuffles_for(spark, 150 * MIB):
        spark.conf.set.assert_not_called()
    spark.conf.unset.assert_not_called()
