"""The admin port asks who calls, and every change is written down."""

from __future__ import annotations

import json
import ssl
from collections.abc import Sequence
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc
from structlog.testing import capture_logs

from quarry_mq.protocol.proto.apache.rocketmq.v2 import admin_pb2 as official_pb2
from quarry_mq.protocol.proto.apache.rocketmq.v2 import definition_pb2 as definition
from quarry_mq.protocol.proto.apache.rocketmq.v2 import service_pb2 as service
from quarry_mq.protocol.proto.apache.rocketmq.v2.service_pb2_grpc import MessagingServiceStub
from quarry_mq.protocol.proto.quarry.admin.v1 import (
    admin_pb2,
    browsing_pb2,
    clients_pb2,
    dead_letters_pb2,
    index_pb2,
    jobs_pb2,
    lite_topics_pb2,
    members_pb2,
    migration_pb2,
    overview_pb2,
    query_pb2,
    replicas_pb2,
    security_pb2,
    settings_pb2,
    storage_pb2,
    verification_pb2,
)
from quarry_mq.protocol.proto.quarry.admin.v1.admin_pb2_grpc import AdminServiceStub
from quarry_mq.protocol.proto.quarry.admin.v1.security_pb2_grpc import SecurityServiceStub
from quarry_mq.protocol.signature import signed_admin_headers
from quarry_mq.server.admin_port.calls import guard
from quarry_mq.server.admin_port.calls.access import ACCESSES, SUPER_SERVICES
from quarry_mq.server.admin_port.calls.guard import _is_of_this_machine
from quarry_mq.store.security.model import User, UserKind
from quarry_mq.store.security.subjects import subject_of
from tests.certificates import make_tls
from tests.conformance.broker import RunningBroker
from tests.conformance.client import message
from tests.conformance.conftest import WithBroker
from tests.conformance.secured import SECRET, SECURED, add_user, allow, disable

ADMIN = "/quarry.admin.v1.AdminService/"
SECURITY = "/quarry.admin.v1.SecurityService/"
SERVICES = (
    official_pb2,
    admin_pb2,
    browsing_pb2,
    clients_pb2,
    dead_letters_pb2,
    index_pb2,
    jobs_pb2,
    lite_topics_pb2,
    members_pb2,
    migration_pb2,
    overview_pb2,
    query_pb2,
    replicas_pb2,
    security_pb2,
    settings_pb2,
    storage_pb2,
    verification_pb2,
)

Headers = Sequence[tuple[str, str]]


class Operator:
    """Signs each call anew."""

    def __init__(self, broker: RunningBroker, user: str, secret: str = SECRET) -> None:
        self._broker = broker
        self._user = user
        self._secret = secret
        self._calls = 0

    def headers(self, method: str) -> Headers:
        self._calls += 1
        now_ms = self._broker.clock.wall_ms()
        nonce = f"{self._user:-<10}{self._calls:010}"
        return signed_admin_headers(self._user, self._secret, method, now_ms=now_ms, nonce=nonce)

    async def code(self, method: str, request: Any, headers: Headers | None = None) -> str:
        """How the call ends."""
        async with grpc.aio.insecure_channel(self._broker.admin) as channel:
            is_security = method.startswith(SECURITY)
            stub: Any = (SecurityServiceStub if is_security else AdminServiceStub)(channel)
            call = getattr(stub, method.rpartition("/")[2])
            try:
                answering = call(request, metadata=self.headers(method) if headers is None else headers)
                if method.endswith("ListTopics"):
                    async for _ in answering:
                        pass
                else:
                    await answering
            except grpc.aio.AioRpcError as error:
                return f"{error.code().name}: {error.details()}"
            return "OK"


def test_every_method_of_the_admin_port_has_a_row_or_is_for_super_users() -> None:
    methods = {
        f"{service.name}/{method.name}"
        for module in SERVICES
        for service in module.DESCRIPTOR.services_by_name.values()
        for method in service.methods
        if service.full_name not in SUPER_SERVICES
    }
    assert methods == set(ACCESSES)


def test_strangers_get_nothing_but_the_health_of_the_broker(with_broker: WithBroker) -> None:
    async def test(broker: RunningBroker) -> None:
        add_user(broker, "ops", kind=UserKind.SUPER)
        create = admin_pb2.CreateTopicRequest(name="orders")
        ops = Operator(broker, "ops")
        assert (await ops.code(ADMIN + "CreateTopic", create, [])).startswith("UNAUTHENTICATED: the call is not signed")
        wrong = Operator(broker, "ops", "wrong-secret-indeed")
        assert (await wrong.code(ADMIN + "CreateTopic", create)).startswith("UNAUTHENTICATED: no enabled user")
        other_method = ops.headers(ADMIN + "GetTopic")
        assert (await ops.code(ADMIN + "CreateTopic", create, other_method)).startswith("UNAUTHENTICATED")
        assert broker.store.topics.get("orders") is None
        async with grpc.aio.insecure_channel(broker.admin) as channel:
            health: Any = health_pb2_grpc.HealthStub(channel)
            assert (await health.Check(health_pb2.HealthCheckRequest())).status == 1
            untyped: Any = channel
            look: Any = reflection_pb2_grpc.ServerReflectionStub(untyped)
            request = reflection_pb2.ServerReflectionRequest(list_services="")
            with pytest.raises(grpc.aio.AioRpcError, match="UNAUTHENTICATED"):
                [each async for each in look.ServerReflectionInfo(iter([request]))]
            method = "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo"
            answers = [each async for each in look.ServerReflectionInfo(iter([request]), metadata=ops.headers(method))]
            assert len(answers) == 1
        assert await ops.code(ADMIN + "CreateTopic", create) == "OK"

    with_broker(test, security=SECURED)


def test_a_call_that_was_overheard_cannot_be_made_again(with_broker: WithBroker) -> None:
    async def test(broker: RunningBroker) -> None:
        add_user(broker, "ops", kind=UserKind.SUPER)
        ops = Operator(broker, "ops")
        headers = ops.headers(ADMIN + "DeleteTopic")
        broker.topic("orders")
        assert await ops.code(ADMIN + "DeleteTopic", admin_pb2.DeleteTopicRequest(name="orders"), headers) == "OK"
        broker.topic("payments")
        again = await ops.code(ADMIN + "DeleteTopic", admin_pb2.DeleteTopicRequest(name="payments"), headers)
        assert again.startswith("UNAUTHENTICATED: the call was already made")
        assert broker.store.topics.get("payments") is not None

    with_broker(test, security=SECURED)


def test_a_denied_call_leaves_no_nonce_and_counts_once_there_is_the_right(with_broker: WithBroker) -> None:
    async def test(broker: RunningBroker) -> None:
        add_user(broker, "team")
        team = Operator(broker, "team")
        create = admin_pb2.CreateTopicRequest(name="orders")
        headers = team.headers(ADMIN + "CreateTopic")
        for _ in range(2):
            assert (await team.code(ADMIN + "CreateTopic", create, headers)).startswith("PERMISSION_DENIED")
        allow(broker, "team", "topic:orders create")
        assert await team.code(ADMIN + "CreateTopic", create, headers) == "OK"
        assert (await team.code(ADMIN + "CreateTopic", create, headers)).startswith("UNAUTHENTICATED: the call was")

    with_broker(test, security=SECURED)


def test_operators_do_what_their_rules_allow_and_only_super_users_make_users(with_broker: WithBroker) -> None:
    async def test(broker: RunningBroker) -> None:
        add_user(broker, "team", "topic:orders-* create get delete", "cluster:DefaultCluster get")
        add_user(broker, "mighty", "* pub sub create update delete get list")
        team, mighty = Operator(broker, "team"), Operator(broker, "mighty")
        create = admin_pb2.CreateTopicRequest
        assert await team.code(ADMIN + "CreateTopic", create(name="orders-1")) == "OK"
        assert await team.code(ADMIN + "GetBroker", admin_pb2.GetBrokerRequest()) == "OK"
        for method, request, text in (
            ("CreateTopic", create(name="payments"), "user team may not create on topic payments"),
            (
                "UpdateTopic",
                admin_pb2.UpdateTopicRequest(name="orders-1"),
                "user team may not update on topic orders-1",
            ),
            ("ListTopics", admin_pb2.ListTopicsRequest(), "user team may not list on topic *"),
            (
                "ExpireSegments",
                admin_pb2.ExpireSegmentsRequest(dry_run=True),
                "user team may not update on cluster DefaultCluster",
            ),
        ):
            assert await team.code(ADMIN + method, request) == f"PERMISSION_DENIED: {text}"
        assert await mighty.code(ADMIN + "ListTopics", admin_pb2.ListTopicsRequest()) == "OK"
        promotion = security_pb2.UpdateUserRequest(name="mighty", kind="super")
        assert (await mighty.code(SECURITY + "UpdateUser", promotion)).endswith("only super users may")

    with_broker(test, security=SECURED)


def test_without_rules_a_user_may_do_all_but_make_itself_a_super_user(with_broker: WithBroker) -> None:
    async def test(broker: RunningBroker) -> None:
        add_user(broker, "ops", kind=UserKind.SUPER)
        add_user(broker, "team")
        team, ops = Operator(broker, "team"), Operator(broker, "ops")
        assert await team.code(ADMIN + "CreateTopic", admin_pb2.CreateTopicRequest(name="orders")) == "OK"
        request = security_pb2.UpdateUserRequest(name="team", kind="super")
        assert (await team.code(SECURITY + "UpdateUser", request)).startswith("PERMISSION_DENIED")
        assert await ops.code(SECURITY + "UpdateUser", request) == "OK"

    with_broker(
        test, security={**SECURED, "authorization": False, "authentication": False, "admin_authentication": True}
    )


def test_each_change_and_each_denial_is_written_down_without_what_was_sent(
    with_broker: WithBroker, tmp_path: Path
) -> None:
    async def test(broker: RunningBroker) -> None:
        add_user(broker, "ops", kind=UserKind.SUPER)
        ops = Operator(broker, "ops")
        await ops.code(ADMIN + "CreateTopic", admin_pb2.CreateTopicRequest(name="orders"))
        await ops.code(ADMIN + "CreateTopic", admin_pb2.CreateTopicRequest(name="orders"))
        await ops.code(ADMIN + "GetTopic", admin_pb2.GetTopicRequest(name="orders"))
        secret = security_pb2.CreateUserRequest(name="shop", secret="do-not-write-this-down")
        assert await ops.code(SECURITY + "CreateUser", secret) == "OK"
        await ops.code(SECURITY + "CreateUser", secret, [])

    with capture_logs() as logged:
        with_broker(test, security=SECURED, log={"audit_file": tmp_path / "audit.log"})
    text = (tmp_path / "audit.log").read_text()
    assert "do-not-write" not in text + str(logged)
    lines = [json.loads(line) for line in text.splitlines()]
    assert [(each["event"], each["user"], each["how"], each["method"], each["outcome"]) for each in lines] == [
        ("admin change", "ops", "signature", "AdminService/CreateTopic", "done"),
        ("admin change", "ops", "signature", "AdminService/CreateTopic", "already_exists"),
        ("admin change", "ops", "signature", "SecurityService/CreateUser", "done"),
        ("call denied", "-", "-", "SecurityService/CreateUser", "absent"),
    ]
    assert [each.get("resource") for each in lines] == ["topic:orders", "topic:orders", "user:shop", None]
    assert lines[0]["peer"].startswith("127.0.0.1:")


def test_changes_are_written_down_where_nobody_asks_who_makes_them(with_broker: WithBroker, tmp_path: Path) -> None:
    async def test(broker: RunningBroker) -> None:
        await Operator(broker, "nobody").code(ADMIN + "CreateTopic", admin_pb2.CreateTopicRequest(name="orders"), [])

    with_broker(test, log={"audit_file": tmp_path / "audit.log"})
    (line,) = (json.loads(each) for each in (tmp_path / "audit.log").read_text().splitlines())
    assert (line["user"], line["how"], line["resource"], line["outcome"]) == ("-", "-", "topic:orders", "done")


def test_a_client_certificate_stands_for_its_user_on_both_ports(with_broker: WithBroker, tmp_path: Path) -> None:
    tls = make_tls(tmp_path, clients_too=True)
    assert tls.client is not None
    certificate, key = tls.client
    subject = subject_of(ssl.PEM_cert_to_DER_cert(certificate.decode()))
    assert subject is not None
    credentials = grpc.ssl_channel_credentials(tls.authority, key, certificate)
    files = {"tls_certificate": tls.files.certificate, "tls_key": tls.files.key}
    authorities = {"tls_client_ca": tls.authority_path, "admin_client_ca": tls.authority_path}

    async def test(broker: RunningBroker) -> None:
        users = broker.store.users
        async with (
            grpc.aio.secure_channel(broker.admin, credentials) as admin_channel,
            grpc.aio.secure_channel(broker.endpoint, credentials) as channel,
        ):
            admin: Any = AdminServiceStub(admin_channel)
            messaging: Any = MessagingServiceStub(channel)
            create = admin_pb2.CreateTopicRequest(name="orders")
            with pytest.raises(grpc.aio.AioRpcError, match="and there is no client certificate of a user"):
                await admin.CreateTopic(create)
            users.create(User(name="ops", kind=UserKind.SUPER, certificates=(subject,)))
            await admin.CreateTopic(create)
            send = service.SendMessageRequest(messages=[message("orders")])
            mine = [("x-mq-client-id", "mine")]
            assert (await messaging.SendMessage(send, metadata=mine)).status.code == definition.OK
            disable(broker, "ops")
            with pytest.raises(grpc.aio.AioRpcError, match="UNAUTHENTICATED"):
                await admin.DeleteTopic(admin_pb2.DeleteTopicRequest(name="orders"))
            assert (await messaging.SendMessage(send, metadata=mine)).status.code == definition.UNAUTHORIZED

    with capture_logs() as logged:
        with_broker(test, security=SECURED, network={"tls": "required", "admin_tls": True, **files, **authorities})
    assert [each["how"] for each in logged if each["event"] == "admin change"] == ["certificate"]


@pytest.mark.parametrize(
    ("peer", "listening", "is_of_this_machine"),
    [
        ("ipv4:127.0.0.1:5000", "0.0.0.0", True),
        ("ipv4:127.8.0.1:5000", "10.0.0.1", True),
        ("ipv6:%5B::1%5D:5000", "::", True),
        ("ipv6:%5B::ffff:127.0.0.1%5D:5000", "::", True),
        ("unix:/run/quarry/console", "0.0.0.0", True),
        ("ipv4:10.0.0.1:5000", "10.0.0.1", True),
        ("ipv4:10.0.0.2:5000", "10.0.0.1", False),
        ("ipv4:10.0.0.1:5000", "0.0.0.0", False),
        ("ipv6:%5B2001:db8::1%5D:5000", "::", False),
        ("ipv4:10.0.0.1:5000", "quarry.example.com", False),
        ("nothing known", "0.0.0.0", False),
    ],
)
def test_a_caller_is_of_this_machine_by_the_address_of_its_connection(
    peer: str, listening: str, is_of_this_machine: bool
) -> None:
    assert _is_of_this_machine(peer, listening) is is_of_this_machine


@pytest.mark.parametrize("asks", [True, False])
def test_operators_of_other_machines_are_not_served_where_the_settings_say_so(
    with_broker: WithBroker, monkeypatch: pytest.MonkeyPatch, asks: bool
) -> None:
    async def test(broker: RunningBroker) -> None:
        add_user(broker, "ops", kind=UserKind.SUPER)
        ops = Operator(broker, "ops")
        get, create = admin_pb2.GetBrokerRequest(), admin_pb2.CreateTopicRequest(name="orders")
        assert await ops.code(ADMIN + "GetBroker", get) == "OK"
        monkeypatch.setattr(guard, "source_of", lambda _peer: ip_address("10.0.0.9"))
        with capture_logs() as lines:
            for method, request in (
                ("GetBroker", get),
                ("CreateTopic", create),
                ("ListTopics", admin_pb2.ListTopicsRequest()),
            ):
                code = await ops.code(ADMIN + method, request)
                assert code.startswith("PERMISSION_DENIED: operators on other machines are not served")
        assert "call denied" in [each["event"] for each in lines]
        assert broker.store.topics.get("orders") is None
        async with grpc.aio.insecure_channel(broker.admin) as channel:
            health: Any = health_pb2_grpc.HealthStub(channel)
            assert (await health.Check(health_pb2.HealthCheckRequest())).status == 1
        monkeypatch.undo()
        assert await ops.code(ADMIN + "CreateTopic", create) == "OK"

    given = {**SECURED, "authentication": asks, "authorization": asks, "admin_callers": "this-machine"}
    with_broker(test, security=given)
