"""How far groups are behind, found out a little at a time."""

from __future__ import annotations

from kv import EngineFull
from server.consumer_lag import ConsumerLag, PairLag
from server.delivery.open_subscriptions import IDLE_SUBSCRIPTION_S
from server.top_counts import OTHER
from store.offsets import QueueId, QueueOffset
from tests.delivery.broker import GROUP, TOPIC, DeliveryBench
from tests.delivery.test_troubles import fail_writes, heal_writes


class Lag:
    """The lag of a delivery bench; what exists is what the test says."""

    def __init__(self, bench: DeliveryBench, pairs_max: int = 10) -> None:
        self.gone: set[str] = set()
        self.bench = bench
        self.watched = ConsumerLag(
            bench.delivery,
            bench.source,
            pairs_max=pairs_max,
            clock=bench.clock,
            topic_exists=lambda name: name not in self.gone,
            group_exists=lambda name: name not in self.gone,
        )

    def round(self) -> dict[str, PairLag]:
        """By group."""
        for _ in self.watched.steps():
            self.bench.end_pass()
        return {each.group: each for each in self.watched.pairs}


def start(bench: DeliveryBench, *groups: str) -> None:
    for group in groups:
        bench.receive(group=group)


def test_ready_and_in_flight_are_counted_apart() -> None:
    bench = DeliveryBench(queues=2)
    start(bench, GROUP)
    for number in range(10):
        bench.send(b"%d" % number, queue=number % 2)
    received = bench.receive(batch=4)
    lag = Lag(bench)
    assert (lag.round()[GROUP].ready, lag.round()[GROUP].in_flight) == (6, 4)
    bench.acknowledge(received.messages[0])
    assert (lag.round()[GROUP].ready, lag.round()[GROUP].in_flight) == (6, 3)


def test_what_was_in_flight_before_a_restart_is_counted() -> None:
    bench = DeliveryBench(queues=1)
    start(bench, GROUP)
    for number in range(1_200):
        bench.send(b"%d" % number)
    for _ in range(40):
        bench.receive(batch=32)
    bench.restart()
    start(bench, GROUP)
    lag = Lag(bench)
    assert lag.round()[GROUP].in_flight == 1_200
    bench.advance(31)
    [again] = bench.receive(batch=1).messages
    bench.acknowledge(again)
    assert lag.round()[GROUP].in_flight == 1_199


def test_an_offset_that_is_reset_takes_what_was_in_flight_with_it() -> None:
    bench = DeliveryBench(queues=1)
    start(bench, GROUP)
    bench.send(b"a")
    bench.send(b"b")
    bench.receive(batch=2)
    lag = Lag(bench)
    assert lag.round()[GROUP].in_flight == 2
    bench.delivery.reset_offset(GROUP, QueueId(TOPIC, 0), QueueOffset(0))
    bench.end_pass()
    found = lag.round()[GROUP]
    assert (found.ready, found.in_flight) == (2, 0)


def test_latencies_are_the_ages_of_the_oldest_messages() -> None:
    bench = DeliveryBench(queues=1)
    start(bench, GROUP)
    bench.send(b"first")
    bench.send(b"second")
    lag = Lag(bench)
    now_ms = bench.clock.wall_ms()  # the bench's records were stored at the beginning of time
    assert (lag.round()[GROUP].lag_ms, lag.round()[GROUP].queueing_ms) == (now_ms, now_ms)
    bench.receive(batch=1)
    assert lag.round()[GROUP].lag_ms == now_ms
    bench.receive(batch=1)
    assert (lag.round()[GROUP].lag_ms, lag.round()[GROUP].queueing_ms) == (now_ms, 0)


def test_messages_that_expired_are_not_ready() -> None:
    bench = DeliveryBench(queues=1)
    start(bench, GROUP)
    for _ in range(10):
        bench.send(b"x")
    bench.source.minimum[QueueId(TOPIC, 0)] = 7
    assert Lag(bench).round()[GROUP].ready == 3


def test_a_group_whose_consumers_are_gone_is_seen_to_fall_behind() -> None:
    bench = DeliveryBench(queues=1)
    start(bench, GROUP)
    lag = Lag(bench)
    bench.send(b"a")
    bench.receive()
    assert lag.round()[GROUP].in_flight == 1
    bench.advance(IDLE_SUBSCRIPTION_S + 1)
    bench.delivery.drop_idle_subscriptions()
    assert bench.delivery.subscription_count == 0
    bench.send(b"b")
    bench.send(b"c")
    found = lag.round()[GROUP]
    assert (found.ready, found.in_flight) == (2, 1)
    lag.gone.add(GROUP)
    assert not lag.round()


def test_the_furthest_behind_are_named_and_the_others_summed_up() -> None:
    bench = DeliveryBench(queues=1)
    start(bench, "slow", "slower", "quick", OTHER)
    for _ in range(8):
        bench.send(b"x")
    for group, taken in (("slow", 3), ("slower", 1), ("quick", 7), (OTHER, 8)):
        for each in bench.receive(group=group, batch=taken).messages:
            bench.delivery.acknowledge(group, TOPIC, each.receipt_handle)
    bench.end_pass()
    lag = Lag(bench, pairs_max=2)
    found = lag.round()
    assert {group: each.ready for group, each in found.items()} == {"slower": 7, "slow": 5, OTHER: 1}
    assert len(lag.watched.pairs) == 3


def test_a_record_that_cannot_be_read_has_no_age_and_stops_nothing() -> None:
    bench = DeliveryBench(queues=1)
    start(bench, GROUP)
    bench.send(b"x")
    bench.source.unreadable.add(0)
    found = Lag(bench).round()[GROUP]
    assert (found.ready, found.lag_ms) == (1, 0)


def test_deliveries_that_could_not_be_written_are_not_counted_before_they_are() -> None:
    """A full disk: memory knows of deliveries that no row tells of."""
    bench = DeliveryBench(queues=1)
    start(bench, GROUP)
    for _ in range(3):
        bench.send(b"x")
    lag = Lag(bench)
    fail_writes(bench, EngineFull("No space left on device"))
    assert isinstance(bench.receive(batch=1).error, EngineFull)
    assert lag.round()[GROUP].in_flight is None
    heal_writes(bench)
    assert len(bench.receive(batch=1).messages) == 1
    assert lag.round()[GROUP].in_flight == 2
