"""Figures over time as a line of text."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from quarry_mq.cli.terminal.text import BLOCKS, HOUR_MS, cells, levels, sparkline


@given(
    st.lists(st.tuples(st.integers(0, 4_000_000), st.floats(0, 1e6) | st.just(math.nan)), max_size=80),
    st.integers(1, 60),
)
def test_cells_hold_the_most_of_what_is_known(samples: list[tuple[int, float]], width: int) -> None:
    samples.sort(key=lambda each: each[0])
    found = cells(
        [at for at, _ in samples], [value for _, value in samples], end_ms=4_000_000, span_ms=3_600_000, width=width
    )
    assert len(found) == width
    known = [value for at, value in samples if at > 400_000 and not math.isnan(value)]
    shown = [value for value in found if value is not None]
    assert set(shown) <= set(known)
    assert max(shown, default=None) == max(known, default=None)
    assert len(shown) == len(
        {(4_000_000 - at) * width // 3_600_000 for at, value in samples if at > 400_000 and not math.isnan(value)}
    )


def test_a_sample_lies_where_its_time_is() -> None:
    assert cells([0, 50, 100], [1, 2, 3], end_ms=100, span_ms=100, width=2) == [2, 3]
    assert cells([1, 60], [1, 3], end_ms=100, span_ms=100, width=4) == [1, None, 3, None]
    assert cells([], [], end_ms=100, span_ms=100, width=2) == [None, None]


@given(st.lists(st.none() | st.floats(0, 1e9), max_size=60), st.integers(2, 9))
def test_levels_keep_order(values: list[float | None], steps: int) -> None:
    found = levels(values, steps)
    known = sorted(
        (value, level) for value, level in zip(values, found, strict=True) if value is not None and level is not None
    )
    assert [level is None for level in found] == [value is None for value in values]
    assert all(0 <= level < steps for _, level in known)
    assert [level for _, level in known] == sorted(level for _, level in known)
    assert all((value > 0) == (level > 0) for value, level in known)
    if known and known[-1][0] > 0:
        assert known[-1][1] == steps - 1


def test_curves_tell_zero_from_unknown() -> None:
    assert sparkline([None, 0.0, 1.0, 8.0]) == "·▁▂█"
    assert sparkline([None, 0.0, 8.0], plain=True) == "?_#"
    assert sparkline([0.0, 0.0]) == BLOCKS[0] * 2


def test_a_column_is_as_high_as_the_most_of_its_minute() -> None:
    values = [0.0] * 360
    values[359], values[353], values[347] = 7.0, 3.5, 0.001
    at_ms = [number * 10_000 for number in range(360)]
    found = cells(at_ms, values, end_ms=at_ms[-1], span_ms=HOUR_MS, width=60)
    assert sparkline(found) == "▁" * 57 + "▂" + "▅" + "█"
