"""Figures of several members as one: sums where sums make sense, and unknown where a part is not known."""

from __future__ import annotations

import asyncio
from math import isnan, nan

import pytest

from quarry_mq.protocol.proto.quarry.admin.v1 import overview_pb2 as pb
from quarry_mq.protocol.proto.quarry.admin.v1.admin_pb2 import Group, Topic
from quarry_mq.server.admin_port.cluster.relay import Part
from quarry_mq.server.admin_port.cluster.stats import (
    StatsOfMembers,
    group_of_members,
    history_of_members,
    topic_of_members,
)

BUSIEST, LAG = pb.FIGURE_ORDER_BUSIEST, pb.FIGURE_ORDER_LAG


def pair(group: str, ready: int, lag_ms: int, consumers: int = 1) -> pb.PairFigures:
    return pb.PairFigures(group=group, topic="orders", ready=ready, in_flight=1, lag_ms=lag_ms, consumers=consumers)


def topic(name: str = "orders", **fields: object) -> pb.TopicFigures:
    return pb.TopicFigures(topic=Topic(name=name), **fields)  # type: ignore[arg-type]


def test_messages_and_rates_are_sums_and_lags_the_longest() -> None:
    whole = topic_of_members(
        [
            topic(messages=3, sent_per_second=1.5, last_stored_at_ms=5, group_count=1, groups=[pair("a", 2, 70)]),
            topic(
                messages=4,
                sent_per_second=2.0,
                last_stored_at_ms=9,
                group_count=2,
                groups=[pair("a", 5, 30, consumers=2), pair("b", 1, 10)],
            ),
        ]
    )
    assert (whole.messages, whole.sent_per_second, whole.last_stored_at_ms, whole.group_count) == (7, 3.5, 9, 2)
    first, second = whole.groups
    assert (first.group, first.ready, first.in_flight, first.lag_ms, first.consumers) == ("a", 7, 2, 70, 2)
    assert (second.group, second.ready, second.lag_ms) == ("b", 1, 10)


def test_a_part_that_is_not_known_makes_the_whole_unknown() -> None:
    whole = topic_of_members([topic(messages=3), topic(messages=4, estimated_bytes=7)])
    assert whole.messages == 7
    assert not whole.HasField("estimated_bytes")
    assert not whole.HasField("group_count")
    group = Group(name="a")
    both = group_of_members(
        [
            pb.GroupFigures(group=group, ready=3, dead_letters=1, lag_ms=5, topic_count=600),
            pb.GroupFigures(group=group, ready=4, dead_letters=0, topic_count=0),
        ]
    )
    assert (both.ready, both.dead_letters, both.topic_count) == (7, 1, 600)
    assert not both.HasField("lag_ms")
    assert not both.HasField("in_flight")


def test_samples_are_put_on_one_grid() -> None:
    one = pb.History(
        at_ms=[101_000, 111_000, 121_000],
        series=[
            pb.Series(name="sent_per_second", unit="messages/s", values=[1, 2, 3]),
            pb.Series(name="lag_seconds", unit="seconds", values=[5, nan, 1]),
        ],
    )
    other = pb.History(
        at_ms=[119_500],
        series=[
            pb.Series(name="sent_per_second", unit="messages/s", values=[10]),
            pb.Series(name="lag_seconds", unit="seconds", values=[2]),
        ],
    )
    whole = history_of_members([one, other], None)
    assert list(whole.at_ms) == [100_000, 110_000, 120_000]
    sent, lag = whole.series
    assert (sent.name, sent.unit, list(sent.values)) == ("sent_per_second", "messages/s", [1, 12, 13])
    assert list(lag.values) == [5, 2, 2]
    assert list(history_of_members([one, other], 110_000).at_ms) == [120_000]
    unknown = pb.History(at_ms=[101_000], series=[pb.Series(name="lag_seconds", unit="seconds", values=[nan])])
    assert isnan(history_of_members([unknown], None).series[0].values[0])


class Members:
    """Each has figures of topics; `m0` is the one that asks, and does not know the newest topic."""

    def __init__(self, **rates: dict[str, float]) -> None:
        self.rates = rates
        self.rounds = 0

    async def ask(self, _method: str, request: bytes) -> list[Part]:
        self.rounds += 1
        asked = pb.ListTopicFiguresRequest.FromString(request)
        parts = [
            Part(member, member == "m0", self._page(rates, asked).SerializeToString())
            for member, rates in self.rates.items()
        ]
        return [*parts, Part("m9", False, None, "UNAVAILABLE", "away: not heard of for 4 s")]

    @staticmethod
    def _page(rates: dict[str, float], asked: pb.ListTopicFiguresRequest) -> pb.ListTopicFiguresResponse:
        names = list(asked.names) or sorted(rates, key=(lambda name: -rates[name]) if asked.order else None)
        shown = [name for name in names if name in rates][: asked.limit or 50]
        return pb.ListTopicFiguresResponse(
            topics=[topic(name, sent_per_second=rates[name], received_per_second=0.0) for name in shown],
            has_more=len(shown) < len(rates),
            matching=len(rates),
        )


@pytest.mark.parametrize(
    ("order", "limit", "found", "rounds"),
    [
        (pb.FIGURE_ORDER_UNSPECIFIED, 2, [("a", 6.0), ("b", 7.0)], 1),
        (BUSIEST, 1, [("b", 7.0)], 2),
    ],
)
def test_the_busiest_of_all_are_those_with_the_largest_sums(
    order: pb.FigureOrder, limit: int, found: list[tuple[str, float]], rounds: int
) -> None:
    members = Members(m0={"a": 5.0, "b": 4.0}, m1={"a": 1.0, "b": 3.0, "c": 2.0})
    request = pb.ListTopicFiguresRequest(order=order, limit=limit)
    page = asyncio.run(StatsOfMembers(members.ask).topics(request))
    assert [(each.topic.name, each.sent_per_second) for each in page.topics] == found
    assert (page.has_more, page.matching, members.rounds) == (limit == 1, 2, rounds)
    assert [(each.name, each.is_self, each.code) for each in page.members] == [
        ("m0", True, ""),
        ("m1", False, ""),
        ("m9", False, "UNAVAILABLE"),
    ]
