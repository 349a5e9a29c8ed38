"""Damaged conversations: a few with each run of the tests, a million with the slow ones."""

from __future__ import annotations

import pytest

from tests.front.fuzz import RSS_GROWTH_MAX, run_in_processes, run_many

SLOW_COUNT = 1_000_000


def test_some_damaged_conversations() -> None:
    outcome = run_many(seed=7, first=0, count=15_000)
    assert {"OPEN", "NEW", "PROTOCOL_ERROR", "FRAME_SIZE_ERROR", "COMPRESSION_ERROR"} <= outcome.endings.keys()


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_million_damaged_conversations() -> None:
    outcome = run_in_processes(seed=1, first=0, count=SLOW_COUNT, processes=2)
    assert outcome.endings.total() == SLOW_COUNT
    assert outcome.grown < RSS_GROWTH_MAX
