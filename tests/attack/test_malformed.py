"""Malformed requests of every call, thousands of each: every one is answered, and none costs anything for good."""

from __future__ import annotations

from random import Random
from typing import Final

import pytest

from bench.raw_client import RawClient
from tests.attack.conftest import Footprint
from tests.attack.mutation import Mutator, fields_of
from tests.attack.wire import Headers, block, call
from tests.e2e.broker import Broker
from tests.hostile.caller import METHODS, assert_unharmed
from tests.hostile.test_requests import good_request

DEPTH: Final = 200
"""Calls under way at a time."""

FEW: Final = 700
MANY: Final = 100_000
GROWTH_KIB: Final = 24 * 1024
STORED_KIB: Final = 64 * 1024
"""The store takes some of the changed sends. What they store lies in mapped segments and in RocksDB's memtables."""


def attack(broker: Broker, method: str, count: int, seed: int, who: Headers = ()) -> None:
    """So many malformed requests on one connection, all of which have to end as calls do. `who` says who calls."""
    valid = [good_request(each).SerializeToString() for each in (method, *METHODS)]
    mutator = Mutator(Random(seed), valid)
    head = block(method, *who)
    client = RawClient(broker.endpoint, 1)
    try:
        (connection,) = client.connections
        for first in range(0, count, DEPTH):
            last = min(first + DEPTH, count)
            for number in range(first, last):
                client.send(connection, call(number, head, mutator.next()))
            client.read_until(lambda last=last: connection.ended >= last)  # type: ignore[misc]
    finally:
        client.close()


def test_the_mutator_sees_the_fields_of_requests() -> None:
    data = good_request("SendMessage").SerializeToString()
    assert next((data[each.start], each.kind) for each in fields_of(data)) == (0x0A, 2)
    assert len(fields_of(data)) >= 5


def test_mutations_differ_and_are_named_by_their_seed() -> None:
    valid = [good_request(each).SerializeToString() for each in METHODS]
    first, again = (Mutator(Random(1), valid) for _ in range(2))
    made = [first.next() for _ in range(500)]
    assert made == [again.next() for _ in range(500)]
    assert len(set(made)) > 400


def test_malformed_requests_are_answered(broker: Broker) -> None:
    """A few of each call."""
    for method in METHODS:
        attack(broker, method, FEW, seed=1)
    before = Footprint.of(broker)
    for method in METHODS:
        attack(broker, method, FEW, seed=2)
    Footprint.of(broker).assert_kept(before, growth_kib=GROWTH_KIB)
    assert_no_accident(broker)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_hundred_thousand_malformed_requests_of_each_call_are_answered(broker: Broker) -> None:
    for method in METHODS:
        attack(broker, method, MANY // 10, seed=3)
    before = Footprint.of(broker)
    for method in METHODS:
        attack(broker, method, MANY, seed=4)
        print(method, Footprint.of(broker))
    Footprint.of(broker).assert_kept(before, growth_kib=STORED_KIB)
    assert_no_accident(broker)


def assert_no_accident(broker: Broker) -> None:
    """No handler has raised what it does not raise on purpose, nothing was answered with a fault of the broker."""
    failed = [line for line in broker.get("/metrics")[1].splitlines() if line.startswith("quarry_front_calls_failed")]
    assert not any("INTERNAL" in line for line in failed), failed
    broker.assert_no_stack_trace()
    assert_unharmed(broker)
