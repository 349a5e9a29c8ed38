"""Callers whose calls are denied are counted, for a while and up to a bound."""

from __future__ import annotations

from quarry_mq.protocol.clock import ManualClock
from quarry_mq.server.errors import Outcome
from quarry_mq.server.security.denied_callers import CALLERS_MAX, LEAST, RECENT_S, Denial, DeniedCallers


def deny(callers: DeniedCallers, times: int, user: str = "orders", outcome: str = Outcome.WRONG.value) -> None:
    for _ in range(times):
        callers.note("messaging", user, "192.0.2.7", outcome, "the reason")


def test_a_caller_is_named_from_the_third_call_on_and_until_it_stopped_for_a_while() -> None:
    clock = ManualClock()
    callers = DeniedCallers(clock)
    deny(callers, LEAST - 1)
    assert callers.recent() == []
    began_s = clock.monotonic_s()
    clock.advance(RECENT_S - 1)
    deny(callers, 1)
    [caller] = callers.recent()
    assert (caller.user, caller.address, caller.calls, caller.first_s) == ("orders", "192.0.2.7", LEAST, began_s)
    clock.advance(RECENT_S)
    assert callers.recent() == []
    deny(callers, 1)
    assert callers.recent() == []


def test_what_helps_differently_is_told_apart() -> None:
    callers = DeniedCallers(ManualClock())
    for number, outcome in enumerate([*(each.value for each in Outcome), "orders may not do this"]):
        deny(callers, LEAST + number, outcome=outcome)
    deny(callers, 50, user="", outcome=Outcome.LIMITED.value)
    assert {each.denial for each in callers.recent()} == set(Denial)
    assert callers.recent()[0].denial is Denial.OTHER  # its secret is right, and it calls too often
    wrong = [each for each in callers.recent() if each.denial is Denial.WRONG_SECRET]
    assert [each.user for each in wrong] == ["orders"]


def test_ever_new_names_do_not_fill_the_memory() -> None:
    callers = DeniedCallers(ManualClock())
    for number in range(CALLERS_MAX + 10):
        deny(callers, LEAST, user=f"guess{number}")
    assert len(callers.recent()) == CALLERS_MAX
