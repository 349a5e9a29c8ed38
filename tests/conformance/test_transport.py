"""Points 1, 2, 3, 10 and 11: who calls, through which connection, and what the telemetry stream is needed for."""

from __future__ import annotations

import asyncio
import struct
from typing import Any, Final

import grpc
import grpc.aio
import pytest

from quarry_mq.protocol.proto.apache.rocketmq.v2 import definition_pb2 as definition
from quarry_mq.protocol.proto.apache.rocketmq.v2 import service_pb2 as service
from quarry_mq.protocol.proto.quarry.admin.v1 import admin_pb2
from quarry_mq.protocol.proto.quarry.admin.v1.admin_pb2_grpc import AdminServiceStub
from quarry_mq.store.message import QueueId, QueueOffset, host_text
from tests.conformance.broker import RunningBroker
from tests.conformance.client import (
    Client,
    consumer_settings,
    message,
    producer_settings,
    read_all,
    resource,
)
from tests.conformance.conftest import WithBroker

DESCRIPTOR: Final = service.DESCRIPTOR.services_by_name["MessagingService"]
UNARY: Final = sorted(each.name for each in DESCRIPTOR.methods if not each.server_streaming)
STREAMS: Final = sorted(each.name for each in DESCRIPTOR.methods if each.server_streaming and not each.client_streaming)


def empty_request(method: str) -> Any:
    return getattr(service, f"{method}Request")()


async def items_of(client: Client, method: str) -> list[Any]:
    """All items of a server stream, which must end with gRPC's OK."""
    call = getattr(client.stub, method)(empty_request(method), metadata=client.metadata, timeout=60)
    items = [item async for item in call]
    assert await call.code() is grpc.StatusCode.OK
    return items


@pytest.mark.parametrize("client_id", [None, "", " "], ids=["missing", "empty", "blank"])
def test_point_01_calls_without_a_client_id_are_told_so_in_the_answer(
    with_broker: WithBroker, client_id: str | None
) -> None:
    async def test(broker: RunningBroker) -> None:
        async with Client(broker.endpoint, None) as client:
            if client_id is not None:
                client.metadata.append(("x-mq-client-id", client_id))
            for method in UNARY:
                answer = await client.call(method, empty_request(method))
                assert answer.status.code == definition.CLIENT_ID_REQUIRED, method
            for method in STREAMS:
                items = await items_of(client, method)
                assert items[0].status.code == definition.CLIENT_ID_REQUIRED, method
            told = await client.declare(producer_settings())
            assert told.status.code == definition.CLIENT_ID_REQUIRED
            assert told.WhichOneof("command") is None
            assert await client.ended() is grpc.StatusCode.OK

    with_broker(test)


def test_point_02_a_route_leads_back_to_the_endpoints_that_were_dialled(with_broker: WithBroker) -> None:
    async def test(broker: RunningBroker) -> None:
        broker.topic("orders", queues=3)
        async with Client(broker.endpoint) as client:
            dialled = definition.Endpoints(scheme=definition.DOMAIN_NAME)
            dialled.addresses.add(host="broker.example", port=18081)
            request = service.QueryRouteRequest(topic=resource("orders"), endpoints=dialled)
            answer = await client.call("QueryRoute", request)
            assert answer.status.code == definition.OK
            assert [queue.broker.endpoints for queue in answer.message_queues] == [dialled] * 3

    with_broker(test)


def test_point_02_who_does_not_say_what_was_dialled_is_sent_to_the_port_that_is_listened_on(
    with_broker: WithBroker,
) -> None:
    """The broker was told to take any free port. Its records and its administration name it, too."""

    async def test(broker: RunningBroker) -> None:
        host, _, port = broker.endpoint.rpartition(":")
        assert broker.broker._settings.network.listen == f"{host}:0"
        broker.topic("orders", queues=1)
        async with Client(broker.endpoint) as client:
            answer = await client.call("QueryRoute", service.QueryRouteRequest(topic=resource("orders")))
            (queue,) = answer.message_queues
            (address,) = queue.broker.endpoints.addresses
            assert (address.host, address.port) == (host, int(port))
            await client.sent(message("orders"))
        (entry,) = broker.store.messages.entries(QueueId("orders", 0), QueueOffset(0), 9)
        assert host_text(broker.store.messages.read(entry).store_host) == broker.endpoint
        async with grpc.aio.insecure_channel(broker.admin) as channel:
            admin: Any = AdminServiceStub(channel)
            facts = await admin.GetBroker(admin_pb2.GetBrokerRequest())
            assert facts.advertised_address == broker.endpoint

    with_broker(test)


def test_point_03_an_idle_client_may_ping_as_often_as_it_likes(with_broker: WithBroker) -> None:
    """HTTP/2 by hand, since no client library lets itself ping this often: each ping is acknowledged, no GOAWAY."""
    pings = 20

    async def test(broker: RunningBroker) -> None:
        host, _, port = broker.endpoint.rpartition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + frame(SETTINGS, b""))
        acknowledged = []
        for number in range(pings):
            body = struct.pack(">Q", number)
            writer.write(frame(PING, body))
            while True:
                kind, flags, payload = await read_frame(reader)
                assert kind != GOAWAY, payload
                if kind == PING and flags & ACK and payload == body:
                    acknowledged.append(number)
                    break
        assert acknowledged == list(range(pings))
        writer.close()
        await writer.wait_closed()

    with_broker(test)


SETTINGS, PING, GOAWAY = 4, 6, 7
ACK = 1


def frame(kind: int, payload: bytes) -> bytes:
    return struct.pack(">I", len(payload))[1:] + bytes((kind, 0)) + bytes(4) + payload


async def read_frame(reader: asyncio.StreamReader) -> tuple[int, int, bytes]:
    head = await asyncio.wait_for(reader.readexactly(9), 60)
    return head[3], head[4], await asyncio.wait_for(reader.readexactly(int.from_bytes(head[:3], "big")), 60)


def test_point_10_settings_are_answered_each_in_order(with_broker: WithBroker) -> None:
    async def test(broker: RunningBroker) -> None:
        async with Client(broker.endpoint) as client:
            for topics in (["one"], ["one", "two"], []):
                told = await client.declare(producer_settings(*topics))
                assert told.status.code == definition.OK
                assert [topic.name for topic in told.settings.publishing.topics] == topics

    with_broker(test)


def test_point_10_two_streams_of_one_client_are_both_answered_and_a_push_goes_to_one_of_them(
    with_broker: WithBroker,
) -> None:
    async def test(broker: RunningBroker) -> None:
        async with Client(broker.endpoint, "twice") as first, Client(broker.endpoint, "twice") as second:
            for client in (first, second):
                told = await client.declare(consumer_settings("billing", "orders"))
                assert told.status.code == definition.OK
            command = service.TelemetryCommand()
            command.print_thread_stack_trace_command.nonce = "n"
            assert broker.broker._messaging.telemetry.push("twice", command)
            assert await second.told() == command, "the latest stream is the one to push to"
            assert await second.hang_up() is grpc.StatusCode.OK
            assert broker.broker._messaging.telemetry.push("twice", command)
            assert await first.told() == command

    with_broker(test)


def test_point_11_a_client_is_served_after_its_telemetry_stream_has_ended(with_broker: WithBroker) -> None:
    async def test(broker: RunningBroker) -> None:
        broker.topic("orders")
        async with Client(broker.endpoint) as client:
            await client.declare(consumer_settings("billing", "orders"))
            assert await client.hang_up() is grpc.StatusCode.OK
            heartbeat = service.HeartbeatRequest(group=resource("billing"), client_type=definition.SIMPLE_CONSUMER)
            assert (await client.call("Heartbeat", heartbeat)).status.code == definition.OK
            [sent] = await client.sent(message("orders"))
            assert (await client.receive("billing", "orders", polling_s=2)).ids == [sent]

    with_broker(test)


def test_requests_that_are_no_protobuf_are_answered_in_band(with_broker: WithBroker) -> None:
    async def test(broker: RunningBroker) -> None:
        async with Client(broker.endpoint) as client:
            for name in UNARY:
                [body] = await client.raw(name, b"\xff\xff\xff")
                answer = getattr(service, f"{name}Response").FromString(body)
                assert answer.status.code == definition.BAD_REQUEST, name
            bodies = await client.raw("ReceiveMessage", b"\xff\xff\xff")
            items = [service.ReceiveMessageResponse.FromString(body) for body in bodies]
            assert items[0].status.code == definition.BAD_REQUEST
            assert items[-1].HasField("delivery_timestamp")
            assert (await read_all(client.start_receive("billing", "orders"))).code == definition.TOPIC_NOT_FOUND

    with_broker(test)
