"""Messages found by id, position, key or time are shown only to users who may read their topics."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from itertools import count
from typing import Any

import grpc.aio
import pytest
from google.protobuf.timestamp_pb2 import Timestamp

from quarry_mq.protocol.proto.apache.rocketmq.v2 import admin_pb2 as official_pb2
from quarry_mq.protocol.proto.apache.rocketmq.v2 import definition_pb2 as definition
from quarry_mq.protocol.proto.apache.rocketmq.v2.admin_pb2_grpc import AdminStub
from quarry_mq.protocol.proto.quarry.admin.v1 import browsing_pb2, dead_letters_pb2, jobs_pb2, query_pb2, storage_pb2
from quarry_mq.protocol.proto.quarry.admin.v1.browsing_pb2_grpc import BrowsingServiceStub
from quarry_mq.protocol.proto.quarry.admin.v1.dead_letters_pb2_grpc import DeadLetterServiceStub
from quarry_mq.protocol.proto.quarry.admin.v1.jobs_pb2_grpc import JobServiceStub
from quarry_mq.protocol.proto.quarry.admin.v1.query_pb2_grpc import QueryServiceStub
from quarry_mq.protocol.proto.quarry.admin.v1.storage_pb2_grpc import StorageServiceStub
from quarry_mq.protocol.signature import signed_admin_headers
from quarry_mq.store.message import PhysicalOffset, QueueId, QueueOffset
from quarry_mq.store.metadata import TopicType
from quarry_mq.store.record import StoredMessage, decode_record, offset_message_id
from quarry_mq.store.security.model import Decision, UserKind
from tests.conformance.broker import RunningBroker, until
from tests.conformance.client import message
from tests.conformance.conftest import WithBroker
from tests.conformance.secured import SECRET, SECURED, add_user, allow, client_of
from tests.conformance.test_order import dead_letter
from tests.conformance.test_queries import INDEX
from tests.conformance.test_transactions import half

TOPICS = {"open": TopicType.NORMAL, "paid": TopicType.NORMAL, "later": TopicType.DELAY, "sure": TopicType.TRANSACTION}
DENIED = ("paid", "later", "sure")
SECRET_BODY = b"not for the reader"
_calls = count()

STUBS: dict[str, tuple[str, Callable[[Any], Any]]] = {
    "GetMessage": ("quarry.admin.v1.QueryService", QueryServiceStub),
    "QueryMessages": ("quarry.admin.v1.QueryService", QueryServiceStub),
    "TraceMessages": ("quarry.admin.v1.QueryService", QueryServiceStub),
    "BrowseMessages": ("quarry.admin.v1.BrowsingService", BrowsingServiceStub),
    "TailMessages": ("quarry.admin.v1.BrowsingService", BrowsingServiceStub),
    "ListDeadLetters": ("quarry.admin.v1.DeadLetterService", DeadLetterServiceStub),
    "ListPending": ("quarry.admin.v1.StorageService", StorageServiceStub),
    "BeginJob": ("quarry.admin.v1.JobService", JobServiceStub),
    "QueryMessage": ("apache.rocketmq.v2.Admin", AdminStub),
}


class Operator:
    """Makes calls of the admin port as a user."""

    def __init__(self, broker: RunningBroker, user: str) -> None:
        self._broker = broker
        self._user = user

    async def ask(self, method: str, request: Any) -> Any:
        """The answer; of a stream all of them, of a refusal its code and text."""
        service, stub = STUBS[method]
        headers = signed_admin_headers(
            self._user,
            SECRET,
            f"/{service}/{method}",
            now_ms=self._broker.clock.wall_ms(),
            nonce=f"{self._user:-<10}{next(_calls):010}",
        )
        async with grpc.aio.insecure_channel(self._broker.admin) as channel:
            try:
                answering = getattr(stub(channel), method)(request, metadata=headers)
                if method == "TailMessages":
                    return [each async for each in answering]
                return await answering
            except grpc.aio.AioRpcError as error:
                return f"{error.code().name} {error.details()}"


async def fill(broker: RunningBroker) -> None:
    """Messages of each kind that there is a copy of: delayed, half, a dead letter and one that was sent again."""
    for name, kind in TOPICS.items():
        broker.topic(name, kind, queues=1)
    add_user(broker, "all", kind=UserKind.SUPER)
    add_user(broker, "reader", "topic:* get pub", "group:* get", "cluster:* get update")
    for topic in DENIED:
        allow(broker, "reader", f"topic:{topic} get", Decision.DENY)
    async with client_of(broker, "all") as client:
        soon = Timestamp(seconds=broker.clock.wall_ms() // 1000 + 3600)
        await client.sent(message("open", b"for all", keys=["k"]))
        await client.sent(message("paid", SECRET_BODY, keys=["k"]), message("paid", SECRET_BODY, keys=["k"]))
        await client.sent(
            message(
                "later", SECRET_BODY, keys=["k"], message_type=definition.DELAY, delivery_timestamp=soon, message_id="L"
            )
        )
        await client.sent(half("sure", SECRET_BODY, keys=["k"]))
        for topic in ("paid", "open"):
            for handle in (await client.receive("billing", topic, count=1)).handles:
                await dead_letter(client, "billing", topic, handle)
        async with grpc.aio.insecure_channel(broker.admin) as channel:
            stub: Any = DeadLetterServiceStub(channel)
            method = "/quarry.admin.v1.DeadLetterService/ResendDeadLetters"
            headers = signed_admin_headers("all", SECRET, method, now_ms=broker.clock.wall_ms(), nonce="r" * 16)
            resend = dead_letters_pb2.ResendDeadLettersRequest(group="billing")
            assert (await stub.ResendDeadLetters(resend, metadata=headers)).resent == 2


def records(broker: RunningBroker) -> Iterator[StoredMessage]:
    """All of the log."""
    messages = broker.store.messages
    at = PhysicalOffset(0)
    while at < messages.dispatched_up_to:
        found = messages.reader.decode(at, check_crc=True)
        assert isinstance(found, StoredMessage)
        yield found
        at = PhysicalOffset(at + found.size)


def is_secret(record: StoredMessage) -> bool:
    return record.body.tobytes() == SECRET_BODY


def decoded(found: Sequence[Any]) -> list[StoredMessage]:
    made = [
        decode_record(memoryview(each.record), 0, PhysicalOffset(each.physical_offset), check_crc=True)
        for each in found
    ]
    assert all(isinstance(each, StoredMessage) for each in made)
    return made  # type: ignore[return-value]


def places(broker: RunningBroker) -> set[tuple[str, int]]:
    return {(each.topic, each.queue_number) for each in records(broker)}


def with_filled(with_broker: WithBroker, test: Callable[[RunningBroker, Operator, Operator], Any]) -> None:
    async def filled(broker: RunningBroker) -> None:
        await fill(broker)
        await test(broker, Operator(broker, "all"), Operator(broker, "reader"))

    with_broker(filled, security=SECURED, index=INDEX, delivery={"new_group_start": "earliest"})


def test_by_offset_id_a_message_is_there_for_who_may_read_all_that_it_is_of(with_broker: WithBroker) -> None:
    async def test(broker: RunningBroker, everybody: Operator, reader: Operator) -> None:
        found = list(records(broker))
        assert {each.topic for each in found if is_secret(each)} >= {
            "paid",
            "rmq_sys_wheel_timer",
            "RMQ_SYS_TRANS_HALF_TOPIC",
            "%DLQ%billing",
            "%RETRY%billing_paid",
        }
        host = found[0].store_host
        absent = await reader.ask(
            "GetMessage", query_pb2.GetMessageRequest(id=offset_message_id(host, PhysicalOffset(1)))
        )
        assert absent == "NOT_FOUND id: there is no message with this id"
        for each in found:
            for topic in ("", each.topic):
                request = query_pb2.GetMessageRequest(
                    topic=topic, id=offset_message_id(each.store_host, each.physical_offset)
                )
                assert not isinstance(await everybody.ask("GetMessage", request), str)
                answer = await reader.ask("GetMessage", request)
                if not is_secret(each):
                    assert not isinstance(answer, str), (each, answer)
                elif not topic or topic not in DENIED:
                    assert answer == absent, each
                else:
                    assert answer.startswith("PERMISSION_DENIED")

    with_filled(with_broker, test)


def test_by_place_and_in_the_order_of_the_log_the_same_holds(with_broker: WithBroker) -> None:
    async def test(broker: RunningBroker, everybody: Operator, reader: Operator) -> None:
        shown = 0
        for topic, number in places(broker):
            if topic in DENIED or broker.store.topics.get(topic) is None:
                continue
            queue = QueueId(topic, number)
            for entry in broker.store.messages.entries(queue, QueueOffset(0), 100):
                place = query_pb2.QueuePlace(queue=number, offset=entry.queue_offset)
                request = query_pb2.GetMessageRequest(topic=topic, place=place)
                answer = await reader.ask("GetMessage", request)
                if is_secret(broker.store.messages.read(entry)):
                    text = f"offset: queue {number} of topic {topic} has nothing at {entry.queue_offset}"
                    assert answer == f"NOT_FOUND {text}"
                else:
                    assert not isinstance(answer, str)
            browse = browsing_pb2.BrowseMessagesRequest(topic=topic, is_ascending=True)
            everything = await everybody.ask("BrowseMessages", browse)
            seen = await reader.ask("BrowseMessages", browse)
            wanted = [each for each in decoded([each.message for each in everything.messages]) if not is_secret(each)]
            assert decoded([each.message for each in seen.messages]) == wanted
            shown += len(wanted) < len(everything.messages)
        assert shown >= 2, "dead letters and retries"

    with_filled(with_broker, test)


def test_by_key_time_and_trace_the_same_holds(with_broker: WithBroker) -> None:
    async def test(broker: RunningBroker, everybody: Operator, reader: Operator) -> None:
        hidden = 0
        for topic in {topic for topic, _ in places(broker)} - set(DENIED):
            request = query_pb2.QueryMessagesRequest(topic=topic, key="k")
            for method in ("QueryMessages", "TraceMessages"):
                everything, seen = await everybody.ask(method, request), await reader.ask(method, request)
                wanted = [each for each in decoded(everything.messages) if not is_secret(each)]
                assert decoded(seen.messages) == wanted
                hidden += len(everything.messages) - len(wanted)
            if broker.store.topics.get(topic) is None:
                continue
            named = definition.Resource(name=topic)
            for official in (
                official_pb2.ListMessageRequest(topic=named, message_key="k"),
                official_pb2.ListMessageRequest(topic=named),
            ):
                everything, seen = (
                    await everybody.ask("QueryMessage", official),
                    await reader.ask("QueryMessage", official),
                )
                assert SECRET_BODY not in [each.body for each in seen.messages]
                assert len(seen.messages) == sum(each.body != SECRET_BODY for each in everything.messages)
        assert hidden

    with_filled(with_broker, test)


def test_who_looks_on_sees_no_copies_of_what_it_may_not_read(with_broker: WithBroker) -> None:
    async def test(broker: RunningBroker, everybody: Operator, reader: Operator) -> None:
        request = browsing_pb2.TailMessagesRequest(topic="%DLQ%billing", ends_after_ms=3000)
        looking = [asyncio.ensure_future(each.ask("TailMessages", request)) for each in (everybody, reader)]
        await until(lambda: broker.broker._tails._count == 2, "both look on")
        async with client_of(broker, "all") as client:
            for topic, body in (("paid", SECRET_BODY), ("open", b"for all")):
                await client.sent(message(topic, body))
                for handle in (await client.receive("billing", topic, count=32)).handles:
                    await dead_letter(client, "billing", topic, handle)
        everything, seen = [
            [each.body.tobytes() for answer in await tail for each in decoded([one.message for one in answer.messages])]
            for tail in looking
        ]
        assert SECRET_BODY in everything
        assert seen == [each for each in everything if each != SECRET_BODY] != []

    with_filled(with_broker, test)


def test_lists_of_what_waits_and_of_dead_letters_show_the_same_messages_alone(with_broker: WithBroker) -> None:
    async def test(broker: RunningBroker, everybody: Operator, reader: Operator) -> None:
        pending = storage_pb2.ListPendingRequest()
        everything, seen = await everybody.ask("ListPending", pending), await reader.ask("ListPending", pending)
        assert len(everything.first_timers) == len(everything.first_transactions) == 1
        assert not seen.first_timers
        assert not seen.first_transactions
        letters = dead_letters_pb2.ListDeadLettersRequest(group="billing", from_offset=0)
        everything, seen = await everybody.ask("ListDeadLetters", letters), await reader.ask("ListDeadLetters", letters)
        assert {each.topic for each in everything.dead_letters} == {"open", "paid"}
        assert {each.topic for each in seen.dead_letters} == {"open"}

    with_filled(with_broker, test)


@pytest.mark.parametrize("source", ["%DLQ%billing", "%RETRY%billing_paid"])
def test_no_job_copies_them_to_where_they_may_be_read(source: str, with_broker: WithBroker) -> None:
    async def test(_broker: RunningBroker, everybody: Operator, reader: Operator) -> None:
        asked = jobs_pb2.BeginJobRequest(
            resend_messages=jobs_pb2.MessagesResend(topic=source, to_topic="open", queue=0), dry_run=True
        )
        assert (await reader.ask("BeginJob", asked)).startswith("PERMISSION_DENIED")
        assert (await everybody.ask("BeginJob", asked)).id

    with_filled(with_broker, test)
