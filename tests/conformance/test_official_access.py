"""The official admin service checks the rights of users: each call needs them for its topics and groups."""

from __future__ import annotations

import json
from itertools import count
from pathlib import Path
from typing import Any, Final

import pytest

from quarry_mq.protocol.proto.apache.rocketmq.v2 import admin_pb2 as pb
from quarry_mq.protocol.signature import signed_admin_headers
from quarry_mq.server.admin_port.calls.access import is_change
from quarry_mq.store.security.model import UserKind
from tests.conformance.broker import RunningBroker
from tests.conformance.client import resource
from tests.conformance.conftest import WithBroker
from tests.conformance.official import SERVICE, official
from tests.conformance.secured import SECRET, SECURED, add_user

GROUP: Final = resource("billing")
TOPIC: Final = resource("orders")

_calls = count()


async def made(broker: RunningBroker, method: str, request: Any, user: str) -> None:
    nonce = f"{user:-<10}{next(_calls):010}"
    headers = signed_admin_headers(user, SECRET, SERVICE + method, now_ms=broker.clock.wall_ms(), nonce=nonce)
    async with official(broker) as admin:
        await getattr(admin, method)(request, metadata=headers)


@pytest.mark.parametrize("name", [each.name for each in pb.DESCRIPTOR.services_by_name["Admin"].methods])
def test_what_changes_something_is_known_for_it(name: str) -> None:
    changes = {"ChangeLogLevel", "DeleteSubscription", "ResetGroupOffset", "VerifyMessage", "AdminSendMessage"}
    assert is_change(SERVICE + name) == (name in changes)


def test_what_became_of_a_change_is_written_down(with_broker: WithBroker, tmp_path: Path) -> None:
    """The status of the answer tells, since the call itself always ends well."""

    async def test(broker: RunningBroker) -> None:
        add_user(broker, "ops", kind=UserKind.SUPER)
        broker.topic("orders")
        reset = pb.ResetGroupOffsetRequest(topic=resource("orders"), group=resource("billing"))
        await made(broker, "ResetGroupOffset", reset, "ops")
        level = pb.ChangeLogLevelRequest(level=pb.ChangeLogLevelRequest.INFO)
        await made(broker, "ChangeLogLevel", level, "ops")

    with_broker(test, security=SECURED, log={"audit_file": tmp_path / "audit.log"})
    lines = [json.loads(line) for line in (tmp_path / "audit.log").read_text().splitlines()]
    assert [(each["method"], each["resource"], each["outcome"]) for each in lines] == [
        ("Admin/ResetGroupOffset", "group:billing, topic:orders", "consumer_group_not_found"),
        ("Admin/ChangeLogLevel", "cluster:*", "done"),
    ]
