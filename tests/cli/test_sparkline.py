"""Figures over time as a line of text."""

from __future__ import annotations

from cli.online.sparkline import sparkline

MINUTE_MS = 60_000


def drawn(at_ms: list[int], values: list[float | None]) -> str:
    return sparkline(at_ms, values, 10_000, 60)


def test_a_column_is_as_high_as_the_most_of_its_minute() -> None:
    values: list[float | None] = [0.0] * 360
    values[359], values[353], values[347] = 7.0, 3.5, 0.001
    line = drawn([number * 10_000 for number in range(360)], values)
    assert line == "▁" * 57 + "▂" + "▅" + "█"


def test_the_latest_is_at_the_right_and_what_is_not_known_is_blank() -> None:
    assert drawn([], []) == " " * 60
    assert drawn([5 * MINUTE_MS], [None]) == " " * 60
    assert drawn([0, 2 * MINUTE_MS], [1.0, 2.0]) == " " * 57 + "▅ █"
    assert drawn([0], [0.0]) == " " * 59 + "▁"


def test_what_is_older_than_an_hour_is_left_out() -> None:
    assert drawn([0, 61 * MINUTE_MS], [9.0, 1.0]) == " " * 59 + "█"
