"""Put the figures of all members together: pages of topics and groups, and the last hour.

Topics and groups are the same on all members, their messages are not. So messages, bytes and rates are sums, and lags
the longest of all. What a member that answered does not know makes the whole unknown: a sum without it would be wrong.
A member that did not answer is named beside the figures.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Awaitable, Callable, Iterable, Sequence
from math import isnan, nan
from typing import Any, Final, NamedTuple, TypeVar

from google.protobuf.message import Message

from quarry_mq.protocol.proto.quarry.admin.v1 import members_pb2 as members_pb
from quarry_mq.protocol.proto.quarry.admin.v1 import overview_pb2 as pb
from quarry_mq.server.admin.pages import GROUPS_SHOWN, LIMIT_DEFAULT, LIMIT_MAX, TOPICS_SHOWN
from quarry_mq.server.admin.stats import INTERVAL_MS
from quarry_mq.server.admin_port.cluster.relay import Part
from quarry_mq.server.cluster.peers import CallEnded

Ask = Callable[[str, bytes], Awaitable[list[Part]]]
"""Make a call, `Service/Method` with a serialized request, on all members."""

TOPICS: Final = "OverviewService/ListTopicFigures"
GROUPS: Final = "OverviewService/ListGroupFigures"
HISTORY: Final = "OverviewService/GetHistory"

OVERLAP_MS: Final = 2 * INTERVAL_MS
"""Other members' samples are read from so far before the requested time: they were taken at other moments."""

_Number = TypeVar("_Number", int, float)
_Message = TypeVar("_Message", bound=Message)


def sum_if_known(values: Iterable[_Number | None]) -> _Number | None:
    """Return the sum; None if one of the values is not known, or there are none."""
    found = list(values)
    known = [each for each in found if each is not None]
    return sum(known) if known and len(known) == len(found) else None


def most_if_known(values: Iterable[_Number | None]) -> _Number | None:
    """Return the largest value; None if one of the values is not known, or there are none."""
    found = list(values)
    known = [each for each in found if each is not None]
    return max(known) if known and len(known) == len(found) else None


def optional(message: Any, field: str) -> Any:
    """Return a field that may not be set, None then."""
    return getattr(message, field) if message.HasField(field) else None


def pair_of_members(pairs: Sequence[pb.PairFigures]) -> pb.PairFigures:
    """Put a group's figures in one topic together. A client is connected to each member, so it is counted once."""
    return pb.PairFigures(
        group=pairs[0].group,
        topic=pairs[0].topic,
        ready=sum_if_known(optional(each, "ready") for each in pairs),
        in_flight=sum_if_known(optional(each, "in_flight") for each in pairs),
        lag_ms=most_if_known(optional(each, "lag_ms") for each in pairs),
        received_per_second=sum_if_known(optional(each, "received_per_second") for each in pairs),
        consumers=max(each.consumers for each in pairs),
    )


def pairs_of_members(pairs: Iterable[pb.PairFigures], shown: int) -> list[pb.PairFigures]:
    """Put the pairs of all members together, by name, at most `shown`."""
    by_name: dict[tuple[str, str], list[pb.PairFigures]] = {}
    for each in pairs:
        by_name.setdefault((each.group, each.topic), []).append(each)
    return [pair_of_members(by_name[name]) for name in sorted(by_name)][:shown]


def count_of_pairs(
    counts: Sequence[int | None], lists: Sequence[Sequence[pb.PairFigures]], names: set[str]
) -> int | None:
    """Return how many names there are on all members: more than the members' lists have is known of one list alone."""
    if any(each is None for each in counts):
        return None
    if all(count == len(shown) for count, shown in zip(counts, lists, strict=True)):
        return len(names)
    return max(each for each in counts if each is not None)


def topic_of_members(parts: Sequence[pb.TopicFigures]) -> pb.TopicFigures:
    """Put the figures of one topic together."""
    stored = [each.last_stored_at_ms for each in parts if each.HasField("last_stored_at_ms")]
    return pb.TopicFigures(
        topic=parts[0].topic,
        messages=sum_if_known(optional(each, "messages") for each in parts),
        estimated_bytes=sum_if_known(optional(each, "estimated_bytes") for each in parts),
        sent_per_second=sum_if_known(optional(each, "sent_per_second") for each in parts),
        received_per_second=sum_if_known(optional(each, "received_per_second") for each in parts),
        last_stored_at_ms=max(stored) if stored else None,
        groups=pairs_of_members((pair for each in parts for pair in each.groups), GROUPS_SHOWN),
        group_count=count_of_pairs(
            [optional(each, "group_count") for each in parts],
            [each.groups for each in parts],
            {pair.group for each in parts for pair in each.groups},
        ),
    )


def group_of_members(parts: Sequence[pb.GroupFigures]) -> pb.GroupFigures:
    """Put the figures of one group together."""
    return pb.GroupFigures(
        group=parts[0].group,
        consumers=max(each.consumers for each in parts),
        topics=pairs_of_members((pair for each in parts for pair in each.topics), TOPICS_SHOWN),
        topic_count=count_of_pairs(
            [optional(each, "topic_count") for each in parts],
            [each.topics for each in parts],
            {pair.topic for each in parts for pair in each.topics},
        ),
        ready=sum_if_known(optional(each, "ready") for each in parts),
        in_flight=sum_if_known(optional(each, "in_flight") for each in parts),
        lag_ms=most_if_known(optional(each, "lag_ms") for each in parts),
        dead_letters=sum_if_known(optional(each, "dead_letters") for each in parts),
    )


def topic_weight(order: int, topic: pb.TopicFigures) -> float:
    """Return how heavy a topic is in an order other than that by name."""
    if order == pb.FIGURE_ORDER_LAG:
        return max((each.lag_ms for each in topic.groups), default=0)
    return topic.sent_per_second + topic.received_per_second


def group_weight(order: int, group: pb.GroupFigures) -> float:
    """Return how heavy a group is in an order other than that by name."""
    if order == pb.FIGURE_ORDER_LAG:
        return group.lag_ms or max((each.lag_ms for each in group.topics), default=0)
    return sum(each.received_per_second for each in group.topics)


LARGEST: Final = frozenset({"clients", "loop_late_seconds"})
"""The largest value of these series stands for all members, as with those of lags, percents and delays."""

LARGEST_ENDS: Final = ("_percent", "_ms", "lag_seconds")


class _Samples(NamedTuple):
    """The history of one member."""

    at_ms: Sequence[int]
    values: dict[str, Sequence[float]]

    def near(self, name: str, at_ms: int) -> float:
        """Return the sample of a series nearest to a time, NaN without one within an interval."""
        values = self.values.get(name)
        if not values:
            return nan
        index = bisect_left(self.at_ms, at_ms)
        near = min(
            (each for each in (index - 1, index) if 0 <= each < len(values)), key=lambda i: abs(self.at_ms[i] - at_ms)
        )
        return values[near] if abs(self.at_ms[near] - at_ms) < INTERVAL_MS else nan


def history_of_members(parts: Sequence[pb.History], after_ms: int | None) -> members_pb.HistoryOfMembers:
    """Put the last hours of members together, at whole intervals since the epoch behind `after_ms`."""
    samples = [_Samples(list(each.at_ms), {one.name: list(one.values) for one in each.series}) for each in parts]
    at_ms = sorted({each // INTERVAL_MS * INTERVAL_MS for part in samples for each in part.at_ms})
    at_ms = [each for each in at_ms if after_ms is None or each > after_ms]
    units = {one.name: one.unit for each in parts for one in each.series}
    return members_pb.HistoryOfMembers(
        interval_ms=INTERVAL_MS,
        at_ms=at_ms,
        series=[
            pb.Series(name=name, unit=unit, values=[_together(name, samples, each) for each in at_ms])
            for name, unit in units.items()
        ],
    )


def _together(name: str, samples: Sequence[_Samples], at_ms: int) -> float:
    known = [each for each in (part.near(name, at_ms) for part in samples) if not isnan(each)]
    if not known:
        return nan
    return max(known) if name in LARGEST or name.endswith(LARGEST_ENDS) else sum(known)


class StatsOfMembers:
    """Asks all members for their figures, for one caller."""

    def __init__(self, ask: Ask) -> None:
        self._ask = ask

    async def topics(self, request: pb.ListTopicFiguresRequest) -> members_pb.TopicFiguresOfMembers:
        """Return a page of topics."""
        parts = await self._ask(TOPICS, request.SerializeToString())
        pages = _parsed(pb.ListTopicFiguresResponse, parts)
        own, names = _own(pages), _names(request, [[each.topic.name for each in page.topics] for page, _ in pages])
        if names is not None:
            asked = pb.ListTopicFiguresRequest(names=names)
            parts = await self._ask(TOPICS, asked.SerializeToString())
            pages = _parsed(pb.ListTopicFiguresResponse, parts)
        by_name: dict[str, list[pb.TopicFigures]] = {}
        for each in (topic for page, _ in pages for topic in page.topics):
            by_name.setdefault(each.topic.name, []).append(each)
        topics = [topic_of_members(each) for each in by_name.values()]
        has_more = own is not None and own.has_more
        if request.order and not request.names:
            topics.sort(key=lambda each: (-topic_weight(request.order, each), each.topic.name))
            has_more, topics = has_more or len(topics) > _limit(request), topics[: _limit(request)]
        return members_pb.TopicFiguresOfMembers(
            topics=topics,
            has_more=has_more,
            matching=0 if own is None else own.matching,
            members=map(member_part, parts),
        )

    async def groups(self, request: pb.ListGroupFiguresRequest) -> members_pb.GroupFiguresOfMembers:
        """Return a page of groups."""
        parts = await self._ask(GROUPS, request.SerializeToString())
        pages = _parsed(pb.ListGroupFiguresResponse, parts)
        own, names = _own(pages), _names(request, [[each.group.name for each in page.groups] for page, _ in pages])
        if names is not None:
            asked = pb.ListGroupFiguresRequest(names=names)
            parts = await self._ask(GROUPS, asked.SerializeToString())
            pages = _parsed(pb.ListGroupFiguresResponse, parts)
        by_name: dict[str, list[pb.GroupFigures]] = {}
        for each in (group for page, _ in pages for group in page.groups):
            by_name.setdefault(each.group.name, []).append(each)
        groups = [group_of_members(each) for each in by_name.values()]
        has_more = own is not None and own.has_more
        if request.order and not request.names:
            groups.sort(key=lambda each: (-group_weight(request.order, each), each.group.name))
            has_more, groups = has_more or len(groups) > _limit(request), groups[: _limit(request)]
        return members_pb.GroupFiguresOfMembers(
            groups=groups,
            has_more=has_more,
            matching=0 if own is None else own.matching,
            members=map(member_part, parts),
        )

    async def history(self, request: pb.GetHistoryRequest) -> members_pb.HistoryOfMembers:
        """Return the last hour."""
        after_ms = request.after_ms if request.HasField("after_ms") else None
        asked = pb.GetHistoryRequest()
        asked.CopyFrom(request)
        if after_ms is not None:
            asked.after_ms = max(0, after_ms - OVERLAP_MS)
        parts = await self._ask(HISTORY, asked.SerializeToString())
        found = history_of_members([each for each, _ in _parsed(pb.History, parts)], after_ms)
        found.members.extend(map(member_part, parts))
        return found


def member_part(part: Part) -> members_pb.MemberPart:
    """Say whether a member's figures are in a sum."""
    if part.is_failed:
        return members_pb.MemberPart(name=part.member, is_self=part.is_self, code=part.code, problem=part.problem)
    return members_pb.MemberPart(name=part.member, is_self=part.is_self)


def _parsed(message: type[_Message], parts: Sequence[Part]) -> list[tuple[_Message, bool]]:
    """Return the answers, each with whether it is this member's own, which comes first.

    Raises CallEnded as this member's own part did: what is wrong with a request is told as such.
    """
    for each in parts:
        if each.is_self and each.is_failed:
            raise CallEnded(each.code, each.problem)
    found = [(message.FromString(each.answer), each.is_self) for each in parts if each.answer is not None]
    return sorted(found, key=lambda each: not each[1])


def _own(pages: Sequence[tuple[_Message, bool]]) -> _Message | None:
    return next((page for page, is_self in pages if is_self), None)


def _names(
    request: pb.ListTopicFiguresRequest | pb.ListGroupFiguresRequest, pages: Sequence[list[str]]
) -> list[str] | None:
    """Return the names whose figures have to be asked for once more; None if all pages are of the same names.

    Members may know a name a moment before others, and in an order other than that by name each has its own heaviest.
    """
    if request.names or all(each == pages[0] for each in pages):
        return None
    if request.order:
        return list(dict.fromkeys(name for page in pages for name in page))[:LIMIT_MAX]
    return pages[0]


def _limit(request: pb.ListTopicFiguresRequest | pb.ListGroupFiguresRequest) -> int:
    return min(request.limit or LIMIT_DEFAULT, LIMIT_MAX)
