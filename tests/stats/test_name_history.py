"""The last hour of single topics and groups."""

from __future__ import annotations

from math import isnan

from quarry_mq.server.admin.name_history import Named, NameHistory
from quarry_mq.server.counters import OTHER, RatesNow
from quarry_mq.server.lag.consumer_lag import PairLag


class Broker:
    """Rates and lag as a test sets them."""

    def __init__(self) -> None:
        self.sent: dict[str, float] = {}
        self.received: dict[tuple[str, str], float] = {}
        self.pairs: list[PairLag] = []

    def now(self) -> RatesNow:
        return RatesNow(self.sent, self.received)


def lag(group: str, topic: str, ready: int, in_flight: int | None, lag_ms: int | None) -> PairLag:
    return PairLag(group, topic, is_retry=False, ready=ready, in_flight=in_flight, lag_ms=lag_ms, queueing_ms=0)


def last(names: NameHistory, kind: Named, name: str) -> list[float | None]:
    """The newest number of each series, None where it is not known; nothing without a sample."""
    values = [each.values[-1] for each in names.excerpt(kind, name).series if each.values]
    return [None if isnan(each) else each for each in values]


def test_pairs_are_added_up_by_topic_and_by_group() -> None:
    broker = Broker()
    names = NameHistory(broker, broker)
    broker.sent = {"orders": 5.0, OTHER: 9.0}
    broker.received = {("billing", "orders"): 2.0, ("audit", "orders"): 1.0, ("billing", "parcels"): 4.0}
    broker.pairs = [
        lag("billing", "orders", 7, 1, 3_000),
        lag("audit", "orders", 20, 0, 9_000),
        lag("billing", "parcels", 1, None, None),
        lag(OTHER, OTHER, 1_000, 5, 1),
    ]
    names.sample(10_000)

    assert last(names, Named.TOPIC, "orders") == [5.0, 3.0, 27, 1, 9.0]
    assert last(names, Named.TOPIC, "parcels") == [None, 4.0, 1, None, None]
    assert last(names, Named.GROUP, "billing") == [None, 6.0, 8, None, None]
    assert last(names, Named.GROUP, "audit") == [None, 1.0, 20, 0, 9.0]
    assert last(names, Named.TOPIC, OTHER) == []


def test_what_is_quiet_is_kept_until_its_room_is_wanted() -> None:
    broker = Broker()
    names = NameHistory(broker, broker, names_max=2)
    for at, busy in enumerate(({"a": 1.0, "b": 1.0}, {"a": 1.0}, {"a": 1.0, "c": 1.0, "d": 1.0})):
        broker.sent = dict(busy)
        names.sample(10_000 * at)

    assert list(names.excerpt(Named.TOPIC, "a").at_ms) == [0, 10_000, 20_000]
    assert list(names.excerpt(Named.TOPIC, "c", ["lag_seconds"]).at_ms) == [20_000]
    assert [len(names.excerpt(Named.TOPIC, name).at_ms) for name in ("b", "d")] == [0, 0]
