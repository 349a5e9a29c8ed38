"""Rates of the topics and groups that are counted one by one."""

from __future__ import annotations

from quarry_mq.protocol.clock import ManualClock
from quarry_mq.server.counters import RecentRates, Traffic
from quarry_mq.store.message import Appended, PhysicalOffset, QueueOffset


class Load:
    """Two rows of each kind, and what is counted in them."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.traffic = Traffic(topics_max=2, groups_max=2)
        self.rates = RecentRates(self.traffic, self.clock)

    def send(self, topic: str, messages: int, message_type: str = "normal") -> None:
        appended = [Appended(QueueOffset(0), PhysicalOffset(0), 100, 0)] * messages
        self.traffic.sent(topic, message_type, appended)

    def wait(self, seconds: float) -> None:
        self.clock.advance(seconds)
        self.rates.sample()


def test_they_are_of_the_last_ten_seconds() -> None:
    load = Load()
    load.send("orders", 1_000)
    for _ in range(6):
        load.wait(5)
    load.send("orders", 50)
    load.send("orders", 50, "fifo")
    load.wait(5)
    load.clock.advance(2)
    assert load.rates.now().sent_to("orders") == 100 / 12


def test_a_topic_without_a_row_has_nothing_as_long_as_no_other_has() -> None:
    load = Load()
    load.send("a", 1)
    assert load.rates.now().sent_to("b") == 0.0
    load.send("b", 10)
    load.send("c", 20)
    load.wait(10)
    rates = load.rates.now()
    assert rates.sent_to("b") == 1.0
    assert (rates.sent_to("c"), rates.sent_to("d")) == (None, None), (
        "one of them is c, and the count does not say which"
    )
    assert set(rates.sent) == {"a", "b"}
    for _ in range(3):
        load.wait(10)
    assert load.rates.now().sent_to("d") == 0.0


def test_what_groups_receive_counts_with_their_retry_topics() -> None:
    load = Load()
    load.traffic.received("billing", "orders", 30, 1, is_retry=False)
    load.traffic.received("billing", "orders", 20, 1, is_retry=True)
    load.wait(10)
    rates = load.rates.now()
    assert rates.received_of("billing", "orders") == 5.0
    assert rates.received_by(["audit", "billing"], "orders") == 5.0
    load.traffic.received("audit", "orders", 10, 1, is_retry=False)
    load.clock.advance(10)
    rates = load.rates.now()
    assert rates.received_by(["billing"], "orders") == 2.5
    assert rates.received_by(["audit", "billing"], "orders") is None


def test_a_row_that_begins_again_has_no_negative_rate() -> None:
    load = Load()
    load.send("orders", 1_000)
    load.wait(10)
    load.traffic.review(lambda _: False, lambda _: False)
    load.send("orders", 20)
    load.clock.advance(10)
    assert load.rates.now().sent_to("orders") in (1.0, 2.0)
