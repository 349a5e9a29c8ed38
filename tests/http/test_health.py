"""Health and readiness of a broker, phase by phase."""

from __future__ import annotations

import pytest

from quarry_mq.protocol.clock import ManualClock
from quarry_mq.server.process.health import LOOP_STALL_S, HealthState, Phase


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def health(clock: ManualClock) -> HealthState:
    return HealthState(clock)


def test_a_start_goes_through_recovery_to_ready(health: HealthState) -> None:
    assert (health.look().is_ready, health.look().readiness) == (False, "starting")
    health.recovering(0)
    health.recovering(43)
    assert (health.look().is_ready, health.look().readiness) == (False, "recovering, 43 %")
    health.ready()
    assert (health.look().is_ready, health.look().readiness) == (True, "ready")
    health.stopping()
    assert (health.look().is_ready, health.look().readiness) == (False, "stopping")


def test_a_poisoned_broker_stays_poisoned_and_keeps_its_first_reason(health: HealthState) -> None:
    health.ready()
    health.poisoned("fdatasync of 00000000000000000000: Input/output error")
    for late in (health.ready, health.stopping, lambda: health.recovering(1), lambda: health.poisoned("again")):
        late()
    assert health.look().phase is Phase.POISONED
    assert health.look().readiness == "poisoned: fdatasync of 00000000000000000000: Input/output error"


@pytest.mark.parametrize("end", [HealthState.stopping, lambda health: health.poisoned("x")])
def test_a_ready_broker_never_recovers_again(health: HealthState, end: object) -> None:
    health.ready()
    health.recovering(5)
    assert health.look().is_ready
    assert callable(end)
    end(health)
    health.ready()
    assert not health.look().is_ready


def test_a_broker_that_takes_no_sends_is_ready_for_consumers_and_says_so(health: HealthState) -> None:
    """A full disk is emptied by consumers and operators: taking the broker out of service would not help."""
    health.sends_refused("the disk is full")
    assert health.look().readiness == "starting"
    health.ready()
    assert health.look().is_ready
    assert health.look().readiness == "ready, but sends are refused: the disk is full"
    health.sends_refused("")
    assert health.look().readiness == "ready"


def test_a_loop_that_has_not_begun_is_live(health: HealthState, clock: ManualClock) -> None:
    clock.advance(LOOP_STALL_S * 10)
    assert health.look().is_live


def test_a_loop_that_stops_turning_is_not_live(health: HealthState, clock: ManualClock) -> None:
    health.tick()
    clock.advance(LOOP_STALL_S - 0.5)
    assert health.look().is_live
    clock.advance(0.5)
    assert not health.look().is_live
    assert health.look().liveness == f"the event loop has been blocked for {LOOP_STALL_S:.0f} s"
    health.tick()
    assert health.look().liveness == "live"


def test_a_long_recovery_is_live_while_the_loop_turns(health: HealthState, clock: ManualClock) -> None:
    """rmq#9587: a probe that kills a slow recovery makes it start over, forever."""
    health.recovering(1)
    for _ in range(1_000):
        health.tick()
        clock.advance(LOOP_STALL_S / 2)
    assert health.look().is_live
    assert not health.look().is_ready
