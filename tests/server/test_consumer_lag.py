"""Consumer lag is measured a little at a time."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from quarry_mq.kv import EngineCorrupt, EngineFull
from quarry_mq.server.counters import OTHER
from quarry_mq.server.delivery import retry_topic_name
from quarry_mq.server.delivery.open_subscriptions import IDLE_SUBSCRIPTION_S
from quarry_mq.server.lag import consumer_lag
from quarry_mq.server.lag.consumer_lag import ConsumerLag, LagTotals, PairLag
from quarry_mq.server.lag.measurement import GroupTopic
from quarry_mq.server.observability.metrics.rocketmq import Families, lag_metrics
from quarry_mq.store.message import QueueBounds, QueueId, QueueOffset
from quarry_mq.store.metadata import ConsumerOffsetTable
from quarry_mq.store.metadata.lite import light_queue_name
from tests.delivery.broker import GROUP, TOPIC, DeliveryBench
from tests.delivery.test_troubles import fail_writes, heal_writes


class Lag:
    """The lag of a delivery bench; all topics have as many queues as it says."""

    def __init__(self, bench: DeliveryBench, pairs_max: int = 10, stored_groups: Sequence[str] = ()) -> None:
        self.bench = bench
        offsets = ConsumerOffsetTable(bench.engine)
        self.watched = ConsumerLag(
            bench.delivery,
            bench.source,
            pairs_max=pairs_max,
            clock=bench.clock,
            queue_count=lambda _: bench.queues,
            reads=offsets.reads,
            stored=lambda: (
                GroupTopic(group, topic)
                for group in stored_groups
                for topic in offsets.topics_of(group, light_queues=False)
            ),
        )

    def round(self) -> dict[str, PairLag]:
        """Make one sweep and return its pairs, by group."""
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


def test_a_group_whose_consumers_are_gone_is_seen_to_fall_after() -> None:
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
    bench.delivery.delete_group(GROUP)
    assert not lag.round()


def test_the_pairs_with_the_largest_lag_are_named_and_the_others_summed_up() -> None:
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
    """rocketmq-dashboard#4516: an age that nobody knows is none, and no healthy 0."""
    bench = DeliveryBench(queues=1)
    start(bench, GROUP)
    bench.send(b"x")
    bench.source.unreadable.add(0)
    lag = Lag(bench)
    found = lag.round()[GROUP]
    assert (found.ready, found.lag_ms, found.queueing_ms) == (1, None, None)
    told = {metric.name: metric.samples for metric in lag_metrics(Families(cluster="c", node_id="n"), [found])}
    assert [sample.value for sample in told["rocketmq_consumer_lag_messages"]] == [1]
    assert told["rocketmq_consumer_lag_latency"] == []
    assert told["rocketmq_consumer_queueing_latency_milliseconds"] == []


def test_one_age_that_is_not_known_makes_that_of_all_others_unknown() -> None:
    """rocketmq-dashboard#4516"""
    bench = DeliveryBench(queues=1)
    start(bench, "one", OTHER)
    bench.send(b"x")
    bench.receive(group="one")
    bench.source.unreadable.add(0)
    found = Lag(bench, pairs_max=0).round()[OTHER]
    assert (found.ready, found.in_flight, found.lag_ms, found.queueing_ms) == (1, 1, None, None)


def test_a_group_whose_queue_cannot_be_read_is_told_of_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """rocketmq-dashboard#4516: nor as it was before, and no others are without it."""
    bench = DeliveryBench(queues=1)
    start(bench, "one", "two", "three")
    for group in ("elsewhere", "there, too"):
        bench.delivery.start_group(group, "others", range(1))
        bench.send(b"x", topic="others")
    lag = Lag(bench, pairs_max=1)
    assert set(lag.round()) == {"elsewhere", OTHER}
    bounds = bench.source.bounds

    def refusing(queue: QueueId) -> QueueBounds:
        if queue.topic == TOPIC:
            raise EngineCorrupt("a table is damaged")
        return bounds(queue)

    bench.send(b"x")
    monkeypatch.setattr(bench.source, "bounds", refusing)
    with pytest.raises(EngineCorrupt):
        lag.round()
    assert [(each.group, each.ready) for each in lag.watched.pairs] == [("elsewhere", 2)]


def test_all_queues_count_when_the_first_thing_after_a_restart_is_an_acknowledgement() -> None:
    """rmq#10953: a part of the queues is no answer."""
    bench = DeliveryBench(queues=4)
    start(bench, GROUP)
    for number in range(8):
        bench.send(b"x", queue=number % 4)
    first, _ = bench.receive(batch=2).messages
    bench.restart()
    bench.acknowledge(first)
    found = Lag(bench).round()[GROUP]
    assert (found.ready, found.in_flight) == (6, 1)


def test_queues_that_a_topic_has_got_count_before_anybody_asks_for_them() -> None:
    """rmq#8764: what was sent there was not told of."""
    bench = DeliveryBench(queues=1)
    start(bench, GROUP)
    lag = Lag(bench)
    lag.round()
    bench.queues = 3
    for number in range(3):
        bench.send(b"x", queue=number)
    assert lag.round()[GROUP].ready == 3
    bench.advance(IDLE_SUBSCRIPTION_S + 1)
    bench.delivery.drop_idle_subscriptions()
    bench.send(b"x", queue=2)
    assert lag.round()[GROUP].ready == 4


def test_retry_topics_that_come_while_a_group_is_away_count() -> None:
    bench = DeliveryBench(queues=1)
    start(bench, GROUP)
    lag = Lag(bench)
    lag.round()
    bench.advance(IDLE_SUBSCRIPTION_S + 1)
    bench.delivery.drop_idle_subscriptions()
    bench.send(b"x", topic=retry_topic_name(GROUP, TOPIC))
    lag.round()
    assert [(each.is_retry, each.ready) for each in lag.watched.pairs] == [(True, 1), (False, 0)]


def test_retry_topics_count_with_the_topic_that_they_are_beside() -> None:
    bench = DeliveryBench(queues=1)
    start(bench, GROUP)
    bench.send(b"a")
    bench.send(b"b")
    bench.receive(batch=1)
    bench.send(b"x", topic=retry_topic_name(GROUP, TOPIC))
    lag = Lag(bench)
    now_ms = bench.clock.wall_ms()  # the bench's records were stored at the beginning of time
    assert (lag.watched.found, lag.watched.totals) == ({}, None)
    lag.round()
    together = PairLag(GROUP, TOPIC, False, ready=2, in_flight=1, lag_ms=now_ms, queueing_ms=now_ms, done=0)
    assert lag.watched.found == {(GROUP, TOPIC): together}
    assert lag.watched.totals == (2, 1, now_ms)


def measured(lag: Lag, group: str, meanwhile: Callable[[], object] = lambda: None) -> PairLag | None:
    """Measure the lag of a group; `meanwhile` is called at each step."""
    steps = lag.watched.measure(GroupTopic(group, TOPIC))
    while True:
        try:
            next(steps)
            meanwhile()
        except StopIteration as end:
            found: PairLag | None = end.value
            return found


def test_one_group_is_looked_at_whether_or_not_it_is_in_memory() -> None:
    bench = DeliveryBench(queues=2)
    start(bench, GROUP)
    for number in range(6):
        bench.send(b"%d" % number, queue=number % 2)
    bench.receive(batch=2)
    lag = Lag(bench)
    there = measured(lag, GROUP)
    assert there is not None
    assert (there.ready, there.in_flight) == (4, 2)
    assert there == lag.round()[GROUP]
    bench.restart()
    again = Lag(bench)
    assert measured(again, GROUP) == there
    assert measured(again, "nobody") is None
    assert again.round() == {}, "it is not taken for one that was in memory"


def test_totals_are_not_known_where_a_group_cannot_be_read(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = DeliveryBench(queues=1)
    start(bench, GROUP)
    bench.send(b"a")
    lag = Lag(bench)
    lag.round()
    assert totals(lag) == (1, 0, bench.clock.wall_ms())
    monkeypatch.setattr(bench.source, "bounds", _unreadable)
    with pytest.raises(EngineCorrupt):
        lag.round()
    assert totals(lag) is None
    assert not lag.watched.found


def totals(lag: Lag) -> LagTotals | None:
    return lag.watched.totals


def _unreadable(_: QueueId) -> QueueBounds:
    raise EngineCorrupt("no bounds")


def test_messages_that_expired_while_they_were_in_flight_are_no_lag() -> None:
    bench = DeliveryBench(queues=1)
    start(bench, GROUP)
    for _ in range(1_200):
        bench.send(b"x")
    while bench.receive(batch=32).messages:
        pass
    lag = Lag(bench)
    assert lag.round()[GROUP].in_flight == 1_200
    bench.source.minimum[QueueId(TOPIC, 0)] = 1_000
    found = lag.round()[GROUP]
    assert (found.ready, found.in_flight) == (0, 200)
    bench.source.minimum[QueueId(TOPIC, 0)] = 1_200
    found = lag.round()[GROUP]
    assert (found.ready, found.in_flight, found.lag_ms) == (0, 0, 0)


def test_a_group_that_is_made_again_has_no_lag_of_the_old_one() -> None:
    bench = DeliveryBench(queues=1)
    start(bench, GROUP, "other")
    lag = Lag(bench)
    for _ in range(3):
        bench.send(b"x")
    bench.receive(batch=2)
    lag.round()
    bench.delivery.delete_group(GROUP)
    assert list(lag.round()) == ["other"]
    bench.delivery.delete_subscription("other", TOPIC)
    assert not lag.round()
    start(bench, GROUP)
    assert lag.round()[GROUP].in_flight == 3


def test_a_client_that_commits_an_earlier_offset_has_no_message_counted_twice() -> None:
    bench = DeliveryBench(queues=1)
    start(bench, GROUP)
    for _ in range(5):
        bench.send(b"x")
    before, *_ = bench.receive(batch=4).messages
    lag = Lag(bench)
    lag.round()
    bench.delivery.commit_offset(GROUP, QueueId(TOPIC, 0), QueueOffset(1))
    bench.end_pass()
    assert (lag.round()[GROUP].ready, lag.round()[GROUP].in_flight) == (4, 1)
    again = bench.receive(batch=3)
    assert (lag.round()[GROUP].ready, lag.round()[GROUP].in_flight) == (1, 4)
    for each in (before, *again.messages):
        bench.acknowledge(each)
    assert (lag.round()[GROUP].ready, lag.round()[GROUP].in_flight) == (1, 0)
    assert bench.delivery.inflight_count == 0


def test_light_queues_do_not_count() -> None:
    """They come and go with each message, so a sum of them would be one of chance."""
    bench = DeliveryBench(queues=1)
    start(bench, GROUP)
    name = light_queue_name("chats", "a")
    bench.send(b"x", topic=name)
    bench.delivery.light_queues.open(GROUP, name)
    bench.end_pass()
    assert bench.delivery.subscription_count == 2
    assert {key: each.ready for key, each in Lag(bench, pairs_max=0).round().items()} == {OTHER: 0}


def test_deliveries_that_could_not_be_written_are_not_counted_before_they_are() -> None:
    """A full disk: memory knows of deliveries that no row tells of."""
    bench = DeliveryBench(queues=1)
    start(bench, GROUP)
    for _ in range(3):
        bench.send(b"x")
    lag = Lag(bench)
    fail_writes(bench, EngineFull("No space left on device"))
    assert isinstance(bench.receive(batch=1).error, EngineFull)
    found = lag.round()[GROUP]
    assert (found.in_flight, found.lag_ms) == (None, None)
    heal_writes(bench)
    assert len(bench.receive(batch=1).messages) == 1
    assert lag.round()[GROUP].in_flight == 2


def test_groups_that_nobody_has_opened_since_the_start_are_counted() -> None:
    """Unknown shown as 0: after a restart a group without consumers looked as if nothing waited for it."""
    bench = DeliveryBench(queues=2)
    start(bench, GROUP)
    for number in range(10):
        bench.send(b"%d" % number, queue=number % 2)
    bench.receive(batch=4)
    bench.restart()
    lag = Lag(bench, stored_groups=[GROUP])
    found = lag.round()[GROUP]
    assert (found.ready, found.in_flight, lag.watched.is_whole) == (6, 4, True)
    assert lag.round()[GROUP] == found


def test_retry_topics_from_before_the_start_count_as_part_of_their_topic() -> None:
    bench = DeliveryBench(queues=1)
    start(bench, GROUP)
    bench.send(b"a", topic=retry_topic_name(GROUP, TOPIC))
    bench.receive(batch=1)
    bench.restart()
    lag = Lag(bench, stored_groups=[GROUP])
    lag.round()
    assert list(lag.watched.found) == [GroupTopic(GROUP, TOPIC)]


def test_where_there_are_too_many_groups_their_sum_is_not_that_of_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(consumer_lag, "LEFT_PAIRS_MAX", 1)
    bench = DeliveryBench(queues=1)
    start(bench, GROUP, "other")
    bench.send(b"a")
    bench.restart()
    lag = Lag(bench, stored_groups=[GROUP, "other"])
    lag.round()
    assert (len(lag.watched.found), lag.watched.is_whole) == (1, False)


def test_a_message_that_is_handed_out_while_lag_is_measured_is_not_missed() -> None:
    bench = DeliveryBench(queues=2)
    start(bench, GROUP)
    for number in range(4):
        bench.send(b"%d" % number, queue=number % 2)
    found = measured(Lag(bench), GROUP, lambda: bench.receive(batch=4))
    assert found is not None
    assert found.lag >= 4
