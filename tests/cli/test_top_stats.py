"""Figures that `quarry top` computes from the counts of a broker, and their format."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from rich.text import Text

from quarry_mq.cli.online.top.screen.tables import (
    LABEL_WIDTH,
    Canvas,
    Column,
    bar,
    fitted,
    fitting,
    flow,
    item,
    latency_text,
    percent_text,
    side_by_side,
    styled,
    table,
)
from quarry_mq.cli.online.top.stats import Histogram, between, busy_share, left_s, quantile_s, stage_stats
from quarry_mq.cli.terminal.quantities import bytes_text, count_text, rate_text, span_text

BOUNDS_S = (0.001, 0.01, 0.1, 1.0)
COUNTS = st.lists(st.integers(0, 1000), min_size=5, max_size=5).map(tuple)
TALLIES = st.builds(Histogram, st.just(BOUNDS_S), COUNTS, st.floats(0, 1e6))


def samples(values: list[float]) -> Histogram:
    counts = [0] * (len(BOUNDS_S) + 1)
    for value in values:
        counts[next((number for number, bound in enumerate(BOUNDS_S) if value <= bound), len(BOUNDS_S))] += 1
    return Histogram(BOUNDS_S, tuple(counts), math.fsum(values))


@given(TALLIES, TALLIES)
def test_what_came_between_is_what_was_added(before: Histogram, added: Histogram) -> None:
    counts = tuple(map(sum, zip(before.counts, added.counts, strict=True)))
    found = between(before, Histogram(BOUNDS_S, counts, before.total_s + added.total_s))
    assert found is not None
    assert found.counts == added.counts
    assert found.total_s == pytest.approx(added.total_s, abs=1e-6)


@given(TALLIES, TALLIES)
def test_a_histogram_that_begins_again_has_no_difference(before: Histogram, after: Histogram) -> None:
    assume(any(late < early for early, late in zip(before.counts, after.counts, strict=True)))
    assert between(before, after) is None


def test_histograms_of_other_bounds_have_no_difference() -> None:
    assert between(Histogram((1.0,), (0, 0), 0), Histogram((2.0,), (0, 0), 0)) is None


@given(st.lists(st.floats(0.000_001, 5), min_size=1, max_size=200), st.floats(0.01, 1))
def test_a_quantile_is_in_the_same_step_as_the_value_at_its_rank(values: list[float], share: float) -> None:
    exact = sorted(values)[max(0, math.ceil(share * len(values)) - 1)]
    found = quantile_s(samples(values), share)
    assert found is not None
    lower, upper = next(pair for pair in pairwise((0.0, *BOUNDS_S, math.inf)) if exact <= pair[1])
    assert found == math.inf if upper == math.inf else lower <= found <= upper


@given(TALLIES)
def test_quantiles_ascend(histogram: Histogram) -> None:
    found = [quantile_s(histogram, share) for share in (0.01, 0.25, 0.5, 0.9, 0.99, 1)]
    if histogram.values:
        assert all(first is not None and then is not None and first <= then for first, then in pairwise(found))
    else:
        assert found == [None] * 6


@given(st.dictionaries(st.sampled_from([("send", "check"), ("send", "flush"), ("receive", "wait"), ("receive", "read"),
    ("receive", "take")]), TALLIES))  # fmt: skip
def test_the_shares_of_a_call_are_all_of_it(histograms: dict[tuple[str, str], Histogram]) -> None:
    stats = stage_stats(histograms)
    assert [(each.call, each.name) for each in stats] == list(histograms)
    for call in ("send", "receive"):
        shares = [each.share for each in stats if each.call == call and each.share is not None]
        assert not shares or sum(shares) == pytest.approx(1)
    assert all(each.share is None for each in stats if each.name in ("wait", "read"))


def test_stages_are_weighed_by_what_a_call_waits_not_by_how_often_they_are_timed() -> None:
    """One send of 17 is timed in `check`: its sum is a seventeenth."""
    rare, often = Histogram((1.0,), (10, 0), 0.1), Histogram((1.0,), (170, 0), 1.7)
    shares = [each.share for each in stage_stats({("send", "check"): rare, ("send", "append"): often})]
    assert shares == [pytest.approx(0.5), pytest.approx(0.5)]


@pytest.mark.parametrize(
    ("name", "seconds", "is_slow"),
    [("flush", 0.08, False), ("flush", 0.5, True), ("append", 0.08, True), ("wait", 0.5, False)],
)
def test_slow_stages(name: str, seconds: float, is_slow: bool) -> None:
    (found,) = stage_stats({("send", name): Histogram((seconds * 0.99, seconds, 9.0), (0, 100, 0, 0), 1.0)})
    assert found.is_slow is is_slow


@pytest.mark.parametrize(
    ("done", "total", "earlier", "apart_s", "expected"),
    [
        (50, 100, 0, 10, 10),
        (100, 100, 0, 10, 0),
        (50, None, 0, 10, None),
        (50, 100, 50, 10, None),
        (50, 100, 0, 0, None),
    ],
)
def test_how_long_work_goes_on(
    done: int, total: int | None, earlier: int, apart_s: float, expected: float | None
) -> None:
    assert left_s(done, total, earlier_done=earlier, apart_s=apart_s) == expected


def test_how_busy_a_process_is() -> None:
    assert busy_share(12.0, 10.0, apart_s=4.0) == 0.5
    assert busy_share(1.0, 10.0, apart_s=4.0) is None
    assert busy_share(1.0, 1.0, apart_s=0.0) is None


# -- texts


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (count_text(None), "unknown"),
        (count_text(0), "0"),
        (count_text(1_234_567), "1,234,567"),
        (count_text(1_234_567_890), "1.2 G"),
        (rate_text(None), "unknown"),
        (rate_text(math.nan), "unknown"),
        (rate_text(0), "0"),
        (rate_text(0.01), "<0.1"),
        (rate_text(12.34), "12.3"),
        (rate_text(99.96), "100"),
        (rate_text(12_345.6), "12,346"),
        (bytes_text(None), "unknown"),
        (bytes_text(0), "0 B"),
        (bytes_text(1023), "1.0 KiB"),
        (bytes_text(200 * 2**30), "200 GiB"),
        (bytes_text(12 * 2**20 + 2**19), "12.5 MiB"),
        (span_text(None), "unknown"),
        (span_text(0), "0 s"),
        (span_text(0.000_035), "35 µs"),
        (span_text(0.001_2), "1.2 ms"),
        (span_text(0.211), "211 ms"),
        (span_text(3.44), "3.4 s"),
        (span_text(59.96), "1 min"),
        (span_text(125), "2 min 5 s"),
        (span_text(3 * 3600 + 12 * 60), "3 h 12 min"),
        (span_text(4 * 86_400 + 3600), "4 d 1 h"),
        (latency_text(None), "-"),
        (latency_text(math.inf, bound_s=4.2), "> 4.2 s"),
        (percent_text(None), "unknown"),
        (percent_text(0.454), "45 %"),
        (bar(0.5, 4), "██░░"),
        (bar(0.5, 4, plain=True), "##--"),
        (bar(None, 4), "????"),
    ],
)
def test_stats_as_people_read_them(text: str, expected: str) -> None:
    assert text == expected


@given(st.integers(0, 10**15))
def test_numbers_fit_into_their_columns(value: int) -> None:
    assert len(count_text(value)) <= 10
    assert len(rate_text(value)) <= 9
    assert len(bytes_text(value)) <= 9


@given(st.floats(0, 9_999 * 86_400))
def test_spans_fit_into_their_columns(seconds: float) -> None:
    """27 years of it."""
    assert len(span_text(seconds)) <= 11


# -- lines

WORDS = st.text(st.characters(codec="utf-8", exclude_categories=["C", "Z", "M"]), min_size=1, max_size=30)


@given(WORDS, st.integers(0, 40))
def test_a_fitted_text_has_its_width(text: str, width: int) -> None:
    for plain in (False, True):
        assert Text(fitted(text, width, plain=plain)).cell_len == width


@given(st.lists(st.tuples(WORDS, WORDS), max_size=6), st.integers(45, 120))
def test_a_flow_keeps_its_items_and_its_width(items: list[tuple[str, str]], width: int) -> None:
    lines = flow("label", [item(name, value) for name, value in items], width)
    words = " ".join(line.plain for line in lines).split()
    assert words == ["label", *(word for pair in items for word in pair)]
    longest = max([0, *(Text(word).cell_len for pair in items for word in pair)])
    assert all(line.cell_len <= max(width, LABEL_WIDTH + longest) for line in lines)
    assert all(line.plain.startswith(" " * LABEL_WIDTH) for line in lines[1:])


@given(st.integers(20, 200), st.lists(st.tuples(st.integers(3, 20), st.integers(1, 9)), max_size=8))
def test_a_table_is_as_wide_as_its_canvas_and_drops_what_matters_least(
    width: int, others: list[tuple[int, int]]
) -> None:
    columns = [
        Column("name", 0, 0, lambda row, _: row, is_right=False),
        *(Column(f"c{number}", size, rank, lambda _, __: "x" * 30) for number, (size, rank) in enumerate(others)),
    ]
    lines = table(columns, ["one", "a" * 300], Canvas(width=width, height=9), 0)
    assert {line.cell_len for line in lines} == {width}
    kept = [column for column, _ in fitting(columns, width)]
    gone = [column.rank for column in columns if column not in kept]
    assert not gone or min(gone) >= max(column.rank for column in kept)


def test_two_blocks_next_to_each_other() -> None:
    found = side_by_side([styled("a"), styled("bb")], [styled("1"), styled("2"), styled("3")], 4, 2)
    assert [line.plain for line in found] == ["a     1", "bb    2", "      3"]
