"""Calls that one member makes on the others for an operator, by the rights of that operator."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import grpc.aio
import pytest
from structlog.testing import capture_logs

from quarry_mq.protocol.clock import ManualClock
from quarry_mq.protocol.proto.quarry.admin.v1 import admin_pb2, browsing_pb2, clients_pb2, dead_letters_pb2
from quarry_mq.protocol.proto.quarry.admin.v1 import members_pb2 as pb
from quarry_mq.protocol.proto.quarry.admin.v1 import overview_pb2 as overview
from quarry_mq.protocol.proto.quarry.admin.v1.members_pb2_grpc import AllMembersServiceStub
from quarry_mq.server.admin_port.cluster.members import AllMembersService
from quarry_mq.server.admin_port.cluster.relay import MemberCalls, Write
from quarry_mq.server.cluster.peers import RelayedCall
from quarry_mq.server.observability.error_reporter import ErrorReporter
from quarry_mq.store.security.model import UserKind
from tests.cluster.brokers import BrokerCluster
from tests.cluster.conftest import WithCluster
from tests.conformance.broker import RunningBroker, run, running_broker, until
from tests.conformance.client import Client, message
from tests.conformance.secured import SECURED, add_user, allow
from tests.conformance.test_admin_access import Operator

SERVICE = "/quarry.admin.v1.AllMembersService/"


async def asked(
    broker: RunningBroker, method: str, request: Any, *members: str, user: Operator | None = None
) -> list[Any]:
    """All answers to a call on members."""
    headers: Any = () if user is None else user.headers(f"{SERVICE}AskMembers")
    asking = pb.AskMembersRequest(members=members, method=method, request=request.SerializeToString())
    async with grpc.aio.insecure_channel(broker.admin) as channel:
        stub: Any = AllMembersServiceStub(channel)
        return [answer async for answer in stub.AskMembers(asking, metadata=headers)]


async def ended(broker: RunningBroker, method: str, request: Any, *members: str, user: Operator | None = None) -> Any:
    """Return how the call ended on each member."""
    answers = await asked(broker, method, request, *members, user=user)
    return sorted((each.member, each.code, each.problem) for each in answers if each.code)


async def refused(broker: RunningBroker, method: str, request: Any, *members: str) -> str:
    try:
        await asked(broker, method, request, *members)
    except grpc.aio.AioRpcError as error:
        return f"{error.code().name}: {error.details()}"
    return "OK"


async def page_of(broker: RunningBroker, **wanted: Any) -> Any:
    async with grpc.aio.insecure_channel(broker.admin) as channel:
        stub: Any = AllMembersServiceStub(channel)
        return await stub.ListTopicFigures(overview.ListTopicFiguresRequest(**wanted))


def test_each_member_answers_for_what_it_has(with_cluster: WithCluster) -> None:
    async def test(cluster: BrokerCluster) -> None:
        await cluster.start("m0", "m1", "m2")
        await cluster.settled("m0", "m1", "m2")
        cluster["m0"].topic("orders", queues=1)
        await until(lambda: cluster["m2"].store.topics.get("orders") is not None, "all know the topic")
        for name in ("m1", "m1", "m2"):
            async with Client(cluster[name].endpoint) as client:
                await client.sent(message("orders"))
        request = browsing_pb2.BrowseMessagesRequest(topic="orders", limit=5)
        answers = await asked(cluster["m0"], "BrowsingService/BrowseMessages", request)
        found = {
            each.member: len(browsing_pb2.BrowseMessagesResponse.FromString(each.answer).messages)
            for each in answers
            if each.HasField("answer")
        }
        assert found == {"m0": 0, "m1": 2, "m2": 1}
        assert [each.is_self for each in answers if each.member == "m0"] == [True, True]
        assert await ended(cluster["m0"], "BrowsingService/BrowseMessages", request) == [
            ("m0", "OK", ""),
            ("m1", "OK", ""),
            ("m2", "OK", ""),
        ]
        page = await page_of(cluster["m0"], names=["orders", "no-such-topic"])
        assert [(each.topic.name, each.messages) for each in page.topics] == [("orders", 3)]
        await cluster.stop("m2")
        await until(lambda: not cluster["m0"].cluster.members.is_reachable("m2"), "m2 is gone")
        page = await page_of(cluster["m0"])
        assert [each.messages for each in page.topics] == [2]
        away = page.members[2]
        assert (away.name, away.code) == ("m2", "UNAVAILABLE")
        assert away.problem.startswith("away: not heard of for ")

    with_cluster(test)


def test_an_error_of_a_member_is_told_with_its_code(with_cluster: WithCluster) -> None:
    async def test(cluster: BrokerCluster) -> None:
        await cluster.start("m0", "m1")
        await cluster.settled("m0", "m1")
        broker = cluster["m0"]
        get_topic = admin_pb2.GetTopicRequest(name="orders")
        found = await ended(broker, "AdminService/GetTopic", get_topic)
        assert [(name, code) for name, code, _ in found] == [("m0", "NOT_FOUND"), ("m1", "NOT_FOUND")]
        clients = clients_pb2.ListClientsRequest()
        assert await ended(broker, "ClientService/ListClients", clients, "m1") == [("m1", "OK", "")]
        wrong = admin_pb2.GetTopicRequest(name="a b")
        assert (await ended(broker, "AdminService/GetTopic", wrong, "m1"))[0][1] in {"INVALID_ARGUMENT", "NOT_FOUND"}
        for method in (
            "AllMembersService/AskMembers",
            "MembersService/ListMembers",
            "SecurityService/ListUsers",
            "ClusterService/Relay",
            "nothing",
        ):
            assert (await refused(broker, method, clients)).startswith("INVALID_ARGUMENT: method: "), method
        assert await refused(broker, "ClientService/ListClients", clients, "m7") == "NOT_FOUND: members: no member 'm7'"

    with_cluster(test)


def test_a_user_may_do_on_other_members_what_its_rules_allow(with_cluster: WithCluster) -> None:
    async def test(cluster: BrokerCluster) -> None:
        cluster.sections["security"] = dict(SECURED)
        await cluster.start("m0", "m1")
        await cluster.settled("m0", "m1")
        add_user(cluster["m0"], "root", kind=UserKind.SUPER)
        add_user(cluster["m0"], "reader", "topic:orders get", "group:billing get")
        add_user(cluster["m0"], "local", "topic:orders get")
        allow(cluster["m0"], "local", "group:billing get", source="192.0.2.0/24")
        cluster["m0"].topic("orders")
        cluster["m0"].topic("payments")
        cluster["m0"].group("billing")
        await until(
            lambda: (
                cluster["m1"].store.groups.get("billing") is not None
                and len(cluster["m1"].store.policies.get("local").rules) == 2
            ),
            "the other one knows all",
        )
        reader, local, root = (Operator(cluster["m0"], name) for name in ("reader", "local", "root"))
        letters = dead_letters_pb2.ListDeadLettersRequest(group="billing", count=1)
        resend = dead_letters_pb2.ResendDeadLettersRequest(group="billing", offsets=[0])

        async def on_the_other(method: str, request: Any, user: Operator) -> Any:
            return (await ended(cluster["m0"], method, request, "m1", user=user))[0][1:]

        show = "DeadLetterService/ListDeadLetters"
        assert (await on_the_other(show, letters, reader))[0] in {"OK", "NOT_FOUND"}
        denied = ("PERMISSION_DENIED", "user local may not get on group billing")
        assert await on_the_other(show, letters, local) == denied
        other = admin_pb2.GetTopicRequest(name="payments")
        denied = ("PERMISSION_DENIED", "user reader may not get on topic payments")
        assert await on_the_other("AdminService/GetTopic", other, reader) == denied
        denied = ("PERMISSION_DENIED", "user reader may not update on group billing")
        assert await on_the_other("DeadLetterService/ResendDeadLetters", resend, reader) == denied
        assert (await on_the_other("AdminService/GetTopic", other, root))[0] == "OK"

    with_cluster(test)


def test_a_broker_alone_is_its_only_member(tmp_path: Path, monkeypatch: Any) -> None:
    async def test() -> None:
        async with running_broker(tmp_path, monkeypatch, broker={"name": "lonely"}) as broker:
            broker.topic("orders")
            assert await ended(broker, "AdminService/GetTopic", admin_pb2.GetTopicRequest(name="orders")) == [
                ("lonely", "OK", "")
            ]
            page = await page_of(broker)
            assert [each.topic.name for each in page.topics] == ["orders"]
            assert [(each.name, each.is_self) for each in page.members] == [("lonely", True)]

    run(test())


def test_a_caller_that_leaves_under_a_write_is_no_fault_of_the_broker() -> None:
    class Own:
        async def run(self, _call: RelayedCall, write: Write) -> None:
            await write(b"an answer")

    class Gone:
        def invocation_metadata(self) -> tuple[()]:
            return ()

        def peer(self) -> str:
            return "ipv4:127.0.0.1:5000"

        async def write(self, _answer: object) -> None:
            raise grpc.aio.InternalError("Failed execute_batch")

    own: Any = Own()
    gone: Any = Gone()
    reporter = ErrorReporter(ManualClock(), damage_met=lambda: None, passed_over=lambda: None)
    service = AllMembersService(MemberCalls(own, "m0", None), reporter)
    with capture_logs() as lines, pytest.raises(grpc.aio.InternalError):
        run(service.AskMembers(pb.AskMembersRequest(method="AdminService/GetTopic"), gone))
    assert not lines
