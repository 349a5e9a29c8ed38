"""The official admin service asks clients by their telemetry streams, and waits no longer than it must."""

from __future__ import annotations

import asyncio

import pytest

from quarry_mq.protocol.proto.apache.rocketmq.v2 import admin_pb2 as pb
from quarry_mq.protocol.proto.apache.rocketmq.v2 import definition_pb2 as definition
from quarry_mq.protocol.proto.apache.rocketmq.v2 import service_pb2 as service
from quarry_mq.protocol.signature import signed_admin_headers
from quarry_mq.server.admin_port.official import service as commands_module
from quarry_mq.server.rpc import sessions
from quarry_mq.store.security.model import Resource, UserKind
from tests.conformance.broker import RunningBroker
from tests.conformance.client import Client, consumer_settings, message, resource
from tests.conformance.conftest import WithBroker
from tests.conformance.official import SERVICE, official
from tests.conformance.secured import SECRET, SECURED, add_user, client_of

INDEX = {"hash_files": True, "hash_slots": 7, "hash_items": 30}
TRACE = pb.PrintThreadStackTraceRequest(group=resource("billing"), client_id="one")
VERIFY = pb.VerifyMessageRequest(group=resource("billing"), client_id="one", topic=resource("orders"), message_id="M1")


async def consumer(broker: RunningBroker, client_id: str, group: str = "billing") -> Client:
    client = Client(broker.endpoint, client_id)
    await client.declare(consumer_settings(group, "orders", kind=definition.PUSH_CONSUMER))
    return client


def trace(nonce: str, text: str) -> service.TelemetryCommand:
    said = service.ThreadStackTrace(nonce=nonce, thread_stack_trace=text)
    return service.TelemetryCommand(status=definition.Status(code=definition.OK), thread_stack_trace=said)


def say(client: Client, command: service.TelemetryCommand) -> None:
    client._said.put_nowait(command)


def test_a_client_shows_where_its_threads_are(with_broker: WithBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(broker: RunningBroker) -> None:
        async with (
            await consumer(broker, "one") as one,
            await consumer(broker, "two") as two,
            official(broker) as admin,
        ):
            asking = asyncio.ensure_future(admin.PrintThreadStackTrace(TRACE))
            command = await one.told()
            nonce = command.print_thread_stack_trace_command.nonce
            assert nonce
            # neither another client's answer counts, nor one to something else
            say(two, trace(nonce, "not mine"))
            say(one, trace("another", "not this"))
            say(one, trace(nonce, "main: waits"))
            answer = await asking
            assert (answer.status.code, answer.thread_stack_trace) == (definition.OK, "main: waits")
            say(one, trace(nonce, "again"))
            asking = asyncio.ensure_future(admin.PrintThreadStackTrace(TRACE))
            second = (await one.told()).print_thread_stack_trace_command.nonce
            assert second != nonce
            monkeypatch.setattr(commands_module, "TRACE_SIZE_MAX", 4)
            say(one, trace(second, "main: works"))
            answer = await asking
            assert answer.thread_stack_trace == "main"
            assert "first 4 of 11 characters" in answer.status.message
            # in the client's own words
            asking = asyncio.ensure_future(admin.PrintThreadStackTrace(TRACE))
            third = (await one.told()).print_thread_stack_trace_command.nonce
            refusal = service.TelemetryCommand(thread_stack_trace=service.ThreadStackTrace(nonce=third))
            refusal.status.code, refusal.status.message = definition.UNSUPPORTED, "not here"
            say(one, refusal)
            answer = await asking
            assert (answer.status.code, answer.status.message) == (definition.UNSUPPORTED, "not here")
            assert not answer.HasField("thread_stack_trace")

    with_broker(test)


def test_a_client_that_does_not_answer_is_not_waited_for(
    with_broker: WithBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sessions, "WAIT_MAX_S", 0.2)

    async def test(broker: RunningBroker) -> None:
        async with await consumer(broker, "one") as one, official(broker) as admin:
            answer = await admin.PrintThreadStackTrace(TRACE)
            assert answer.status.code == definition.PROXY_TIMEOUT
            assert "0.2 s" in answer.status.message
            assert (await one.told()).HasField("print_thread_stack_trace_command")
            assert not broker.broker._messaging.commands._waiting
            monkeypatch.setattr(sessions, "WAITING_MAX", 0)
            assert (await admin.PrintThreadStackTrace(TRACE)).status.code == definition.TOO_MANY_REQUESTS
            monkeypatch.setattr(sessions, "WAITING_MAX", 1)
            # what is left of the caller's own time counts, too: it hears of it
            monkeypatch.setattr(sessions, "WAIT_MAX_S", 60)
            monkeypatch.setattr(commands_module, "ANSWERING_RESERVE_S", 29.8)
            answer = await admin.PrintThreadStackTrace(TRACE, timeout=30)
            assert answer.status.code == definition.PROXY_TIMEOUT
            await one.told()
            await one.hang_up()
            answer = await admin.PrintThreadStackTrace(TRACE)
            assert (answer.status.code, "client_id" in answer.status.message) == (definition.NOT_FOUND, True)

    with_broker(test)


def test_a_client_verifies_a_message(with_broker: WithBroker) -> None:
    async def test(broker: RunningBroker) -> None:
        broker.topic("orders")
        broker.topic("others")
        async with await consumer(broker, "one") as one, official(broker) as admin:
            await one.sent(message("orders", b"hello", message_id="M1", tag="t"))
            for code in (definition.OK, definition.FAILED_TO_CONSUME_MESSAGE):
                asking = asyncio.ensure_future(admin.VerifyMessage(VERIFY))
                command = (await one.told()).verify_message_command
                assert (command.message.body, command.message.system_properties.tag) == (b"hello", "t")
                assert command.message.system_properties.message_id == "M1"
                said = service.TelemetryCommand(verify_message_result=service.VerifyMessageResult(nonce=command.nonce))
                said.status.code = code
                say(one, said)
                assert (await asking).status.code == code

    with_broker(test, index=INDEX)


def test_a_client_is_shown_no_message_that_its_user_may_not_read(with_broker: WithBroker) -> None:
    async def test(broker: RunningBroker) -> None:
        add_user(broker, "ops", kind=UserKind.SUPER)
        add_user(broker, "shop", "topic:orders pub sub", "group:billing sub")
        broker.topic("orders")
        async with client_of(broker, "shop", "one") as one, official(broker) as admin:
            await one.declare(consumer_settings("billing", "orders", kind=definition.PUSH_CONSUMER))
            await one.sent(message("orders", message_id="M1"))
            broker.store.policies.remove_rule("shop", Resource.parse("topic:orders"), None)
            headers = signed_admin_headers(
                "ops", SECRET, f"{SERVICE}VerifyMessage", now_ms=broker.clock.wall_ms(), nonce="ops-0123456789abcdef"
            )
            answer = await admin.VerifyMessage(VERIFY, metadata=headers)
            assert answer.status.code == definition.NOT_FOUND, answer.status

    with_broker(test, index=INDEX, security=SECURED)
