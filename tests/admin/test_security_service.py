"""Users and rules over the admin port."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from typing import Any

import grpc
import grpc.aio
import pytest
import structlog

from quarry_mq.protocol.clock import ManualClock
from quarry_mq.protocol.proto.quarry.admin.v1 import security_pb2 as pb
from quarry_mq.protocol.proto.quarry.admin.v1.security_pb2_grpc import SecurityServiceStub
from quarry_mq.server.admin_port.calls.guard import CallSlots
from quarry_mq.server.admin_port.metadata.security import SecurityService
from quarry_mq.server.admin_port.server import AdminServer
from quarry_mq.server.rpc.context import LimitsMet
from quarry_mq.store.security.model import SECRET_TEXT
from tests.admin.broker import AdminBench
from tests.users.tables import FIRST_KEY, SECRET, Tables, orders

OTHER = "staple-and-more-of-it"


class Bench:
    def __init__(self, *keys: bytes) -> None:
        self.admin = AdminBench()
        self.clock = ManualClock()
        self.tables = Tables(self.admin.engine, *keys)

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[Any]:
        admin = self.admin
        server = AdminServer(
            admin.service,
            CallSlots(256, LimitsMet()),
            more=[SecurityService(self.tables.users, self.tables.policies, self.clock, admin.error_reporter)],
        )
        address = await server.start("127.0.0.1:0")
        try:
            async with grpc.aio.insecure_channel(address) as channel:
                yield SecurityServiceStub(channel)
        finally:
            await server.stop(0)


def run(test: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(test, 30))


async def refusal(call: Any) -> tuple[str, str]:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call
    return caught.value.code().name, caught.value.details() or ""


def test_a_users_life() -> None:
    async def test() -> None:
        bench = Bench(FIRST_KEY)
        async with bench.serving() as stub:
            made = await stub.CreateUser(pb.CreateUserRequest(name="orders", certificates=["CN=orders"]))
            now_ms = bench.clock.wall_ms()
            assert made.user == pb.User(
                name="orders",
                kind="normal",
                enabled=True,
                certificates=["CN=orders"],
                secrets=[pb.Secret(number=1, created_at_ms=now_ms)],
                created_at_ms=now_ms,
            )
            assert SECRET_TEXT.fullmatch(made.generated_secret)
            kept = bench.tables.users.get("orders")
            assert kept is not None
            assert [each.text for each in kept.secrets] == [made.generated_secret]
            changed = await stub.UpdateUser(pb.UpdateUserRequest(name="orders", enabled=False))
            assert (changed.enabled, changed.kind, list(changed.certificates)) == (False, "normal", ["CN=orders"])
            request = pb.UpdateUserRequest(name="orders", kind="super", enabled=True, certificates=pb.Certificates())
            changed = await stub.UpdateUser(request)
            assert (changed.enabled, changed.kind, list(changed.certificates)) == (True, "super", [])
            assert await stub.GetUser(pb.GetUserRequest(name="orders")) == changed
            await stub.DeleteUser(pb.DeleteUserRequest(name="orders"))
            assert await refusal(stub.GetUser(pb.GetUserRequest(name="orders"))) == ("NOT_FOUND", "no user orders")

    run(test())


def test_only_a_generated_secret_is_told_and_only_once() -> None:
    async def test() -> None:
        bench = Bench(FIRST_KEY)
        async with bench.serving() as stub:
            made = await stub.CreateUser(pb.CreateUserRequest(name="orders", secret=SECRET))
            assert not made.generated_secret
            added = await stub.AddSecret(pb.AddSecretRequest(name="orders"))
            assert (added.secret.number, len(added.generated_secret)) == (2, 32)
            await stub.SetRule(
                pb.SetRuleRequest(user="orders", rule=pb.Rule(resource="*", actions=["pub"], decision="allow"))
            )
            answers = [
                made,
                await stub.GetUser(pb.GetUserRequest(name="orders")),
                await stub.UpdateUser(pb.UpdateUserRequest(name="orders", enabled=True)),
                *[page async for page in stub.ListUsers(pb.ListUsersRequest())],
                *[page async for page in stub.ListPolicies(pb.ListPoliciesRequest())],
                await stub.ResealSecrets(pb.ResealSecretsRequest()),
            ]
            for answer in answers:
                assert SECRET.encode() not in answer.SerializeToString()
                assert added.generated_secret.encode() not in answer.SerializeToString()
            assert answers[-1].count == 2
            await stub.RemoveSecret(pb.RemoveSecretRequest(name="orders", number=1))
            again = await stub.AddSecret(pb.AddSecretRequest(name="orders", secret=OTHER))
            assert again == pb.AddSecretResponse(secret=pb.Secret(number=3, created_at_ms=bench.clock.wall_ms()))

    run(test())


def test_refusals_say_why_and_show_no_secret() -> None:
    async def test() -> None:
        async with Bench(FIRST_KEY).serving() as stub:
            with structlog.testing.capture_logs() as logs:
                short = "short secr"
                code, text = await refusal(stub.CreateUser(pb.CreateUserRequest(name="orders", secret=short)))
                assert (code, short in text, "12 to 256" in text) == ("INVALID_ARGUMENT", False, True)
                for empty in (pb.CreateUserRequest(name="a", secret=""), pb.CreateUserRequest(name="", secret=SECRET)):
                    assert (await refusal(stub.CreateUser(empty)))[0] == "INVALID_ARGUMENT"
                both = pb.CreateUserRequest(name="a", secret=SECRET, without_secret=True)
                assert (await refusal(stub.CreateUser(both)))[0] == "INVALID_ARGUMENT"
                await stub.CreateUser(pb.CreateUserRequest(name="orders", secret=SECRET))
                again = await refusal(stub.CreateUser(pb.CreateUserRequest(name="orders", secret=OTHER)))
                assert again == ("ALREADY_EXISTS", "user orders exists")
                kind = await refusal(stub.UpdateUser(pb.UpdateUserRequest(name="orders", kind="root")))
                assert kind == ("INVALID_ARGUMENT", "kind 'root': one of super, normal is allowed")
            assert SECRET not in str(logs)
            assert short not in str(logs)

    run(test())


def test_without_a_key_the_setting_is_named() -> None:
    async def test() -> None:
        keyed = Bench(FIRST_KEY)
        keyed.tables.users.create(orders())
        bench = Bench()
        bench.admin.engine = keyed.admin.engine
        bench.tables = Tables(keyed.admin.engine)
        async with bench.serving() as stub:
            for call in (
                stub.CreateUser(pb.CreateUserRequest(name="other")),
                stub.AddSecret(pb.AddSecretRequest(name="orders")),
                stub.ResealSecrets(pb.ResealSecretsRequest()),
            ):
                code, text = await refusal(call)
                assert (code, "security.key_file" in text) == ("FAILED_PRECONDITION", True)
            cards = pb.CreateUserRequest(name="cards", certificates=["CN=cards"], without_secret=True)
            assert not (await stub.CreateUser(cards)).user.secrets
            pages = [page async for page in stub.ListUsers(pb.ListUsersRequest())]
            assert [user.name for page in pages for user in page.users] == ["cards", "orders"]
            await stub.DeleteUser(pb.DeleteUserRequest(name="orders"))

    run(test())


def _rule(resource: str, *actions: str, decision: str = "allow", sources: tuple[str, ...] = ()) -> pb.Rule:
    return pb.Rule(resource=resource, actions=actions, decision=decision, sources=sources)


def test_rules_are_set_shown_and_removed() -> None:
    async def test() -> None:
        bench = Bench(FIRST_KEY)
        bench.tables.users.create(orders())
        async with bench.serving() as stub:
            wide = await stub.SetRule(pb.SetRuleRequest(user="orders", rule=_rule("topic:*", "sub", "pub")))
            assert wide == _rule("topic:*", "pub", "sub")
            narrow = _rule("topic:a", "pub", decision="deny", sources=("10.0.0.0/8", "192.0.2.1/32"))
            sent = _rule("topic:a", "pub", decision="deny", sources=("10.0.0.0/8", "192.0.2.1"))
            assert await stub.SetRule(pb.SetRuleRequest(user="orders", rule=sent)) == narrow
            policy = await stub.GetPolicy(pb.GetPolicyRequest(user="orders"))
            assert policy == pb.Policy(user="orders", rules=[wide, narrow])
            pages = [page async for page in stub.ListPolicies(pb.ListPoliciesRequest(prefix="o"))]
            assert [each for page in pages for each in page.policies] == [policy]
            await stub.RemoveRule(pb.RemoveRuleRequest(user="orders", resource="topic:*", decision="allow"))
            gone = await refusal(stub.RemoveRule(pb.RemoveRuleRequest(user="orders", resource="topic:*")))
            assert gone == ("NOT_FOUND", "user orders has no rule of topic:*")
            for user in (
                stub.GetPolicy(pb.GetPolicyRequest(user="x")),
                stub.TestAccess(pb.TestAccessRequest(user="x")),
            ):
                assert await refusal(user) == ("NOT_FOUND", "no user x")

    run(test())


def test_access_is_tested_without_doing_anything() -> None:
    async def test() -> None:
        bench = Bench(FIRST_KEY)
        bench.tables.users.create(orders())
        async with bench.serving() as stub:

            async def asked(resource: str, source: str = "") -> pb.TestAccessResponse:
                request = pb.TestAccessRequest(user="orders", action="pub", resource=resource, source=source)
                answer: pb.TestAccessResponse = await stub.TestAccess(request)
                return answer

            nothing = await asked("topic:a")
            assert nothing == pb.TestAccessResponse(decision="deny", reason="no rule matches")
            rule = _rule("topic:*", "pub", sources=("10.0.0.0/8",))
            await stub.SetRule(pb.SetRuleRequest(user="orders", rule=rule))
            assert (await asked("topic:a")).decision == "deny"
            found = await asked("topic:a", "10.1.1.1")
            assert found == pb.TestAccessResponse(decision="allow", reason="the rule of topic:* decides", rule=rule)
            await stub.UpdateUser(pb.UpdateUserRequest(name="orders", kind="super"))
            assert await asked("group:b") == pb.TestAccessResponse(
                decision="allow", reason="super users may do everything"
            )
            await stub.UpdateUser(pb.UpdateUserRequest(name="orders", enabled=False))
            assert await asked("group:b") == pb.TestAccessResponse(decision="deny", reason="the user is disabled")
            for wrong in (asked("*"), asked("topic:a*"), asked("topic:a", "localhost")):
                assert (await refusal(wrong))[0] == "INVALID_ARGUMENT"

    run(test())
