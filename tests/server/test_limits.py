"""Limits that are counted in the broker itself."""

from __future__ import annotations

import pytest

from quarry_mq.protocol.clock import ManualClock
from quarry_mq.server.errors import OverLimit
from quarry_mq.server.rpc.context import RATES_KEPT_MAX, LimitsMet, RequestRates, WaitingSizes
from quarry_mq.store.errors import Busy


def test_sizes_are_counted_for_each_client_and_in_all() -> None:
    sizes = WaitingSizes("waiting", total_max=100, client_max=60)
    sizes.take("a", 50)
    with pytest.raises(OverLimit) as refused:
        sizes.take("a", 11)
    assert refused.value.limit == "waiting_per_client"
    sizes.take("a", 10)
    sizes.take("b", 40)
    with pytest.raises(OverLimit) as refused:
        sizes.take("c", 1)
    assert refused.value.limit == "waiting"
    sizes.give("b", 40)
    sizes.take("c", 40)
    assert sizes.total == 100


def test_what_is_allowed_at_all_passes_when_nothing_waits() -> None:
    sizes = WaitingSizes("waiting", total_max=10, client_max=5)
    sizes.take("a", 1_000)
    sizes.give("a", 1_000)
    sizes.take("a", 1_000)
    assert sizes.total == 1_000


def test_nothing_is_remembered_of_clients_for_whom_nothing_waits() -> None:
    sizes = WaitingSizes("waiting", total_max=10, client_max=5)
    for number in range(1_000):
        sizes.take(str(number), 1)
        sizes.give(str(number), 1)
    assert not sizes._sizes
    assert sizes.total == 0


def test_requests_without_bytes_end_in_any_order() -> None:
    """The second of them could not be answered."""
    sizes = WaitingSizes("waiting", total_max=10, client_max=5)
    for size in (0, 5, 0, 0):
        sizes.take("a", size)
    for size in (0, 5, 0, 0):
        sizes.give("a", size)
    assert (sizes.total, sizes._sizes) == (0, {})


def test_a_client_has_a_second_of_requests_in_advance_and_then_its_rate() -> None:
    clock = ManualClock()
    rates = RequestRates(clock, 100)

    def taken() -> int:
        count = 0
        while count < 1_000:
            try:
                rates.request("a")
            except OverLimit:
                break
            count += 1
        return count

    assert taken() == 100
    rates.request("b")
    clock.advance(0.5)
    assert taken() == 50
    clock.advance(3_600)
    assert taken() == 100


def test_without_a_rate_nothing_is_refused_or_kept() -> None:
    rates = RequestRates(ManualClock(), 0)
    for _ in range(10_000):
        rates.request("a")
    assert not rates._free_at_s


def test_one_request_in_ten_seconds_is_a_rate_as_well() -> None:
    rates = RequestRates(ManualClock(), 1)
    rates.request("a")
    with pytest.raises(OverLimit):
        rates.request("a")


def test_made_up_clients_do_not_pile_up() -> None:
    rates = RequestRates(ManualClock(), 10)
    for number in range(RATES_KEPT_MAX + 10):
        rates.request(str(number))
    assert len(rates._free_at_s) == RATES_KEPT_MAX


def test_refusals_are_counted_by_limit() -> None:
    met = LimitsMet()
    met.count(OverLimit("clients", "too many"))
    met.count(OverLimit("clients", "too many"))
    met.count(Busy("something else"))
    assert {limit: count for limit, count in met.items() if count} == {"clients": 2}
