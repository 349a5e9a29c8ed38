"""Long work through the admin port: resets of many queues and messages sent once more, cancelled and gone on with."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import grpc.aio
import pytest
from structlog.testing import capture_logs
from typer.testing import CliRunner

from quarry_mq.cli.main import app
from quarry_mq.protocol.messages.property_names import RESENT_FROM, RESENT_ID
from quarry_mq.protocol.proto.apache.rocketmq.v2 import definition_pb2 as definition
from quarry_mq.protocol.proto.quarry.admin.v1 import admin_pb2, dead_letters_pb2, verification_pb2
from quarry_mq.protocol.proto.quarry.admin.v1 import jobs_pb2 as pb
from quarry_mq.protocol.proto.quarry.admin.v1.admin_pb2_grpc import AdminServiceStub
from quarry_mq.protocol.proto.quarry.admin.v1.dead_letters_pb2_grpc import DeadLetterServiceStub
from quarry_mq.protocol.proto.quarry.admin.v1.verification_pb2_grpc import VerificationServiceStub
from quarry_mq.server import tasks
from quarry_mq.server.admin import administration as administration_module
from quarry_mq.server.admin import dead_letter_box as box_module
from quarry_mq.server.jobs import Running
from quarry_mq.store.message import QueueId, QueueOffset
from quarry_mq.store.metadata import Topic, TopicType
from tests.conformance.broker import RunningBroker, run, running_broker
from tests.conformance.client import Client, message
from tests.conformance.conftest import WithBroker
from tests.conformance.jobs import OPEN, done, job_service, resend, reset_to_latest, stand_in_lite_topics, until
from tests.conformance.lite import GROUP, PARENT, LiteClient, found, send
from tests.conformance.test_dead_letters import with_dead_letters
from tests.conformance.test_transactions import end
from tests.schemas import assert_documented

EARLIEST = {"new_group_start": "earliest"}
INDEX = {"hash_files": True, "hash_slots": 7, "hash_items": 30}


async def refusal(call: Any) -> tuple[grpc.StatusCode, str]:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call
    return caught.value.code(), caught.value.details() or ""


async def command(broker: RunningBroker, *arguments: str) -> tuple[int, list[dict[str, Any]], str]:
    """Exit status, rows and errors of a command, which runs beside the broker."""
    words = [*arguments, "--json", "--admin", broker.admin]
    with capture_logs():  # the broker's are no part of what the command says
        result = await asyncio.to_thread(CliRunner().invoke, app, words)
    assert_documented(words, result.stdout)
    return result.exit_code, [json.loads(line) for line in result.stdout.splitlines()], result.stderr


def slow_down(patch: pytest.MonkeyPatch) -> None:
    """Long pauses between steps, so that a test can be in the middle of a job."""
    patch.setattr(tasks, "PAUSES_PER_SLICE", 50)


# -- resets


def test_a_group_is_moved_in_all_queues_of_a_topic(with_broker: WithBroker) -> None:
    async def test(broker: RunningBroker) -> None:
        broker.topic("orders", queues=8)
        broker.group("billing")
        async with Client(broker.endpoint) as client, job_service(broker) as jobs:
            for number in range(16):
                await client.sent(message("orders", b"%d" % number))
            dry = reset_to_latest("billing", "orders")
            dry.dry_run = True
            found = await done(jobs, dry)
            assert (found.state, found.dry_run, found.counts["moved"]) == ("done", True, 8)
            assert broker.delivery.next_offset("billing", QueueId("orders", 0)) is None
            found = await done(jobs, reset_to_latest("billing", "orders"))
            assert (found.kind, found.asked_by, found.done, found.total) == ("reset-offset", "tests", 8, 8)
            assert dict(found.counts) == {"reset": 8, "moved": 8}
            assert found.reset_offset == reset_to_latest("billing", "orders").reset_offset
            assert not (await client.receive("billing", "orders")).ids
            assert dict((await done(jobs, reset_to_latest("billing", "orders"))).counts) == {"reset": 8, "moved": 0}
            earliest = pb.OffsetsReset(group="billing", topic="orders", queue=3, earliest=admin_pb2.Earliest())
            found = await done(jobs, pb.BeginJobRequest(reset_offset=earliest))
            assert (found.total, found.asked_by, found.reset_offset) == (1, "unknown", earliest)
            assert len((await client.receive("billing", "orders")).ids) == 2
            listed = await jobs.ListJobs(pb.ListJobsRequest())
            assert [each.kind for each in listed.jobs] == ["reset-offset"] * 4

    with_broker(test, delivery=EARLIEST)


def test_a_group_is_moved_in_the_lite_topics_in_which_it_stands(with_broker: WithBroker) -> None:
    async def test(broker: RunningBroker) -> None:
        broker.topic(PARENT, TopicType.LITE, queues=2)
        async with LiteClient(broker.endpoint) as client, job_service(broker) as jobs:
            await client.start()
            await client.add("a", "b")
            for lite_topic in ("a", "b", "c"):
                await send(client, lite_topic, b"1", b"2")
            await client.done(await client.got(count=10))
            await client.done(await client.got(count=10))
            others = stand_in_lite_topics(broker, GROUP, f"{PARENT}-more", 3)
            waiting = asyncio.create_task(client.got(polling_s=5, count=10))
            await asyncio.sleep(0.1)
            earliest = pb.OffsetsReset(group=GROUP, topic=PARENT, earliest=admin_pb2.Earliest())
            reset = await done(jobs, pb.BeginJobRequest(reset_offset=earliest))
            assert (reset.state, reset.done, reset.total) == ("done", 4, 4)
            assert dict(reset.counts) == {"reset": 4, "moved": 4}
            # who waited for it has heard
            again = await waiting
            again_too = await client.got(count=10, polling_s=1) if len(again.messages) < 4 else again
            bodies = set(found(again)) | set(found(again_too))
            assert bodies == {("a", b"1"), ("a", b"2"), ("b", b"1"), ("b", b"2")}
            assert [broker.delivery.next_offset(GROUP, each) for each in others] == [3, 3, 3]

    with_broker(test, delivery=EARLIEST)


@pytest.mark.parametrize("count", [5_000, pytest.param(20_000, marks=pytest.mark.slow)])
def test_many_queues_are_reset_while_sends_go_on(with_broker: WithBroker, count: int) -> None:
    async def test(broker: RunningBroker) -> None:
        broker.topic(PARENT, TopicType.LITE)
        broker.topic("orders")
        broker.group("billing")
        queues = stand_in_lite_topics(broker, "billing", PARENT, count)
        async with Client(broker.endpoint) as client, job_service(broker) as jobs:
            job = await jobs.BeginJob(reset_to_latest("billing", PARENT))
            sent = 0
            while (job := await jobs.GetJob(pb.GetJobRequest(id=job.id))).state in OPEN:
                await client.sent(message("orders"))
                sent += 1
            assert (job.state, job.done, job.counts["moved"]) == ("done", count + 4, count + 4)
            assert sent > 20
            assert {broker.delivery.next_offset("billing", queue) for queue in queues} == {0}

    with_broker(test)


def test_after_a_restart_a_reset_goes_on_and_a_cancelled_one_does_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def test() -> None:
        slow_down(monkeypatch)
        async with running_broker(tmp_path, monkeypatch) as broker, job_service(broker) as jobs:
            broker.topic(PARENT, TopicType.LITE)
            broker.group("billing")
            broker.group("audit")
            queues = stand_in_lite_topics(broker, "billing", PARENT, 1_500)
            stand_in_lite_topics(broker, "audit", PARENT, 1_500)
            cancelled = await jobs.BeginJob(reset_to_latest("audit", PARENT))
            await until(jobs, cancelled, lambda job: job.done > 0)
            assert (await jobs.CancelJob(pb.CancelJobRequest(id=cancelled.id))).state in {"running", "cancelled"}
            found = await until(jobs, cancelled, lambda job: job.state == "cancelled")
            assert 0 < found.done < found.total == 1_504
            begun = await jobs.BeginJob(reset_to_latest("billing", PARENT))
            waiting = await jobs.BeginJob(reset_to_latest("billing", PARENT, queue=0))
            assert (await jobs.GetJob(pb.GetJobRequest(id=waiting.id))).state == "waiting"
            await until(jobs, begun, lambda job: job.done > 4)
        monkeypatch.setattr(tasks, "PAUSES_PER_SLICE", 3)
        async with running_broker(tmp_path, monkeypatch) as broker, job_service(broker) as jobs:
            ended = await until(jobs, waiting, lambda job: job.state not in OPEN)
            assert ended.state == "done"
            ended = await jobs.GetJob(pb.GetJobRequest(id=begun.id))
            assert (ended.state, ended.done, ended.counts["moved"]) == ("done", 1_504, 1_504)
            assert {broker.delivery.next_offset("billing", queue) for queue in queues} == {0}
            kept = await jobs.GetJob(pb.GetJobRequest(id=cancelled.id))
            assert (kept.state, kept.done) == ("cancelled", found.done)

    run(test())


@pytest.mark.parametrize("deleted_after", [1, 4, 100], ids=["queues", "before lite topics", "lite topics"])
def test_a_group_that_is_deleted_ends_its_reset(
    with_broker: WithBroker, monkeypatch: pytest.MonkeyPatch, deleted_after: int
) -> None:
    async def test(broker: RunningBroker) -> None:
        broker.topic(PARENT, TopicType.LITE, queues=4)
        broker.group("billing")
        stand_in_lite_topics(broker, "billing", PARENT, 1_500)
        async with grpc.aio.insecure_channel(broker.admin) as channel, job_service(broker) as jobs:
            admin: Any = AdminServiceStub(channel)

            async def rest(running: Running) -> None:
                if running.job.done == deleted_after:
                    await admin.DeleteGroup(admin_pb2.DeleteGroupRequest(name="billing"))

            monkeypatch.setattr(Running, "rest", rest)
            begun = await jobs.BeginJob(reset_to_latest("billing", PARENT))
            found = await until(jobs, begun, lambda job: job.state not in OPEN)
            assert (found.state, found.remark) == ("failed", "no group billing")

    with_broker(test)


def test_one_call_moves_a_group_in_few_queues_and_names_the_job_for_more(
    with_broker: WithBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def test(broker: RunningBroker) -> None:
        monkeypatch.setattr(administration_module, "RESET_QUEUES_MAX", 4)
        broker.topic("orders", queues=4)
        broker.topic("wide", queues=5)
        broker.group("billing")
        broker.topic(PARENT, TopicType.LITE)
        async with LiteClient(broker.endpoint) as client:
            await client.start()
            await client.add("a")
        async with grpc.aio.insecure_channel(broker.admin) as channel:
            admin: Any = AdminServiceStub(channel)

            def reset(group: str, topic: str, **terms: Any) -> Any:
                latest = admin_pb2.Latest()
                return admin.ResetOffset(admin_pb2.ResetOffsetRequest(group=group, topic=topic, latest=latest, **terms))

            assert len((await reset("billing", "orders")).queues) == 4
            assert len((await reset("billing", "wide", queue=4)).queues) == 1
            assert len((await reset("billing", PARENT)).queues) == 4
            code, text = await refusal(reset("billing", "wide"))
            assert (code, "start a job" in text) == (grpc.StatusCode.OUT_OF_RANGE, True)
            code, text = await refusal(reset(GROUP, PARENT, dry_run=True))
            assert (code, "lite topics" in text) == (grpc.StatusCode.OUT_OF_RANGE, True)
        status, rows, _ = await command(
            broker, "group", "reset-offset", "--yes", "billing", "--topic", "orders", "--to", "0"
        )
        assert (status, [row["queueId"] for row in rows]) == (0, [0, 1, 2, 3])
        status, [job], _ = await command(
            broker, "group", "reset-offset", "--yes", "billing", "--topic", "wide", "--to", "latest"
        )
        assert (status, job["state"], job["counts"]["reset"]) == (0, "done", 5)
        assert job["asked"] == {"group": "billing", "topic": "wide", "to": "latest"}
        status, [shown], _ = await command(broker, "job", "show", str(job["id"]))
        assert (status, shown) == (0, job)

    with_broker(test)


# -- dead letters


def test_dead_letters_are_sent_again_by_a_job(with_broker: WithBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(broker: RunningBroker) -> None:
        monkeypatch.setattr(box_module, "RESENT_MAX", 2)
        monkeypatch.setattr(box_module, "SENT_AT_ONCE", 2)
        letters = pb.DeadLettersResend(group="billing")
        async with Client(broker.endpoint) as client, job_service(broker) as jobs:
            await with_dead_letters(broker, client, b"a", b"b", b"c", b"d", b"e")
            async with grpc.aio.insecure_channel(broker.admin) as channel:
                box: Any = DeadLetterServiceStub(channel)
                code, text = await refusal(
                    box.ResendDeadLetters(dead_letters_pb2.ResendDeadLettersRequest(group="billing"))
                )
                assert (code, "start a job" in text) == (grpc.StatusCode.OUT_OF_RANGE, True)
            dry = await done(jobs, pb.BeginJobRequest(resend_dead_letters=letters, dry_run=True))
            assert (dry.state, dry.done, dry.counts["sent"]) == ("done", 5, 5)
            status, [job], _ = await command(broker, "dead-letters", "resend", "billing")
            assert (status, job["counts"], job["total"]) == (0, {"sent": 5, "refused": 0}, 5)
            received = await client.receive("billing", "orders", count=10, polling_s=5)
            assert sorted(each.body for each in received.messages) == [b"a", b"b", b"c", b"d", b"e"]
            await client.ack("billing", "orders", *received.handles)
            found = await done(jobs, pb.BeginJobRequest(resend_dead_letters=letters))
            assert (found.state, found.done, found.total) == ("done", 0, 0)
            letters.offsets.extend([4, 0, 4])
            found = await done(jobs, pb.BeginJobRequest(resend_dead_letters=letters))
            assert (found.counts["sent"], list(found.resend_dead_letters.offsets)) == (3, [4, 0, 4])
            received = await client.receive("billing", "orders", count=10, polling_s=5)
            assert sorted(each.body for each in received.messages) == [b"a", b"e", b"e"]
            await client.ack("billing", "orders", *received.handles)
            letters.offsets.append(77)
            found = await done(jobs, pb.BeginJobRequest(resend_dead_letters=letters))
            assert (found.state, found.remark) == ("failed", "offset 77: topic %DLQ%billing has no message there")
            broker.store.topics.delete("orders")
            status, [job], _ = await command(broker, "dead-letters", "resend", "billing", "--offset", "0", "--no-wait")
            assert (status, job["state"]) == (0, "waiting")
            found = await until(jobs, pb.Job(id=job["id"]), lambda job: job.state not in OPEN)
            assert (found.counts["refused"], list(found.first_errors)) == (
                1,
                ["offset 0: topic orders, from which the message came, does not exist"],
            )

    with_broker(test, delivery=EARLIEST)


# -- messages


async def bodies(client: Client, topic: str, group: str = "reader") -> list[bytes]:
    received = await client.receive(group, topic, count=32)
    await client.ack(group, topic, *received.handles)
    return [each.body for each in received.messages]


def test_messages_of_a_queue_are_sent_once_more_as_new_ones(with_broker: WithBroker) -> None:
    async def test(broker: RunningBroker) -> None:
        broker.topic("orders", queues=1)
        broker.topic("copies", queues=1)
        async with Client(broker.endpoint) as client, job_service(broker) as jobs:
            for number in range(40):
                sent = message("orders", b"%d" % number, tag="t", keys=["k"], message_id=f"M{number}")
                sent.user_properties["colour"] = "red"
                await client.sent(sent)
            job = await done(jobs, resend("orders", queue=0, from_offset=3, to_offset=38, to_topic="copies"))
            assert (job.state, job.done, job.total, dict(job.counts)) == ("done", 35, 35, {"sent": 35})
            received = await client.receive("reader", "copies", count=32)
            assert [each.body for each in received.messages] == [b"%d" % number for number in range(3, 35)]
            first = received.messages[0]
            system = first.system_properties
            assert (system.tag, list(system.keys), system.delivery_attempt) == ("t", ["k"], 1)
            assert dict(first.user_properties) == {"colour": "red", RESENT_FROM: "orders/0/3", RESENT_ID: "M3"}
            assert len({each.system_properties.message_id for each in received.messages}) == 32
            assert (system.message_id[:2], len(system.message_id)) == ("01", 34)
            # to its own topic what was there before is sent, and no more
            job = await done(jobs, resend("orders", queue=0))
            assert (job.state, job.counts["sent"]) == ("done", 40)
            assert broker.store.messages.bounds(QueueId("orders", 0)).maximum == 80
            dry = resend("orders", queue=0)
            dry.dry_run = True
            assert (await done(jobs, dry)).counts["sent"] == 80
            assert broker.store.messages.bounds(QueueId("orders", 0)).maximum == 80

    with_broker(test, delivery=EARLIEST)


def test_messages_with_a_key_or_of_a_time_are_sent_once_more(with_broker: WithBroker) -> None:
    async def test(broker: RunningBroker) -> None:
        broker.topic("orders", queues=3)
        broker.topic("copies", queues=1)
        async with Client(broker.endpoint) as client, job_service(broker) as jobs:
            times = []
            for number in range(6):
                keys = ["even"] if number % 2 == 0 else []
                await client.sent(message("orders", b"%d" % number, keys=keys, message_id=f"M{number}"))
                times.append(broker.store.messages.last_stored_ms)
                broker.clock.push(1)
            assert (await done(jobs, resend("orders", key="even", to_topic="copies"))).counts["sent"] == 3
            assert await bodies(client, "copies") == [b"0", b"2", b"4"]
            status, [row], _ = await command(
                broker, "message", "resend", "--topic", "orders", "--key", "M3", "--to-topic", "copies"
            )
            assert (status, row["counts"], row["asked"]["key"]) == (0, {"sent": 1}, "M3")
            assert await bodies(client, "copies") == [b"3"]
            span = {"from_ms": times[1], "to_ms": times[4]}
            job = await done(jobs, resend("orders", to_topic="copies", **span))
            assert (job.counts["sent"], job.done, job.total) == (4, 4, 4)
            assert sorted(await bodies(client, "copies")) == [b"1", b"2", b"3", b"4"]
            job = await done(jobs, resend("orders", to_topic="copies", key="even", **span))
            assert (job.state, await bodies(client, "copies")) == ("done", [b"2", b"4"])
            words = (
                "message",
                "resend",
                "--topic",
                "orders",
                "--since",
                str(times[1]),
                "--until",
                "2096-01-01T00:00:00Z",
            )
            status, [row], _ = await command(broker, *words, "--dry-run")
            assert (status, row["counts"], row["dryRun"]) == (0, {"sent": 5}, True)
            status, _, told = await command(broker, *words[:-1], "tomorrow")
            assert (status, "'tomorrow' is neither a date" in told) == (2, True)
            job = await done(jobs, resend("orders", key="nobody's"))
            assert (job.state, job.done, job.total) == ("done", 0, 0)

    with_broker(test, delivery=EARLIEST, index=INDEX)


def test_a_topic_takes_what_is_sent_again_by_its_type(with_broker: WithBroker) -> None:
    """Delays and transactions are over; groups, lite topics and priorities are kept."""

    async def test(broker: RunningBroker) -> None:
        for kind in TopicType:
            broker.topic(f"of-{kind.name.lower()}", kind, queues=1)
        async with LiteClient(broker.endpoint) as client, job_service(broker) as jobs:
            past = definition.SystemProperties().delivery_timestamp
            past.FromMilliseconds(broker.clock.wall_ms() - 1)
            await client.sent(message("of-normal", b"normal"))
            await client.sent(message("of-fifo", b"fifo", message_group="g", message_type=definition.FIFO))
            await client.sent(message("of-delay", b"delay", delivery_timestamp=past, message_type=definition.DELAY))
            await client.sent(message("of-lite", b"lite", lite_topic="chat", message_type=definition.LITE))
            await client.sent(message("of-priority", b"high", priority=3, message_type=definition.PRIORITY))
            half = await client.send(message("of-transaction", b"paid", message_type=definition.TRANSACTION))
            committed = await end(client, "of-transaction", half.entries[0], definition.COMMIT)
            assert committed == definition.OK
            for word in ("normal", "fifo", "delay", "lite", "priority", "transaction"):
                topic = f"of-{word}"
                await until_stored(broker, topic, 1)
                job = await done(jobs, resend(topic, queue=0))
                assert (word, job.state, dict(job.counts), list(job.first_errors)) == (word, "done", {"sent": 1}, [])
                await until_stored(broker, topic, 2)
                record = last_record(broker, topic)
                assert record.properties[RESENT_FROM] == f"{topic}/0/0"
                assert "TIMER_OUT_MS" not in record.properties or word == "delay"
            assert broker.store.messages.bounds(QueueId("%LMQ%$of-lite$chat", 0)).maximum == 2
            job = await done(jobs, resend("of-fifo", queue=0, to_topic="of-normal"))
            assert (job.state, dict(job.counts)) == ("done", {"refused": 2})
            assert "of type normal and takes no FIFO messages" in job.first_errors[0]
            assert job.first_errors[0].startswith("offset 0 of queue 0: ")
            status, [shown], _ = await command(broker, "job", "show", str(job.id))
            assert (status, len(shown["firstErrors"])) == (1, 2)
            assert (await done(jobs, resend("of-delay", queue=0, to_topic="of-normal"))).counts["sent"] == 2

    with_broker(test, delivery=EARLIEST)


def last_record(broker: RunningBroker, topic: str) -> Any:
    store = broker.store.messages
    queue = QueueId(topic, 0)
    [entry] = store.entries(queue, QueueOffset(store.bounds(queue).maximum - 1), 1)
    return store.read(entry)


async def until_stored(broker: RunningBroker, topic: str, count: int) -> None:
    async with asyncio.timeout(5):
        while broker.store.messages.bounds(QueueId(topic, 0)).maximum < count:
            await asyncio.sleep(0.01)


# -- what is wrong


WRONG = (
    (pb.BeginJobRequest(), "INVALID_ARGUMENT", "work must be reset_offset"),
    (pb.BeginJobRequest(reset_offset=pb.OffsetsReset(group="g", topic="t")), "INVALID_ARGUMENT", "position must"),
    (reset_to_latest("ghost", "t"), "NOT_FOUND", "no group ghost"),
    (reset_to_latest("g", "ghost"), "NOT_FOUND", "no topic ghost"),
    (reset_to_latest("g", "t", queue=9), "INVALID_ARGUMENT", "topic t has no queue 9"),
    (pb.BeginJobRequest(resend_dead_letters=pb.DeadLettersResend(group="x")), "NOT_FOUND", "no dead letters"),
    (
        pb.BeginJobRequest(resend_dead_letters=pb.DeadLettersResend(group="g", offsets=range(1_001))),
        "INVALID_ARGUMENT",
        "offsets: 1001 are given",
    ),
    (resend("t"), "INVALID_ARGUMENT", "key, queue or a time must be given"),
    (resend("ghost", queue=0), "NOT_FOUND", "topic: no topic ghost"),
    (resend("t", queue=0, to_topic="ghost"), "NOT_FOUND", "to_topic: no topic ghost"),
    (resend("t", queue=9), "INVALID_ARGUMENT", "queue: topic t has no queue 9"),
    (resend("t", from_offset=1), "INVALID_ARGUMENT", "queue: must be given together with offsets"),
    (resend("t", key="k" * 4_097), "INVALID_ARGUMENT", "key: 4097 characters"),
    (resend("t", key="k", queue=0), "INVALID_ARGUMENT", "key: all queues are searched for it"),
    (resend("t", queue=0, from_offset=2, to_offset=1), "INVALID_ARGUMENT", "from_offset: 2 to 1 is not a range"),
    (resend("t", from_ms=-1), "INVALID_ARGUMENT", "from_ms: -1 to None is not a range"),
    (resend("t", key="k"), "FAILED_PRECONDITION", "index"),
    (resend("t", queue=0, to_topic="%DLQ%g"), "FAILED_PRECONDITION", "only the broker may send to topic %DLQ%g"),
    (resend("SELF_TEST_TOPIC", queue=0), "FAILED_PRECONDITION", "SELF_TEST_TOPIC is reserved for the broker"),
)


def test_what_cannot_be_done_is_told_at_once(with_broker: WithBroker) -> None:
    async def test(broker: RunningBroker) -> None:
        broker.topic("t", queues=2)
        broker.group("g")
        for name in ("%DLQ%g", "SELF_TEST_TOPIC"):
            if broker.store.topics.get(name) is None:
                broker.store.topics.create(Topic(name, TopicType.NORMAL, 1, 1), internal=True)
        async with job_service(broker) as jobs:
            for request, code, text in WRONG:
                found, told = await refusal(jobs.BeginJob(request))
                assert (found.name, text in told) == (code, True), told
            assert not (await jobs.ListJobs(pb.ListJobsRequest())).jobs

    with capture_logs() as logged:
        with_broker(test)
    outcomes = [each["outcome"] for each in logged if each["event"] == "admin change"]
    assert outcomes == [code.lower() for _, code, _ in WRONG]


def test_jobs_that_are_not_there_are_not_found_and_ended_ones_not_cancelled(with_broker: WithBroker) -> None:
    async def test(broker: RunningBroker) -> None:
        broker.topic("orders", queues=2)
        broker.group("billing")
        async with job_service(broker) as jobs, grpc.aio.insecure_channel(broker.admin) as channel:
            for call in (jobs.GetJob(pb.GetJobRequest(id=7)), jobs.CancelJob(pb.CancelJobRequest(id=7))):
                assert await refusal(call) == (grpc.StatusCode.NOT_FOUND, "there is no job 7")
            ended = await done(jobs, reset_to_latest("billing", "orders"))
            code, text = await refusal(jobs.CancelJob(pb.CancelJobRequest(id=ended.id)))
            assert (code, text) == (grpc.StatusCode.INVALID_ARGUMENT, f"job {ended.id} has ended: it is done")
            # verifications are jobs, too
            async with Client(broker.endpoint) as client:
                await client.sent(message("orders"))
            verifying: Any = VerificationServiceStub(channel)
            verdict = await verifying.BeginVerification(verification_pb2.BeginVerificationRequest(asked_by="me"))
            shown = await until(jobs, pb.Job(id=verdict.id), lambda job: job.state not in OPEN)
            assert (shown.kind, shown.state, shown.asked_by, shown.WhichOneof("work")) == ("verify", "done", "me", None)
            assert dict(shown.counts) == {"differences": 0}
            status, rows, _ = await command(broker, "job", "list")
            assert (status, [row["kind"] for row in rows]) == (0, ["verify", "reset-offset"])
            status, _, told = await command(broker, "job", "cancel", str(verdict.id))
            assert (status, "is not running" in told) == (2, True)

    with_broker(test)
