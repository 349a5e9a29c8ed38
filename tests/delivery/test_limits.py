"""Limits of delivery: who is over one is told so, and whoever is not gets what there is."""

from __future__ import annotations

from collections import Counter

import pytest

from quarry_mq.protocol.clock import ManualClock
from quarry_mq.server.delivery import InFlightTable, fetch
from quarry_mq.server.delivery.state.subscription import FILTERS_LENGTH_MAX
from quarry_mq.server.errors import OverLimit
from quarry_mq.server.filters import SqlFilter, TagFilter
from quarry_mq.server.settings.broker_settings import BrokerSettings
from quarry_mq.server.settings.sections import DeliverySection, LimitsSection
from quarry_mq.store.message import ConsumeQueueEntry, QueueId, QueueOffset
from tests.delivery.broker import GROUP, TOPIC, DeliveryBench, ListedMessages


def over(limit: str, error: Exception | None) -> None:
    assert isinstance(error, OverLimit)
    assert error.limit == limit


def test_a_group_that_acknowledges_nothing_gets_so_much_and_no_more() -> None:
    bench = DeliveryBench(queues=1, settings=BrokerSettings(limits=LimitsSection(in_flight_per_group=3)))
    for number in range(6):
        bench.send(b"%d" % number)
    first = bench.receive(invisible_s=60)
    assert first.bodies == [b"0", b"1", b"2"]
    with pytest.raises(OverLimit) as refused:
        bench.receive()
    over("in_flight_per_group", refused.value)
    bench.delivery.acknowledge(GROUP, TOPIC, first.messages[0].receipt_handle)
    bench.end_pass()
    assert bench.receive(invisible_s=60).bodies == [b"3"]


def test_what_comes_back_is_delivered_all_the_same() -> None:
    """Or a group whose consumers died could never go on."""
    bench = DeliveryBench(queues=1, settings=BrokerSettings(limits=LimitsSection(in_flight_per_group=3)))
    for number in range(6):
        bench.send(b"%d" % number)
    bench.receive(invisible_s=5)
    bench.advance(6)
    again = bench.receive(invisible_s=5)
    assert again.bodies == [b"0", b"1", b"2"]
    assert {each.attempt for each in again.messages} == {2}


def test_a_receive_that_waits_ends_when_its_group_has_too_much() -> None:
    bench = DeliveryBench(queues=1, settings=BrokerSettings(limits=LimitsSection(in_flight_per_group=1)))
    first, second = bench.receive(polling_s=60), bench.receive(polling_s=60)
    for number in range(3):
        bench.send(b"%d" % number)
    bench.end_pass()
    assert first.bodies == [b"0"]
    over("in_flight_per_group", second.error)
    assert bench.delivery.waiting_polls == 0


def test_other_groups_are_not_concerned_and_restarts_do_not_forget() -> None:
    bench = DeliveryBench(queues=2, settings=BrokerSettings(limits=LimitsSection(in_flight_per_group=2)))
    for number in range(4):
        bench.send(b"%d" % number)
    bench.receive(invisible_s=60)
    bench.restart()
    with pytest.raises(OverLimit):
        bench.receive()
    assert (
        len(
            bench.receive(
                group="others",
            ).bodies
        )
        == 2
    )
    counts = InFlightTable(bench.engine).stats().counts
    assert counts == Counter({GROUP: 2, "others": 2})
    bench.delivery.delete_group(GROUP)
    bench.end_pass()
    assert bench.delivery.inflight_count == 2


def test_receives_wait_so_many_for_each_client() -> None:
    bench = DeliveryBench(
        settings=BrokerSettings(
            delivery=DeliverySection(waiting_polls_max=3), limits=LimitsSection(waiting_polls_per_client=2)
        )
    )
    for _ in range(2):
        bench.receive(client="a", polling_s=10)
    with pytest.raises(OverLimit) as refused:
        bench.receive(client="a", polling_s=10)
    over("waiting_polls_per_client", refused.value)
    bench.receive(client="b", polling_s=10)
    with pytest.raises(OverLimit) as refused:
        bench.receive(client="c", polling_s=10)
    over("waiting_polls", refused.value)
    bench.advance(11)
    bench.receive(client="a", polling_s=10)


def test_pairs_of_group_and_topic_are_so_many() -> None:
    bench = DeliveryBench(settings=BrokerSettings(limits=LimitsSection(subscriptions=2)))
    for group in ("a", "b"):
        bench.receive(group=group)
    with pytest.raises(OverLimit) as refused:
        bench.receive(group="c")
    over("subscriptions", refused.value)
    bench.advance(301)
    bench.delivery.drop_idle_subscriptions()
    bench.receive(group="c")


def long_filter(number: int) -> SqlFilter:
    return SqlFilter.parse(f"a IN ('{number:05}', '" + "x" * 4_000 + "')")


def test_expressions_that_wait_are_so_long_together() -> None:
    """A filter takes up to 160 bytes of memory per character: ten thousand waiting receives, each with its own."""
    bench = DeliveryBench()
    length = len(long_filter(0).expression)
    waiting = FILTERS_LENGTH_MAX // length
    for number in range(10_000, 10_000 + waiting):
        bench.receive(wanted=long_filter(number), polling_s=10)
    with pytest.raises(OverLimit) as refused:
        bench.receive(wanted=long_filter(99_999), polling_s=10)
    over("waiting_filters", refused.value)
    bench.receive(wanted=TagFilter.parse("*"), polling_s=10)
    bench.advance(11)
    assert bench.delivery.waiting_polls == 0
    bench.receive(wanted=long_filter(99_999), polling_s=10)


def test_receives_with_the_same_expression_count_once() -> None:
    bench = DeliveryBench()
    for _ in range(1_000):
        bench.receive(wanted=long_filter(12_345), polling_s=10)
    assert bench.delivery.waiting_polls == 1_000


class SlowSource(ListedMessages):
    """Looking costs time, as it does."""

    def __init__(self, clock: ManualClock) -> None:
        super().__init__()
        self.clock = clock
        self.looks = 0

    def entries(self, queue: QueueId, start: QueueOffset, limit: int) -> list[ConsumeQueueEntry]:
        self.looks += 1
        self.clock.advance(0.004)
        return super().entries(queue, start, limit)


def one_pass(bench: DeliveryBench) -> None:
    callbacks, bench._pass[:] = list(bench._pass), []
    for callback in callbacks:
        callback()


def test_one_pass_looks_so_long_and_the_next_one_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """A thousand groups with expressions that match nothing held the loop up for as long as all of them looked."""
    monkeypatch.setattr(fetch, "ENTRIES_SCANNED_MAX", 10)
    bench = DeliveryBench(queues=1)
    bench.source = source = SlowSource(bench.clock)
    bench.restart()
    for number in range(100):
        bench.send(b"%d" % number, tag="other")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bench, "end_pass", lambda: None)
        for number in range(20):
            bench.receive(group=f"g{number}", tags="wanted", polling_s=100_000)
    for _ in range(10):
        before = source.looks
        one_pass(bench)
        assert 1 <= source.looks - before <= 4
    bench.end_pass()
    queue = QueueId(TOPIC, 0)
    assert {bench.delivery.next_offset(f"g{number}", queue) for number in range(20)} == {100}
    assert bench.delivery.waiting_polls == 20


class CountingSource(ListedMessages):
    def __init__(self) -> None:
        super().__init__()
        self.limits: list[int] = []

    def entries(self, queue: QueueId, start: QueueOffset, limit: int) -> list[ConsumeQueueEntry]:
        self.limits.append(limit)
        return super().entries(queue, start, limit)


@pytest.mark.parametrize(("tags", "looked_at"), [("*", [7]), ("wanted", [32])])
def test_without_a_filter_no_more_entries_are_read_than_messages_may_be_given(tags: str, looked_at: list[int]) -> None:
    bench = DeliveryBench(queues=1)
    bench.source = source = CountingSource()
    bench.restart()
    for number in range(100):
        bench.send(b"%d" % number, tag="wanted")
    bench.receive(tags=tags)
    source.limits.clear()
    assert len(bench.receive(tags=tags, batch=7).bodies) == 7
    assert source.limits == looked_at


def test_long_expressions_look_at_less_in_one_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetch, "ENTRIES_SCANNED_MAX", 160)
    bench = DeliveryBench(queues=1)
    for number in range(100):
        bench.send(b"%d" % number)
    monkeypatch.setattr(bench, "end_pass", lambda: None)
    for group, wanted, looked_at in (("short", SqlFilter.parse("a = 'x'"), 100), ("long", long_filter(1), 32)):
        bench.receive(group=group, wanted=wanted, polling_s=10)
        assert bench.delivery.next_offset(group, QueueId(TOPIC, 0)) == looked_at
