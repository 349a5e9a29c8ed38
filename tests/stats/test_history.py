"""The ring of the last hour, against a list that is never cut."""

from __future__ import annotations

from math import nan

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quarry_mq.server.admin.stats import History, Series
from quarry_mq.store.errors import Invalid

SERIES = (Series("sent", "messages/s"), Series("lag", "seconds"))
STEPS = st.lists(st.tuples(st.integers(-30, 60), st.floats(0, 9), st.floats(0, 9)), max_size=40)


@given(steps=STEPS, samples_max=st.integers(1, 7), after=st.none() | st.integers(0, 500))
def test_it_is_the_end_of_all_that_was_added(
    steps: list[tuple[int, float, float]], samples_max: int, after: int | None
) -> None:
    history = History(SERIES, samples_max)
    kept: list[tuple[int, float, float]] = []
    now_ms = 100
    for step_ms, sent, lag in steps:
        now_ms += step_ms
        history.add(now_ms, [sent, lag])
        kept = [*(each for each in kept if each[0] < now_ms), (now_ms, sent, lag)][-samples_max:]
        assert history.latest("lag") == lag
        assert len(history) == len(kept)
    wanted = [each for each in kept if after is None or each[0] > after]
    excerpt = history.excerpt(after_ms=after)
    assert list(excerpt.at_ms) == [at_ms for at_ms, _, _ in wanted]
    assert [(each.series, list(each.values)) for each in excerpt.series] == [
        (SERIES[0], [sent for _, sent, _ in wanted]),
        (SERIES[1], [lag for _, _, lag in wanted]),
    ]


def test_series_come_in_the_order_they_are_asked_for() -> None:
    history = History(SERIES)
    history.add(1_000, [1.0, 2.0])
    assert [(each.series.name, list(each.values)) for each in history.excerpt(["lag", "sent", "lag"]).series] == [
        ("lag", [2.0]),
        ("sent", [1.0]),
        ("lag", [2.0]),
    ]


def test_what_is_not_known_is_not_a_number() -> None:
    history = History(SERIES)
    assert history.latest("sent") is None
    history.add(1_000, [nan, 2.0])
    assert history.latest("sent") is None
    history.add(2_000, [1.0, nan])
    assert (history.latest("sent"), history.latest("lag")) == (1.0, None)


def test_a_series_that_is_none_is_named() -> None:
    with pytest.raises(Invalid, match=r"no series 'x{60}'"):
        History(SERIES).excerpt(["sent", "x" * 1_000])
