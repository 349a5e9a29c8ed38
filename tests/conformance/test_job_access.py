"""Jobs are begun, shown and cancelled by who may do what they do, and by who may look after the broker."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import grpc.aio
import pytest

from quarry_mq.protocol.proto.quarry.admin.v1 import jobs_pb2 as pb
from quarry_mq.protocol.proto.quarry.admin.v1.jobs_pb2_grpc import JobServiceStub
from quarry_mq.protocol.proto.quarry.admin.v1.verification_pb2 import BeginVerificationRequest
from quarry_mq.protocol.proto.quarry.admin.v1.verification_pb2_grpc import VerificationServiceStub
from quarry_mq.store.security.model import UserKind
from tests.conformance.broker import RunningBroker, until
from tests.conformance.conftest import WithBroker
from tests.conformance.jobs import resend, reset_to_latest
from tests.conformance.secured import SECURED, add_user
from tests.conformance.test_admin_access import Operator

JOBS = "/quarry.admin.v1.JobService/"
BEGIN_VERIFICATION = "/quarry.admin.v1.VerificationService/BeginVerification"


class JobOperator(Operator):
    """Calls the job service as a user."""

    async def ask(self, method: str, request: Any) -> Any:
        """The answer, or the code that the call ended with and its text."""
        async with grpc.aio.insecure_channel(self._broker.admin) as channel:
            stub: Any = JobServiceStub(channel)
            try:
                return await getattr(stub, method)(request, metadata=self.headers(JOBS + method))
            except grpc.aio.AioRpcError as error:
                return error.code().name, error.details()

    async def seen(self) -> list[str]:
        """The kinds of the jobs that it may see."""
        return [job.kind for job in (await self.ask("ListJobs", pb.ListJobsRequest())).jobs]


RULES = {
    "resetter": ["topic:orders update", "group:billing update"],
    "half": ["topic:orders update get", "group:billing get"],
    "sender": ["topic:orders get", "topic:orders-again pub"],
    "watcher": ["cluster:DefaultCluster get"],
    "keeper": ["cluster:DefaultCluster get update"],
}
DENIED = "PERMISSION_DENIED"


def operators(broker: RunningBroker) -> dict[str, JobOperator]:
    """By name, with the topics and the group that their rules are about."""
    for topic in ("orders", "orders-again", "payments"):
        broker.topic(topic)
    broker.group("billing")
    for user, rules in RULES.items():
        add_user(broker, user, *rules)
    add_user(broker, "ops", kind=UserKind.SUPER)
    return {user: JobOperator(broker, user) for user in (*RULES, "ops")}


async def verify(broker: RunningBroker, operator: JobOperator) -> int:
    """The id of a verification that has begun."""
    async with grpc.aio.insecure_channel(broker.admin) as channel:
        stub: Any = VerificationServiceStub(channel)
        headers = operator.headers(BEGIN_VERIFICATION)
        return int((await stub.BeginVerification(BeginVerificationRequest(), metadata=headers)).id)


def test_who_may_do_what_a_job_does_may_begin_it(with_broker: WithBroker) -> None:
    async def test(broker: RunningBroker) -> None:
        users = operators(broker)
        reset = reset_to_latest("billing", "orders")
        letters = pb.BeginJobRequest(resend_dead_letters=pb.DeadLettersResend(group="billing"))
        own, again = resend("orders", queue=0), resend("orders", queue=0, to_topic="orders-again")
        other = resend("payments", queue=0, to_topic="orders-again")
        for user, request, text in (
            ("half", reset, "user half may not update on group billing"),
            ("sender", reset, "user sender may not update on group billing"),
            ("half", letters, "user half may not update on group billing"),
            ("sender", own, "user sender may not pub on topic orders"),
            ("half", own, "user half may not pub on topic orders"),
            ("sender", other, "user sender may not get on topic payments"),
            ("keeper", reset, "user keeper may not update on group billing"),
        ):
            assert await users[user].ask("BeginJob", request) == (DENIED, text)
        assert (await users["resetter"].ask("BeginJob", reset)).kind == "reset-offset"
        assert (await users["sender"].ask("BeginJob", again)).kind == "resend-messages"
        assert (await users["resetter"].ask("BeginJob", letters)).kind == "resend-dead-letters"
        assert (await users["sender"].ask("BeginJob", pb.BeginJobRequest()))[0] == "INVALID_ARGUMENT"

    with_broker(test, security=SECURED)


def test_a_job_is_seen_and_cancelled_by_who_might_have_begun_it_and_by_who_keeps_the_broker(
    with_broker: WithBroker, tmp_path: Path
) -> None:
    async def test(broker: RunningBroker) -> None:
        users = operators(broker)
        reset = reset_to_latest("billing", "orders")
        begun = await users["resetter"].ask("BeginJob", reset)
        await users["sender"].ask("BeginJob", resend("orders", queue=0, to_topic="orders-again"))
        verdict = await verify(broker, users["keeper"])
        seen = {name: await user.seen() for name, user in users.items()}
        everything = ["verify", "resend-messages", "reset-offset"]
        assert seen == {
            "resetter": ["reset-offset"],
            "half": [],
            "sender": ["resend-messages"],
            "watcher": everything,
            "keeper": everything,
            "ops": everything,
        }
        await until(lambda: not broker.registry.get_sample_value("quarry_jobs_open"), "jobs end")
        get, cancel = pb.GetJobRequest(id=begun.id), pb.CancelJobRequest(id=begun.id)
        missing = ("NOT_FOUND", f"there is no job {begun.id}")
        ended = ("INVALID_ARGUMENT", f"job {begun.id} has ended: it is done")
        for name, shown, cancelled in (
            ("half", False, missing),
            ("sender", False, missing),
            ("watcher", True, missing),
            ("resetter", True, ended),
            ("keeper", True, ended),
            ("ops", True, ended),
        ):
            found = await users[name].ask("GetJob", get)
            assert (found.reset_offset == reset.reset_offset) if shown else found == missing
            assert await users[name].ask("CancelJob", cancel) == cancelled
        assert (await users["sender"].ask("CancelJob", pb.CancelJobRequest(id=verdict)))[0] == "NOT_FOUND"

    with_broker(test, security=SECURED, log={"audit_file": tmp_path / "audit.log"})
    lines = [json.loads(line) for line in (tmp_path / "audit.log").read_text().splitlines()]
    told = [(each["user"], each["method"], each.get("resource"), each["outcome"]) for each in lines]
    assert ("resetter", "JobService/BeginJob", "group:billing, topic:orders", "done") in told
    assert ("sender", "JobService/BeginJob", "topic:orders, topic:orders-again", "done") in told
    (job,) = {resource for user, method, resource, _ in told if (user, method) == ("half", "JobService/CancelJob")}
    assert job.startswith("job:")


def test_strangers_and_who_may_not_are_told_nothing_of_jobs(with_broker: WithBroker) -> None:
    async def test(broker: RunningBroker) -> None:
        add_user(broker, "nobody")
        async with grpc.aio.insecure_channel(broker.admin) as channel:
            stub: Any = JobServiceStub(channel)
            for method, request in (
                ("BeginJob", reset_to_latest("g", "t")),
                ("GetJob", pb.GetJobRequest(id=1)),
                ("ListJobs", pb.ListJobsRequest()),
                ("CancelJob", pb.CancelJobRequest(id=1)),
            ):
                code, _ = await JobOperator(broker, "nobody", "wrong-secret-indeed").ask(method, request)
                assert code == "UNAUTHENTICATED"
                with pytest.raises(grpc.aio.AioRpcError, match="UNAUTHENTICATED"):
                    await getattr(stub, method)(request)
        assert await JobOperator(broker, "nobody").seen() == []

    with_broker(test, security=SECURED)


def test_without_rules_every_user_sees_every_job(with_broker: WithBroker) -> None:
    async def test(broker: RunningBroker) -> None:
        broker.topic("orders")
        broker.group("billing")
        add_user(broker, "team")
        team = JobOperator(broker, "team")
        job = await team.ask("BeginJob", reset_to_latest("billing", "orders"))
        assert await team.seen() == ["reset-offset"]
        assert (await team.ask("GetJob", pb.GetJobRequest(id=job.id))).id == job.id

    with_broker(
        test, security={**SECURED, "authorization": False, "authentication": False, "admin_authentication": True}
    )
