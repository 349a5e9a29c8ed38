"""Users, their secrets and their rules are at the broker what resources and Secrets declare."""

from __future__ import annotations

from contextlib import suppress
from functools import partial

import grpc

from quarry_mq.cli.operator.resources import ACCESS_RULE, DRIFTED, USER, Resource
from quarry_mq.protocol.clock import SystemClock
from quarry_mq.protocol.proto.quarry.admin.v1 import security_pb2 as pb
from tests.operator.bench import Bench, run
from tests.operator.conftest import OpenBench

HOUR_MS = 3_600_000
SECRET = "a-secret-of-the-test"
OTHER_SECRET = "another-secret-of-the-test"


class PushedClock(SystemClock):
    """The clock of the machine, and more."""

    pushed_ms = 0

    def wall_ms(self) -> int:
        return super().wall_ms() + self.pushed_ms


async def user_of(bench: Bench, name: str) -> pb.User:
    user: pb.User = await bench.call("SecurityService/GetUser", pb.GetUserRequest(name=name))
    return user


async def exists(bench: Bench, name: str) -> bool:
    pages = bench.admin.stream("SecurityService/ListUsers", pb.ListUsersRequest(prefix=name))
    return name in [each.name async for page in pages for each in page.users]


async def numbers_of(bench: Bench, name: str) -> list[int]:
    return [each.number for each in (await user_of(bench, name)).secrets]


async def rules_of(bench: Bench, name: str) -> list[pb.Rule]:
    return list((await bench.call("SecurityService/GetPolicy", pb.GetPolicyRequest(user=name))).rules)


def has_number(number: int, resource: Resource) -> bool:
    """Return whether the status of a user says that its Secret is this secret of the broker."""
    return bool(resource.status["secret"]["number"] == number)


def test_a_user_gets_a_secret_that_clients_find_in_a_secret(open_bench: OpenBench, name: str) -> None:
    async def scenario() -> None:
        async with open_bench() as bench, bench.operating():
            await bench.declare(USER, name, {"secretName": f"{name}-login"})
            resource = await bench.ready(USER, name)
            user = await user_of(bench, name)
            assert (user.kind, user.enabled, len(user.secrets)) == ("normal", True, 1)
            entries = await bench.secret(f"{name}-login")
            assert entries["accessKey"] == name
            assert len(entries["secretKey"]) == 32
            assert resource.status["secret"]["number"] == user.secrets[0].number
            assert entries["secretKey"] not in str(resource.raw)
            await bench.told(name, "Created", "SecretCreated", "SecretApplied")
            await bench.looked(USER)
            assert await numbers_of(bench, name) == [1]

    run(scenario())


def test_a_secret_that_is_there_is_used(open_bench: OpenBench, name: str) -> None:
    async def scenario() -> None:
        async with open_bench() as bench, bench.operating():
            await bench.set_secret(f"{name}-login", accessKey=name, secretKey=SECRET)
            await bench.declare(USER, name, {"secretName": f"{name}-login", "kind": "super", "enabled": False})
            await bench.ready(USER, name)
            user = await user_of(bench, name)
            assert (user.kind, user.enabled) == ("super", False)
            assert await bench.secret(f"{name}-login") == {"accessKey": name, "secretKey": SECRET}

    run(scenario())


def test_a_changed_secret_is_applied_and_the_one_before_ends_later(open_bench: OpenBench, name: str) -> None:
    async def scenario() -> None:
        clock = PushedClock()
        async with open_bench() as bench, bench.operating(clock):
            await bench.set_secret(f"{name}-login", accessKey=name, secretKey=SECRET)
            await bench.declare(USER, name, {"secretName": f"{name}-login", "previousSecretMinutes": 60})
            await bench.ready(USER, name)
            await bench.set_secret(f"{name}-login", secretKey=OTHER_SECRET)
            await bench.until(USER, name, lambda each: each.status["secret"]["number"] == 2)
            await bench.looked(USER)
            assert await numbers_of(bench, name) == [1, 2]
            clock.pushed_ms = 2 * HOUR_MS
            await bench.found(lambda: numbers_of(bench, name), [2])
            assert (await bench.events(name))[2:] == ["SecretApplied", "SecretRemoved"]

    run(scenario())


def test_a_third_secret_takes_the_place_of_the_first(open_bench: OpenBench, name: str) -> None:
    async def scenario() -> None:
        async with open_bench() as bench, bench.operating():
            await bench.declare(USER, name, {"secretName": f"{name}-login"})
            await bench.ready(USER, name)
            for number, text in ((2, SECRET), (3, OTHER_SECRET)):
                await bench.set_secret(f"{name}-login", secretKey=text)
                await bench.until(USER, name, partial(has_number, number))
            assert await numbers_of(bench, name) == [2, 3]

    run(scenario())


def test_a_label_of_a_secret_is_no_new_secret(open_bench: OpenBench, name: str) -> None:
    async def scenario() -> None:
        async with open_bench() as bench, bench.operating():
            await bench.declare(USER, name, {"secretName": f"{name}-login"})
            await bench.ready(USER, name)
            await bench.looked(USER)
            await bench.set_secret(f"{name}-login", unrelated="entry")
            await bench.looked(USER)
            assert await numbers_of(bench, name) == [1]

    run(scenario())


def test_a_secret_that_was_removed_by_hand_comes_back(open_bench: OpenBench, name: str) -> None:
    async def scenario() -> None:
        async with open_bench() as bench, bench.operating():
            await bench.declare(USER, name, {"secretName": f"{name}-login", "certificates": [f"CN={name}"]})
            await bench.ready(USER, name)
            await bench.call("SecurityService/RemoveSecret", pb.RemoveSecretRequest(name=name, number=1))
            await bench.until(USER, name, lambda each: each.status["secret"]["number"] == 2)
            assert await numbers_of(bench, name) == [2]
            await bench.change(USER, name, {"driftPolicy": "Report"})
            await bench.ready(USER, name)
            await bench.call("SecurityService/RemoveSecret", pb.RemoveSecretRequest(name=name, number=2))
            assert "secret 2" in await bench.not_ready(USER, name, "Drifted")
            assert await numbers_of(bench, name) == []

    run(scenario())


def test_a_user_that_was_made_again_by_hand_gets_its_secret_again(open_bench: OpenBench, name: str) -> None:
    """The numbers of its secrets begin again, too."""

    async def scenario() -> None:
        async with open_bench() as bench, bench.operating():
            await bench.declare(USER, name, {"secretName": f"{name}-login"})
            before = await bench.ready(USER, name)
            await bench.call("SecurityService/DeleteUser", pb.DeleteUserRequest(name=name))
            with suppress(grpc.aio.AioRpcError):  # the operator may have been faster
                await bench.call("SecurityService/CreateUser", pb.CreateUserRequest(name=name))
            changed = before.status["secret"]["createdAtMs"]
            await bench.until(USER, name, lambda each: each.status["secret"]["createdAtMs"] != changed)
            number = (await bench.ready(USER, name)).status["secret"]["number"]
            assert number in await numbers_of(bench, name)

    run(scenario())


def test_a_secret_for_somebody_else_is_refused(open_bench: OpenBench, name: str) -> None:
    async def scenario() -> None:
        async with open_bench() as bench, bench.operating():
            await bench.set_secret(f"{name}-login", accessKey="somebody-else", secretKey=SECRET)
            await bench.declare(USER, name, {"secretName": f"{name}-login"})
            assert "accessKey is not" in await bench.not_ready(USER, name, "SecretInvalid")
            await bench.set_secret(f"{name}-login", accessKey=name, secretKey="short")
            assert "12 to 256" in await bench.not_ready(USER, name, "Refused")
            await bench.set_secret(f"{name}-login", secretKey=SECRET)
            await bench.ready(USER, name)

    run(scenario())


def test_a_user_that_is_there_gets_a_second_secret_when_it_is_adopted(open_bench: OpenBench, name: str) -> None:
    async def scenario() -> None:
        async with open_bench() as bench, bench.operating():
            await bench.call("SecurityService/CreateUser", pb.CreateUserRequest(name=name))
            await bench.set_secret(f"{name}-login", accessKey=name, secretKey=SECRET)
            await bench.declare(USER, name, {"secretName": f"{name}-login"})
            assert "cannot be compared" in await bench.not_ready(USER, name, "AlreadyExists")
            assert await numbers_of(bench, name) == [1]
            await bench.change(USER, name, {"adopt": True})
            await bench.ready(USER, name)
            assert await numbers_of(bench, name) == [1, 2]

    run(scenario())


def test_a_user_with_two_secrets_of_others_has_no_place_for_one(open_bench: OpenBench, name: str) -> None:
    async def scenario() -> None:
        async with open_bench() as bench, bench.operating():
            await bench.call("SecurityService/CreateUser", pb.CreateUserRequest(name=name))
            await bench.call("SecurityService/AddSecret", pb.AddSecretRequest(name=name))
            await bench.declare(USER, name, {"secretName": f"{name}-login", "adopt": True})
            assert "the secrets 1 and 2" in await bench.not_ready(USER, name, "TooManySecrets")
            await bench.call("SecurityService/RemoveSecret", pb.RemoveSecretRequest(name=name, number=1))
            await bench.ready(USER, name)
            assert await numbers_of(bench, name) == [2, 3]

    run(scenario())


def test_certificates_may_be_spelled_in_several_ways(open_bench: OpenBench, name: str) -> None:
    async def scenario() -> None:
        async with open_bench() as bench, bench.operating():
            await bench.declare(USER, name, {"certificates": [f"CN={name}+OU=Till,O=Shop", f"CN={name}-2"]})
            await bench.ready(USER, name)
            assert len((await user_of(bench, name)).certificates) == 2
            await bench.looked(USER)
            await bench.told(name, "Created")
            await bench.call(
                "SecurityService/UpdateUser",
                pb.UpdateUserRequest(name=name, certificates=pb.Certificates(subjects=[f"CN={name}-thief"])),
            )
            await bench.until(USER, name, lambda each: each.condition(DRIFTED)["reason"] == "Corrected")
            await bench.change(USER, name, {"certificates": ["no subject"]})
            assert "RFC 4514" in await bench.not_ready(USER, name, "Refused")

    run(scenario())


def test_a_user_goes_with_its_resource_and_its_secret_stays(open_bench: OpenBench, name: str) -> None:
    async def scenario() -> None:
        async with open_bench() as bench, bench.operating():
            await bench.declare(USER, name, {"secretName": f"{name}-login"})
            await bench.ready(USER, name)
            before = await bench.secret(f"{name}-login")
            await bench.delete(USER, name)
            await bench.gone(USER, name)
            assert not await exists(bench, name)
            # by mistake: declared again, it has the same secret
            await bench.declare(USER, name, {"secretName": f"{name}-login", "deletionPolicy": "Retain"})
            await bench.ready(USER, name)
            assert await bench.secret(f"{name}-login") == before
            await bench.delete(USER, name)
            await bench.gone(USER, name)
            assert await exists(bench, name)

    run(scenario())


def test_the_operator_does_not_change_its_own_user(open_bench: OpenBench, name: str) -> None:
    async def scenario() -> None:
        async with open_bench(own_user=name) as bench, bench.operating():
            await bench.declare(USER, name, {"certificates": [f"CN={name}"]})
            assert "the operator calls the broker as user" in await bench.not_ready(USER, name, "Refused")
            await bench.delete(USER, name)
            await bench.gone(USER, name)
            assert not await exists(bench, name)

    run(scenario())


def test_rules_wait_for_their_user_and_are_as_declared(open_bench: OpenBench, name: str) -> None:
    async def scenario() -> None:
        async with open_bench() as bench, bench.operating():
            rule = {"user": name, "resource": "topic:orders-*", "actions": ["sub", "pub"], "sources": ["192.0.2.7"]}
            await bench.declare(ACCESS_RULE, "orders", rule)
            assert f"no user {name}" in await bench.not_ready(ACCESS_RULE, "orders", "Refused")
            await bench.declare(USER, name, {"certificates": [f"CN={name}"]})
            await bench.ready(ACCESS_RULE, "orders")
            await bench.declare(ACCESS_RULE, "paid", {**rule, "decision": "deny"})
            await bench.ready(ACCESS_RULE, "paid")
            found = {each.decision: each for each in await rules_of(bench, name)}
            assert set(found) == {"allow", "deny"}
            assert (set(found["allow"].actions), list(found["allow"].sources)) == ({"pub", "sub"}, ["192.0.2.7/32"])
            await bench.looked(ACCESS_RULE)
            await bench.told("paid", "Created")
            # another rule of the same resource and decision is the same rule
            await bench.declare(ACCESS_RULE, "twice", rule)
            await bench.not_ready(ACCESS_RULE, "twice", "DeclaredTwice")

    run(scenario())


def test_a_right_that_nobody_declares_any_more_is_gone(open_bench: OpenBench, name: str) -> None:
    async def scenario() -> None:
        async with open_bench() as bench, bench.operating():
            await bench.declare(USER, name, {"certificates": [f"CN={name}"]})
            await bench.declare(ACCESS_RULE, name, {"user": name, "resource": "*", "actions": ["get"]})
            await bench.ready(ACCESS_RULE, name)
            await bench.change(ACCESS_RULE, name, {"actions": ["get", "list"]})
            await bench.ready(ACCESS_RULE, name)
            assert [set(each.actions) for each in await rules_of(bench, name)] == [{"get", "list"}]
            await bench.delete(ACCESS_RULE, name)
            await bench.gone(ACCESS_RULE, name)
            assert await rules_of(bench, name) == []

    run(scenario())


def test_a_rule_that_somebody_widened_is_put_right(open_bench: OpenBench, name: str) -> None:
    async def scenario() -> None:
        async with open_bench() as bench, bench.operating():
            await bench.declare(USER, name, {"certificates": [f"CN={name}"]})
            rule = {"user": name, "resource": "topic:orders", "actions": ["sub"], "sources": ["192.0.2.0/24"]}
            await bench.declare(ACCESS_RULE, name, rule)
            await bench.ready(ACCESS_RULE, name)
            wider = pb.Rule(resource="topic:orders", decision="allow", actions=["sub", "pub"])
            await bench.call("SecurityService/SetRule", pb.SetRuleRequest(user=name, rule=wider))
            corrected = await bench.until(
                ACCESS_RULE, name, lambda each: each.condition(DRIFTED)["reason"] == "Corrected"
            )
            assert "actions: pub, sub at the broker, sub declared" in corrected.condition(DRIFTED)["message"]
            (found,) = await rules_of(bench, name)
            assert (list(found.actions), list(found.sources)) == (["sub"], ["192.0.2.0/24"])

    run(scenario())
