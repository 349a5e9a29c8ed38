"""A broker at a glance, the last hour, and figures of topics and groups."""

from __future__ import annotations

from base64 import b64encode
from typing import Final

import grpc

from quarry_mq.protocol.proto.quarry.admin.v1.admin_pb2 import GetTopicRequest, Topic
from tests.admin_calls.bench import GROUP, TOPIC, Ending
from tests.admin_calls.rows import CONTROL, ENDLESS, Never, Refusal, Row, Table, Unseen, of_service
from tests.admin_calls.topics_and_groups import BAD, GET_BROKER, NO_FIELDS, OF_BROKER

NOBODY: Final = Never("where nothing matches the page is empty")
BAD_PAGE: Final = [
    Refusal({"contains": CONTROL}, BAD, "contains: 'a"),
    Refusal({"contains": ENDLESS}, BAD, "contains: 20000 characters"),
    Refusal({"after": CONTROL}, BAD, "after: 'a"),
    Refusal({"order": 99}, BAD, "order 99 is unknown"),
    Refusal({"order": "FIGURE_ORDER_LAG", "after": "x"}, BAD, "after: allowed only with the order by name"),
]

REQUEST: Final = b64encode(GetTopicRequest(name=TOPIC).SerializeToString()).decode()
LISTS: Final = ["topic:* list", "group:* list"]


def is_denied(ending: Ending) -> bool:
    """Return whether a member has refused the call that it was asked to make."""
    (answer,) = ending.answers
    return (answer.HasField("answer"), answer.code) == (False, "PERMISSION_DENIED")


OF_ALL: Final[Table] = of_service(
    "quarry.admin.v1.AllMembersService",
    AskMembers=Row(
        request={"method": "AdminService/GetTopic", "request": REQUEST},
        holds=lambda answers: (
            [(Topic.FromString(each.answer).name, each.code) for each in answers] == [(TOPIC, ""), ("", "OK")]
        ),
        missing=[Refusal({"members": ["nobody"]}, grpc.StatusCode.NOT_FOUND, "members: no member 'nobody'")],
        malformed=[
            Refusal({"method": CONTROL}, BAD, "method: "),
            Refusal({"method": ENDLESS}, BAD, "method: "),
            Refusal({"method": "SecurityService/ListUsers"}, BAD, "method: "),
            Refusal({"members": [CONTROL]}, grpc.StatusCode.NOT_FOUND, "members: no member "),
        ],
        needs=Unseen(is_denied),
    ),
    ListTopicFigures=Row(
        request={"contains": TOPIC.upper()},
        holds=lambda answer: (
            [(each.topic.name, each.messages >= 2) for each in answer.topics] == [(TOPIC, True)]
            and [(each.is_self, each.code) for each in answer.members] == [(True, "")]
        ),
        missing=NOBODY,
        malformed=BAD_PAGE,
        needs=LISTS,
    ),
    ListGroupFigures=Row(
        request={"contains": GROUP.upper()},
        holds=lambda answer: [(each.group.name, each.dead_letters) for each in answer.groups] == [(GROUP, 1)],
        missing=NOBODY,
        malformed=BAD_PAGE,
        needs=LISTS,
    ),
    GetHistory=Row(
        request={"series": ["timers"]},
        holds=lambda answer: len(answer.members) == 1 and [each.name for each in answer.series] in ([], ["timers"]),
        missing=[Refusal({"series": ["nothing"]}, BAD, "series: there is no series 'nothing'")],
        malformed=[
            Refusal({"series": [CONTROL]}, BAD, "series: there is no series 'a"),
            Refusal({"topic": CONTROL}, BAD, "topic: "),
            Refusal({"topic": TOPIC, "group": TOPIC}, BAD, "topic, group: only one of both"),
        ],
        needs=GET_BROKER,
    ),
)

OF_ONE: Final[Table] = of_service(
    "quarry.admin.v1.OverviewService",
    GetOverview=Row(
        holds=lambda answer: bool(answer.sent >= 3 and answer.consumers == 1 and not answer.HasField("sent_today")),
        missing=OF_BROKER,
        malformed=NO_FIELDS,
        needs=GET_BROKER,
    ),
    ListOverviews=Row(
        holds=lambda answer: [(each.state, each.overview.sent >= 3) for each in answer.members] == [("alone", True)],
        missing=OF_BROKER,
        malformed=NO_FIELDS,
        needs=GET_BROKER,
    ),
    GetHistory=Row(
        request={"series": ["timers", "sent_per_second"], "after_ms": 0},
        holds=lambda answer: (
            [(each.name, each.unit) for each in answer.series]
            == [("timers", "messages"), ("sent_per_second", "messages/s")]
        ),
        missing=[Refusal({"series": ["nothing"]}, BAD, "series: there is no series 'nothing'")],
        malformed=[
            Refusal({"series": [CONTROL]}, BAD, "series: there is no series 'a"),
            Refusal({"series": [ENDLESS]}, BAD, "series: there is no series 'xxx"),
            Refusal({"topic": CONTROL}, BAD, "topic: "),
            Refusal({"group": ENDLESS}, BAD, "group: "),
            Refusal({"topic": TOPIC, "group": TOPIC}, BAD, "topic, group: only one of both"),
        ],
        needs=GET_BROKER,
    ),
    ListTopicFigures=Row(
        request={"contains": TOPIC.upper()},
        holds=lambda answer: (
            [(each.topic.name, each.messages >= 2, each.groups[0].in_flight) for each in answer.topics]
            == [(TOPIC, True, 0)]
        ),
        missing=NOBODY,
        malformed=BAD_PAGE,
        needs=LISTS,
    ),
    ListGroupFigures=Row(
        request={"contains": GROUP.upper()},
        holds=lambda answer: (
            [(each.group.name, each.topics[0].ready >= 1, each.dead_letters) for each in answer.groups]
            == [(GROUP, True, 1)]
        ),
        missing=NOBODY,
        malformed=BAD_PAGE,
        needs=LISTS,
    ),
)

ROWS: Final[Table] = {**OF_ALL, **OF_ONE}
