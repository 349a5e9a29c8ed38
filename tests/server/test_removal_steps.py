"""Removal gives way to what else the event loop has to do (server/tasks.py)."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from quarry_mq.protocol.clock import ManualClock
from quarry_mq.server.tasks import LATE_S, PAUSES_MAX, PAUSES_PER_STEP, STEP_S, RemovalSteps

TOOK_S = STEP_S * 2


def removed_with(late: Sequence[float], monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The pauses after one step that takes its time, each of them ending late by so much, then in time."""
    clock, pauses, late_s = ManualClock(), list[float](), iter(late)

    async def sleep(seconds: float) -> None:
        pauses.append(seconds)
        clock.advance(seconds + next(late_s, 0.0))

    async def durable() -> None:
        pass

    def remove(found: Sequence[int]) -> int:
        clock.advance(TOOK_S)
        return len(found)

    monkeypatch.setattr(asyncio, "sleep", sleep)
    assert asyncio.run(RemovalSteps(durable, clock).take([1], remove)) == 1
    return pauses


def test_a_step_is_followed_by_a_pause_that_is_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    assert removed_with([], monkeypatch) == [pytest.approx(PAUSES_PER_STEP * TOOK_S)]


def test_while_the_loop_is_late_it_pauses_again(monkeypatch: pytest.MonkeyPatch) -> None:
    assert len(removed_with([2 * LATE_S, 3 * LATE_S, LATE_S / 2, 9.0], monkeypatch)) == 3


def test_it_goes_on_however_late_the_loop_is(monkeypatch: pytest.MonkeyPatch) -> None:
    assert len(removed_with([1.0] * 100, monkeypatch)) == PAUSES_MAX
