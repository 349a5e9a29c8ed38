"""`quarry topic top` and `quarry group top` list topics and groups with their recent activity."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from enum import StrEnum
from typing import Annotated, Any, Final

import typer

from quarry_mq.cli.online.connection.administration import (
    known,
    known_rounded,
    known_seconds,
    known_time,
    listed,
    service_port,
)
from quarry_mq.cli.online.connection.arguments import ADMIN_DEFAULT, Admin, Json
from quarry_mq.cli.online.connection.members import AllMembers, name_missing
from quarry_mq.cli.terminal.output import print_rows
from quarry_mq.protocol.proto.quarry.admin.v1 import overview_pb2 as pb
from quarry_mq.protocol.proto.quarry.admin.v1.members_pb2_grpc import AllMembersServiceStub
from quarry_mq.protocol.proto.quarry.admin.v1.overview_pb2_grpc import OverviewServiceStub

CALL_TIMEOUT_S: Final = 60.0
PAGE_ROWS: Final = 100
"""Rows of a page: the broker bounds the work for each page, so larger pages have more unknown values."""
TOPIC_COLUMNS: Final = ("name", "messages", "sentPerSecond", "receivedPerSecond", "lagSeconds", "groups")
GROUP_COLUMNS: Final = ("name", "topics", "consumers", "ready", "inFlight", "lagSeconds", "deadLetters")


class OrderName(StrEnum):
    BUSIEST = "busiest"
    LAG = "lag"
    NAME = "name"


Contains = Annotated[
    str, typer.Option("--contains", metavar="TEXT", help="Only names that contain this text.", show_default=False)
]
OrderOption = Annotated[
    OrderName,
    typer.Option(
        "--order",
        metavar="busiest|lag|name",
        help="Order of the rows. Only rows that the broker counts individually are ordered by traffic or lag.",
    ),
]
Limit = Annotated[int, typer.Option("--limit", "-n", metavar="N", min=1, help="Maximum number of rows.")]

ORDERS: Final = {
    OrderName.BUSIEST: pb.FIGURE_ORDER_BUSIEST,
    OrderName.LAG: pb.FIGURE_ORDER_LAG,
    OrderName.NAME: pb.FIGURE_ORDER_UNSPECIFIED,
}


def top_topics(
    *,
    contains: Contains = "",
    order: OrderOption = OrderName.BUSIEST,
    limit: Limit = 20,
    system: Annotated[bool, typer.Option("--system", help="Include the broker's internal topics.")] = False,
    all_members: AllMembers = False,
    admin: Admin = ADMIN_DEFAULT,
    as_json: Json = False,
) -> None:
    """Show topics with their messages, messages per second, and the lag of the group that is furthest behind.

    Rates are those of the last ten seconds; `-` stands for an unknown value.
    """
    with service_port(admin, _stub(all_members=all_members)) as broker:
        request = pb.ListTopicFiguresRequest(contains=contains, order=ORDERS[order], include_system=system)
        found = _listed(broker.ListTopicFigures, request, "topics", lambda each: each.topic.name, limit)
        print_rows(map(_topic_fields, found), TOPIC_COLUMNS, as_json=as_json, kind="topics")


def top_groups(
    *,
    contains: Contains = "",
    order: OrderOption = OrderName.LAG,
    limit: Limit = 20,
    all_members: AllMembers = False,
    admin: Admin = ADMIN_DEFAULT,
    as_json: Json = False,
) -> None:
    """Show groups with their lag over all topics that they read, and their dead letters.

    Only dead letters that were never sent again count; `-` stands for an unknown value.
    """
    with service_port(admin, _stub(all_members=all_members)) as broker:
        request = pb.ListGroupFiguresRequest(contains=contains, order=ORDERS[order])
        found = _listed(broker.ListGroupFigures, request, "groups", lambda each: each.group.name, limit)
        print_rows(map(_group_fields, found), GROUP_COLUMNS, as_json=as_json, kind="groups")


def _listed(call: Callable[..., Any], request: Any, rows: str, name: Callable[[Any], str], limit: int) -> Iterator[Any]:
    """Yield the rows. An order other than by name gives one page only: it has all rows that are counted one by one."""
    wanted = min(limit, PAGE_ROWS) if request.order else limit
    answers: list[Any] = []

    def page(asked: Any) -> Any:
        answers.append(call(asked, timeout=CALL_TIMEOUT_S))
        return answers[-1]

    yield from listed(page, request, rows, name, limit=wanted, page_rows=PAGE_ROWS)
    name_missing(getattr(answers[-1], "members", ()))


def _stub(*, all_members: bool) -> Callable[[Any], Any]:
    return AllMembersServiceStub if all_members else OverviewServiceStub


def _topic_fields(stats: pb.TopicFigures) -> dict[str, Any]:
    lags_s = [lag_s for each in stats.groups if (lag_s := known_seconds(each, "lag_ms")) is not None]
    is_whole = len(lags_s) == known(stats, "group_count")
    return {
        "name": stats.topic.name,
        "messages": known(stats, "messages"),
        "estimatedBytes": known(stats, "estimated_bytes"),
        "sentPerSecond": known_rounded(stats, "sent_per_second"),
        "receivedPerSecond": known_rounded(stats, "received_per_second"),
        "lastStoredAt": known_time(stats, "last_stored_at_ms"),
        "lagSeconds": max(lags_s) if lags_s and is_whole else None,
        "groups": known(stats, "group_count"),
        "readers": [_pair_fields(each) for each in stats.groups],
    }


def _group_fields(stats: pb.GroupFigures) -> dict[str, Any]:
    return {
        "name": stats.group.name,
        "topics": known(stats, "topic_count"),
        "consumers": stats.consumers,
        "ready": known(stats, "ready"),
        "inFlight": known(stats, "in_flight"),
        "lagSeconds": known_seconds(stats, "lag_ms"),
        "deadLetters": known(stats, "dead_letters"),
        "reads": [_pair_fields(each) for each in stats.topics],
    }


def _pair_fields(pair: pb.PairFigures) -> dict[str, Any]:
    return {
        "group": pair.group,
        "topic": pair.topic,
        "ready": known(pair, "ready"),
        "inFlight": known(pair, "in_flight"),
        "lagSeconds": known_seconds(pair, "lag_ms"),
        "receivedPerSecond": known_rounded(pair, "received_per_second"),
        "consumers": pair.consumers,
    }
