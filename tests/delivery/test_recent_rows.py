"""Rows that were made a moment ago: read from memory while they stand, and never beyond their bound."""

from __future__ import annotations

import pytest

from quarry_mq.server.delivery import Delivered, InFlightTable, redelivery_timers
from tests.delivery.broker import GROUP, TOPIC, DeliveryBench


def received(bench: DeliveryBench, count: int) -> list[Delivered]:
    for number in range(count):
        bench.send(b"%d" % number, queue=number % bench.queues)
    return list(bench.receive(batch=count).messages)


def recent_of(bench: DeliveryBench) -> int:
    [subscription] = bench.delivery._subscriptions
    kept = sum(len(progress.recent) for progress in subscription.queues.values())
    assert len(bench.delivery._deliveries._recent) == kept
    return kept


def test_an_acknowledgement_soon_after_reads_no_row(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = DeliveryBench()
    messages = received(bench, 8)
    assert recent_of(bench) == 8

    def read(*_: object) -> None:
        raise AssertionError("a row was read")

    with monkeypatch.context() as patched:
        patched.setattr(InFlightTable, "get", read)
        patched.setattr(InFlightTable, "get_many", read)
        assert bench.acknowledge_all([each.receipt_handle for each in messages[:6]]) == [True] * 6
        bench.end_pass()
        bench.acknowledge(messages[6])
    assert recent_of(bench) == 1
    assert bench.delivery.inflight_count == 1


def test_too_many_are_forgotten_and_read_from_the_table(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(redelivery_timers, "RECENT_ROWS_MAX", 10)
    bench = DeliveryBench()
    first, second = received(bench, 8), received(bench, 8)
    assert recent_of(bench) <= 10
    messages = first + second
    assert bench.acknowledge_all([each.receipt_handle for each in messages]) == [True] * 16
    assert bench.delivery.inflight_count == 0
    assert recent_of(bench) == 0


def test_a_row_that_changed_is_read_as_it_is_now() -> None:
    bench = DeliveryBench(queues=1)
    [message] = received(bench, 1)
    handle = bench.delivery.change_invisible(GROUP, TOPIC, message.receipt_handle, 10_000).receipt_handle
    bench.end_pass()
    assert recent_of(bench) == 0
    assert bench.acknowledge_all([message.receipt_handle]) == [False], "it names the delivery before"
    assert bench.acknowledge_all([handle]) == [True]
