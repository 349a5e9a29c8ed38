"""Translate pages of topics and groups to messages of the admin protocol, and the requests for them."""

from __future__ import annotations

from typing import Final

from quarry_mq.protocol.proto.quarry.admin.v1 import overview_pb2 as pb
from quarry_mq.server.admin.pages.groups import GroupFigures, GroupPage
from quarry_mq.server.admin.pages.pages import LIMIT_DEFAULT, LIMIT_MAX, Order, Wanted
from quarry_mq.server.admin.pages.pairs import PairFigures
from quarry_mq.server.admin.pages.topics import TopicFigures, TopicPage
from quarry_mq.server.admin_port.calls.fields import printable
from quarry_mq.server.admin_port.metadata.messages import group_message, topic_message
from quarry_mq.store.errors import Invalid

ORDERS: Final = {
    pb.FIGURE_ORDER_UNSPECIFIED: Order.NAME,
    pb.FIGURE_ORDER_BUSIEST: Order.BUSIEST,
    pb.FIGURE_ORDER_LAG: Order.LAG,
}


def wanted_page(request: pb.ListTopicFiguresRequest | pb.ListGroupFiguresRequest) -> Wanted:
    """Return the requested page. Raises Invalid."""
    order = ORDERS.get(request.order)
    if order is None:
        raise Invalid(f"order {request.order} is unknown")
    return Wanted(
        contains=printable("contains", request.contains),
        after=printable("after", request.after),
        limit=min(request.limit or LIMIT_DEFAULT, LIMIT_MAX),
        order=order,
    )


def topic_page_message(page: TopicPage) -> pb.ListTopicFiguresResponse:
    return pb.ListTopicFiguresResponse(
        topics=map(_topic_figures, page.topics), has_more=page.has_more, matching=page.matching
    )


def group_page_message(page: GroupPage) -> pb.ListGroupFiguresResponse:
    return pb.ListGroupFiguresResponse(
        groups=map(_group_figures, page.groups), has_more=page.has_more, matching=page.matching
    )


def _topic_figures(figures: TopicFigures) -> pb.TopicFigures:
    kept = figures.kept
    return pb.TopicFigures(
        topic=topic_message(figures.topic),
        messages=None if kept is None else kept.messages,
        estimated_bytes=None if kept is None else kept.estimated_bytes,
        sent_per_second=figures.sent_per_second,
        received_per_second=figures.received_per_second,
        last_stored_at_ms=None if kept is None else kept.last_stored_ms,
        groups=map(_pair_figures, figures.groups),
        group_count=figures.group_count,
    )


def _group_figures(figures: GroupFigures) -> pb.GroupFigures:
    return pb.GroupFigures(
        group=group_message(figures.group),
        consumers=figures.consumers,
        topics=map(_pair_figures, figures.topics),
        topic_count=figures.topic_count,
        ready=figures.ready,
        in_flight=figures.in_flight,
        lag_ms=figures.lag_ms,
        dead_letters=figures.dead_letters,
    )


def _pair_figures(pair: PairFigures) -> pb.PairFigures:
    return pb.PairFigures(
        group=pair.group,
        topic=pair.topic,
        ready=pair.ready,
        in_flight=pair.in_flight,
        lag_ms=pair.lag_ms,
        received_per_second=pair.received_per_second,
        consumers=pair.consumers,
    )
