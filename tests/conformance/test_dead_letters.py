"""Dead letters are looked at and sent again through the admin port: to their group alone."""

from __future__ import annotations

import asyncio
import json
import sys
from asyncio.subprocess import PIPE
from pathlib import Path
from typing import Any

import grpc
import pytest

from quarry_mq.protocol.proto.quarry.admin.v1 import admin_pb2, jobs_pb2, overview_pb2
from quarry_mq.protocol.proto.quarry.admin.v1 import dead_letters_pb2 as pb
from quarry_mq.protocol.proto.quarry.admin.v1.admin_pb2_grpc import AdminServiceStub
from quarry_mq.protocol.proto.quarry.admin.v1.dead_letters_pb2_grpc import DeadLetterServiceStub
from quarry_mq.protocol.proto.quarry.admin.v1.overview_pb2_grpc import OverviewServiceStub
from quarry_mq.server.delivery.dead_letters import retry_of
from quarry_mq.store.message import Message
from quarry_mq.store.record import StoredMessage
from quarry_mq.store.state.identity import INFLIGHT
from quarry_mq.store.state.in_flight_key import ROWS
from tests.conformance.broker import RunningBroker
from tests.conformance.client import Client, message
from tests.conformance.conftest import WithBroker
from tests.conformance.jobs import done, job_service
from tests.conformance.test_order import dead_letter
from tests.schemas import assert_documented

EARLIEST = {"new_group_start": "earliest"}


async def with_dead_letters(broker: RunningBroker, client: Client, *bodies: bytes) -> None:
    """Let the group `billing` bury messages of `orders`."""
    if broker.store.topics.get("orders") is None:
        broker.topic("orders", queues=1)
    for body in bodies:
        await client.sent(message("orders", body, tag="t", keys=["k"], message_id=body.decode()))
    received = await client.receive("billing", "orders", count=len(bodies))
    for handle in received.handles:
        await dead_letter(client, "billing", "orders", handle)


async def stub_of(broker: RunningBroker) -> DeadLetterServiceStub:
    return DeadLetterServiceStub(grpc.aio.insecure_channel(broker.admin))


async def run_command(*arguments: str) -> tuple[int, list[dict[str, object]], str]:
    command = [sys.executable, "-m", "quarry_mq.cli.main", "dead-letters", *arguments, "--json"]
    process = await asyncio.create_subprocess_exec(*command, stdout=PIPE, stderr=PIPE)
    stdout, stderr = await process.communicate()
    assert_documented(command[3:], stdout.decode())
    return process.returncode or 0, [json.loads(line) for line in stdout.splitlines()], stderr.decode()


def test_sent_again_they_come_to_their_group_alone_with_attempts_counted_again(with_broker: WithBroker) -> None:
    async def test(broker: RunningBroker) -> None:
        async with Client(broker.endpoint) as client:
            await with_dead_letters(broker, client, b"a", b"b")
            await client.ack("audit", "orders", *(await client.receive("audit", "orders")).handles)
            stub = await stub_of(broker)
            answer = await stub.ResendDeadLetters(pb.ResendDeadLettersRequest(group="billing"))
            assert (answer.resent, list(answer.refused)) == (2, [])
            received = await client.receive("billing", "orders", polling_s=30)
            assert sorted(each.body for each in received.messages) == [b"a", b"b"]
            for each in received.messages:
                system = each.system_properties
                assert each.topic.name == "orders"
                assert (system.message_id, system.delivery_attempt) == (each.body.decode(), 1)
                assert (system.tag, list(system.keys)) == ("t", ["k"])
                assert not system.HasField("dead_letter_queue")
                assert not each.user_properties
            assert not (await client.receive("audit", "orders")).ids
            await client.ack("billing", "orders", *received.handles)
            assert not (await client.receive("billing", "orders")).ids

    with_broker(test, delivery=EARLIEST)


def test_a_message_is_done_with_only_when_its_copy_is_on_the_disk(with_broker: WithBroker) -> None:
    """A group may be done with a message that was on the disk for long only if the copy is there, under `async` too."""

    async def test(broker: RunningBroker) -> None:
        log = broker.store.messages
        async with Client(broker.endpoint) as client:
            await with_dead_letters(broker, client, b"a")
            assert log.flushed_up_to == log.appended_up_to, "among the dead letters"
            await client.sent(message("orders", b"another"))
            assert log.flushed_up_to < log.appended_up_to
            answer = await (await stub_of(broker)).ResendDeadLetters(pb.ResendDeadLettersRequest(group="billing"))
            assert (answer.resent, log.flushed_up_to) == (1, log.appended_up_to)

    with_broker(test, delivery=EARLIEST, store={"durability": "async", "flush_interval_ms": 3_600_000})


def test_only_those_are_sent_that_never_were_unless_they_are_named(with_broker: WithBroker) -> None:
    async def test(broker: RunningBroker) -> None:
        async with Client(broker.endpoint) as client:
            await with_dead_letters(broker, client, b"a", b"b")
            stub = await stub_of(broker)
            everything = pb.ResendDeadLettersRequest(group="billing")
            dry = await stub.ResendDeadLetters(pb.ResendDeadLettersRequest(group="billing", dry_run=True))
            assert (dry.resent, (await stub.ResendDeadLetters(everything)).resent) == (2, 2)
            assert (await stub.ResendDeadLetters(everything)).resent == 0
            await client.ack("billing", "orders", *(await client.receive("billing", "orders", polling_s=30)).handles)
            await with_dead_letters(broker, client, b"c")
            listed = await stub.ListDeadLetters(pb.ListDeadLettersRequest(group="billing", from_offset=0))
            found = [(each.message_id, each.topic, each.was_resent) for each in listed.dead_letters]
            assert found == [("a", "orders", True), ("b", "orders", True), ("c", "orders", False)]
            assert (listed.minimum_offset, listed.maximum_offset, listed.next_offset) == (0, 3, 2)
            new = await stub.ListDeadLetters(pb.ListDeadLettersRequest(group="billing"))
            assert [each.offset for each in new.dead_letters] == [2]
            again = await stub.ResendDeadLetters(pb.ResendDeadLettersRequest(group="billing", offsets=[1]))
            assert again.resent == 1
            received = await client.receive("billing", "orders", polling_s=30)
            assert [each.body for each in received.messages] == [b"b"]
            assert (await stub.ResendDeadLetters(everything)).resent == 1

    with_broker(test, delivery=EARLIEST)


def test_what_cannot_be_sent_is_named_and_stays(with_broker: WithBroker) -> None:
    async def test(broker: RunningBroker) -> None:
        async with Client(broker.endpoint) as client:
            await with_dead_letters(broker, client, b"a")
            broker.store.topics.delete("orders")
            admin = ("--admin", broker.admin)
            code, [answer], _ = await run_command("resend", "billing", *admin)
            assert (code, answer["resent"]) == (1, 0)
            assert answer["refused"] == [
                {"offset": 0, "reason": "topic orders, from which the message came, does not exist"}
            ]
            code, [letter], _ = await run_command("list", "billing", "--from-offset", "0", *admin)
            assert (code, letter["messageId"], letter["topic"], letter["keys"]) == (0, "a", "orders", ["k"])
            code, _, told = await run_command("resend", "billing", "--offset", "7", *admin)
            assert code != 0
            assert "offset 7: topic %DLQ%billing has no message there" in told
            code, _, told = await run_command("list", "nobody", *admin)
            assert code != 0
            assert "group nobody has no dead letters" in told

    with_broker(test, delivery=EARLIEST)


def test_a_damaged_dead_letter_holds_up_no_other_and_is_named(with_broker: WithBroker, tmp_path: Path) -> None:
    async def test(broker: RunningBroker) -> None:
        async with Client(broker.endpoint) as client:
            await with_dead_letters(broker, client, b"a", b"to be damaged", b"c")
            [segment] = tmp_path.glob("**/commitlog/0*")
            content = segment.read_bytes()
            place = content.rindex(b"to be damaged", 0, content.rindex(b"to be damaged"))  # behind it are properties
            with segment.open("r+b") as file:
                file.seek(place)
                file.write(b"TO BE DAMAGED")
            admin = ("--admin", broker.admin)
            code, letters, told = await run_command("list", "billing", *admin)
            assert (code, [each["messageId"] for each in letters]) == (1, ["a", "c"])
            assert "offset 1 is left out: " in told
            assert "to give it up, stop the broker: quarry recover STORE --replace-damaged --dry-run" in told
            code, [answer], _ = await run_command("resend", "billing", *admin)
            assert (code, answer["resent"]) == (1, 2)
            assert "'offset': 1, 'reason': 'its record is damaged: commitlog/" in str(answer["refused"])
            overview = OverviewServiceStub(grpc.aio.insecure_channel(broker.admin))
            found = await overview.GetOverview(overview_pb2.GetOverviewRequest())
            assert "damage-met" in {each.kind for each in found.concern_details}
            code, [], _ = await run_command("list", "billing", *admin)
            assert code == 1

    with_broker(test, delivery=EARLIEST)


async def of_two_topics(broker: RunningBroker, client: Client) -> None:
    """Dead letters `a` and `c` of `orders`, with `b` of `payments` between them."""
    broker.topic("payments", queues=1)
    await with_dead_letters(broker, client, b"a")
    await client.sent(message("payments", b"b", message_id="b"))
    received = await client.receive("billing", "payments")
    await dead_letter(client, "billing", "payments", *received.handles)
    await with_dead_letters(broker, client, b"c")


def test_what_was_refused_stays_unsent_and_is_sent_when_it_can_be(with_broker: WithBroker) -> None:
    async def test(broker: RunningBroker) -> None:
        async with Client(broker.endpoint) as client:
            await of_two_topics(broker, client)
            broker.store.topics.delete("payments")
            stub = await stub_of(broker)
            everything = pb.ResendDeadLettersRequest(group="billing")
            for sent in (2, 0):
                answer = await stub.ResendDeadLetters(everything)
                assert (answer.resent, [each.offset for each in answer.refused]) == (sent, [1])
                assert "topic payments, from which the message came, does not exist" in answer.refused[0].reason
                unsent = await stub.ListDeadLetters(pb.ListDeadLettersRequest(group="billing"))
                assert [(each.offset, each.was_resent) for each in unsent.dead_letters] == [(1, False)]
                assert unsent.next_offset == 1
            listed = await stub.ListDeadLetters(pb.ListDeadLettersRequest(group="billing", from_offset=0))
            assert [each.was_resent for each in listed.dead_letters] == [True, False, True]
            assert await waiting(broker) == 1
            received = await client.receive("billing", "orders", polling_s=30)
            assert sorted(each.body for each in received.messages) == [b"a", b"c"]
            broker.topic("payments", queues=1)
            dry = await stub.ResendDeadLetters(pb.ResendDeadLettersRequest(group="billing", dry_run=True))
            assert (dry.resent, await waiting(broker)) == (1, 1)
            assert (await stub.ResendDeadLetters(everything)).resent == 1
            assert (await stub.ResendDeadLetters(everything)).resent == 0
            received = await client.receive("billing", "payments", polling_s=30)
            assert [each.body for each in received.messages] == [b"b"]
            assert await waiting(broker) == 0
            unsent = await stub.ListDeadLetters(pb.ListDeadLettersRequest(group="billing"))
            assert (list(unsent.dead_letters), unsent.next_offset) == ([], 3)

    with_broker(test, delivery=EARLIEST)


async def waiting(broker: RunningBroker) -> int:
    """As the page of the group has it."""
    async with grpc.aio.insecure_channel(broker.admin) as channel:
        found = await OverviewServiceStub(channel).ListGroupFigures(
            overview_pb2.ListGroupFiguresRequest(contains="billing")
        )
    return int(found.groups[0].dead_letters)


def test_a_job_sends_what_was_refused_before(with_broker: WithBroker) -> None:
    async def test(broker: RunningBroker) -> None:
        async with Client(broker.endpoint) as client, job_service(broker) as jobs:
            await of_two_topics(broker, client)
            broker.store.topics.delete("payments")
            request = jobs_pb2.BeginJobRequest(resend_dead_letters=jobs_pb2.DeadLettersResend(group="billing"))
            job = await done(jobs, request)
            assert (job.state, job.total, dict(job.counts)) == ("done", 3, {"sent": 2, "refused": 1})
            broker.topic("payments", queues=1)
            await with_dead_letters(broker, client, b"d")
            job = await done(jobs, request)
            assert (job.state, job.total, dict(job.counts)) == ("done", 2, {"sent": 2, "refused": 0})
            received = await client.receive("billing", "payments", polling_s=30)
            assert [each.body for each in received.messages] == [b"b"]

    with_broker(test, delivery=EARLIEST)


def test_one_that_is_named_is_no_longer_unsent(with_broker: WithBroker) -> None:
    async def test(broker: RunningBroker) -> None:
        async with Client(broker.endpoint) as client:
            await of_two_topics(broker, client)
            broker.store.topics.delete("payments")
            stub = await stub_of(broker)
            named = pb.ResendDeadLettersRequest(group="billing", offsets=[1])
            assert [each.offset for each in (await stub.ResendDeadLetters(named)).refused] == [1]
            assert await waiting(broker) == 3
            assert (await stub.ResendDeadLetters(pb.ResendDeadLettersRequest(group="billing"))).resent == 2
            assert await waiting(broker) == 1
            broker.topic("payments", queues=1)
            assert (await stub.ResendDeadLetters(named)).resent == 1
            assert await waiting(broker) == 0

    with_broker(test, delivery=EARLIEST)


def test_one_that_cannot_be_stored_does_not_keep_the_others(
    with_broker: WithBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def test(broker: RunningBroker) -> None:
        async with Client(broker.endpoint) as client:
            await with_dead_letters(broker, client, b"a", b"b", b"c")

            def too_large(record: StoredMessage, name: str, **terms: Any) -> Message:
                made = retry_of(record, name, **terms)
                return made._replace(body=bytes(32 * 1024 * 1024)) if made.body == b"b" else made

            stub = await stub_of(broker)
            with monkeypatch.context() as patch:
                patch.setattr("quarry_mq.server.admin.dead_letter_box.retry_of", too_large)
                answer = await stub.ResendDeadLetters(pb.ResendDeadLettersRequest(group="billing"))
            [refused] = answer.refused
            assert (answer.resent, refused.offset) == (2, 1), refused
            assert await waiting(broker) == 1
            assert (await stub.ResendDeadLetters(pb.ResendDeadLettersRequest(group="billing"))).resent == 1
            received = await client.receive("billing", "orders", polling_s=30)
            assert sorted(each.body for each in received.messages) == [b"a", b"b", b"c"]

    with_broker(test, delivery=EARLIEST)


def test_what_was_refused_goes_with_the_topic_of_the_dead_letters(with_broker: WithBroker) -> None:
    async def test(broker: RunningBroker) -> None:
        async with Client(broker.endpoint) as client:
            await of_two_topics(broker, client)
            broker.store.topics.delete("payments")
            stub = await stub_of(broker)
            assert (await stub.ResendDeadLetters(pb.ResendDeadLettersRequest(group="billing"))).resent == 2
            async with grpc.aio.insecure_channel(broker.admin) as channel:
                admin = AdminServiceStub(channel)
                await admin.DeleteTopic(admin_pb2.DeleteTopicRequest(name="%DLQ%billing"))
            rows = broker.store.state_engine.family(INFLIGHT).iterate(ROWS)
            assert [key for key, _ in rows if b"%DLQ%" in key] == []
            await with_dead_letters(broker, client, b"d")
            assert await waiting(broker) == 1

    with_broker(test, delivery=EARLIEST)


@pytest.mark.parametrize("count", [-1, 1_001])
def test_a_count_that_cannot_be_is_refused(with_broker: WithBroker, count: int) -> None:
    async def test(broker: RunningBroker) -> None:
        async with Client(broker.endpoint) as client:
            await with_dead_letters(broker, client, b"a")
        stub = await stub_of(broker)
        with pytest.raises(grpc.aio.AioRpcError, match=f"count {count}: must be 1 to 1000"):
            await stub.ListDeadLetters(pb.ListDeadLettersRequest(group="billing", count=count))

    with_broker(test, delivery=EARLIEST)
