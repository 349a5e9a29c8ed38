"""Where users are asked for, the official admin service asks them, too: each call for what it is about."""

from __future__ import annotations

import json
from itertools import count
from pathlib import Path
from typing import Any, Final

import grpc.aio
import pytest

from server._generated.apache.rocketmq.v2 import admin_pb2 as pb
from server.rpc.admin_port.access import is_change
from server.security.signature import signed_admin_headers
from store.security.model import UserKind
from tests.conformance.broker import RunningBroker
from tests.conformance.client import resource
from tests.conformance.conftest import WithBroker
from tests.conformance.official import SERVICE, official
from tests.conformance.secured import SECRET, SECURED, add_user, allow

GROUP: Final = resource("billing")
TOPIC: Final = resource("orders")
CALLS: Final[dict[str, tuple[Any, tuple[str, ...]]]] = {
    "ChangeLogLevel": (
        pb.ChangeLogLevelRequest(level=pb.ChangeLogLevelRequest.INFO),
        ("cluster:DefaultCluster update",),
    ),
    "DescribeTopicStatus": (pb.DescribeTopicStatusRequest(topic=TOPIC), ("topic:orders get",)),
    "ListSubscription": (pb.ListSubscriptionRequest(topic=TOPIC), ("topic:orders get",)),
    "DescribeSubscription": (pb.DescribeSubscriptionRequest(), ("group:* list",)),
    "DeleteSubscription": (
        pb.DeleteSubscriptionRequest(topic=TOPIC, group=GROUP),
        ("topic:orders update", "group:billing update"),
    ),
    "DescribeGroupAccumulation": (pb.DescribeGroupAccumulationRequest(group=GROUP), ("group:billing get",)),
    "ListConsumerConnection": (pb.ListConsumerConnectionRequest(group=GROUP), ("group:billing get",)),
    "ResetGroupOffset": (
        pb.ResetGroupOffsetRequest(topic=TOPIC, group=GROUP),
        ("topic:orders update", "group:billing update"),
    ),
    "QueryMessage": (pb.ListMessageRequest(topic=TOPIC), ("topic:orders get",)),
    "PrintThreadStackTrace": (pb.PrintThreadStackTraceRequest(group=GROUP, client_id="a"), ("group:billing get",)),
    "VerifyMessage": (
        pb.VerifyMessageRequest(group=GROUP, topic=TOPIC, client_id="a"),
        ("topic:orders get", "group:billing update"),
    ),
    "AdminSendMessage": (pb.AdminSendMessageRequest(topic=TOPIC, body=b"x"), ("topic:orders pub",)),
    "GetConsumerRunningInfo": (pb.GetConsumerRunningInfoRequest(group=GROUP, client_id="a"), ("group:billing get",)),
    "GetTopicRoute": (pb.GetTopicRouteRequest(topic=TOPIC), ("topic:orders get",)),
    "QueryTimeSpan": (pb.QueryTimeSpanRequest(group=GROUP), ("group:billing get",)),
    "GetProxyRuntimeStats": (pb.GetProxyRuntimeStatsRequest(), ("cluster:DefaultCluster get",)),
}
"""Each call, and the rules that it needs."""

_calls = count()


async def ending(broker: RunningBroker, method: str, user: str | None) -> str:
    """The gRPC code that the call ends with."""
    headers: Any = ()
    if user is not None:
        nonce = f"{user:-<10}{next(_calls):010}"
        headers = signed_admin_headers(user, SECRET, SERVICE + method, now_ms=broker.clock.wall_ms(), nonce=nonce)
    async with official(broker) as admin:
        try:
            await getattr(admin, method)(CALLS[method][0], metadata=headers)
        except grpc.aio.AioRpcError as error:
            return error.code().name
    return "OK"


def test_each_call_needs_the_rules_of_what_it_is_about_and_no_others(with_broker: WithBroker) -> None:
    async def test(broker: RunningBroker) -> None:
        broker.topic("orders")
        broker.group("billing")
        for method, (_, rules) in CALLS.items():
            assert await ending(broker, method, None) == "UNAUTHENTICATED", method
            user = add_user(broker, f"u-{method}")
            for rule in rules:
                assert await ending(broker, method, user) == "PERMISSION_DENIED", method
                allow(broker, user, rule)
            assert await ending(broker, method, user) == "OK", method

    assert set(CALLS) == {each.name for each in pb.DESCRIPTOR.services_by_name["Admin"].methods}
    with_broker(test, security=SECURED)


@pytest.mark.parametrize("name", CALLS)
def test_what_changes_something_is_known_for_it(name: str) -> None:
    changes = {"ChangeLogLevel", "DeleteSubscription", "ResetGroupOffset", "VerifyMessage", "AdminSendMessage"}
    assert is_change(SERVICE + name) == (name in changes)


def test_what_became_of_a_change_is_written_down(with_broker: WithBroker, tmp_path: Path) -> None:
    """The status of the answer tells, since the call itself always ends well."""

    async def test(broker: RunningBroker) -> None:
        add_user(broker, "ops", kind=UserKind.SUPER)
        broker.topic("orders")
        assert await ending(broker, "ResetGroupOffset", "ops") == "OK"
        assert await ending(broker, "ChangeLogLevel", "ops") == "OK"

    with_broker(test, security=SECURED, log={"audit_file": tmp_path / "audit.log"})
    lines = [json.loads(line) for line in (tmp_path / "audit.log").read_text().splitlines()]
    assert [(each["method"], each["resource"], each["outcome"]) for each in lines] == [
        ("Admin/ResetGroupOffset", "group:billing, topic:orders", "consumer_group_not_found"),
        ("Admin/ChangeLogLevel", "cluster:*", "done"),
    ]
