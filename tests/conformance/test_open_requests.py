"""Callers are authenticated before a request is read, and its size is checked before it is parsed."""

from __future__ import annotations

import asyncio
from typing import Final

import grpc
import pytest

from quarry_mq.protocol.h2.frames import FRAME_HEAD, FRAME_HEAD_SIZE, Flag, FrameType, frame
from quarry_mq.protocol.h2.grpc_messages import MESSAGE_PREFIX, MESSAGE_PREFIX_SIZE
from quarry_mq.protocol.proto.apache.rocketmq.v2 import definition_pb2 as definition
from quarry_mq.protocol.proto.apache.rocketmq.v2 import service_pb2 as service
from quarry_mq.server.rpc.messaging import REQUEST_SIZES, SMALL_REQUEST_SIZE
from tests.attack.wire import TABLE_SIZE_0, WIDE_GREETING, block
from tests.conformance.broker import RunningBroker, until
from tests.conformance.client import Client
from tests.conformance.conftest import WithBroker, both_ways
from tests.conformance.secured import SECURED, add_user, client_of
from tests.conformance.test_access import REQUESTS

EMPTY_ENTRIES: Final = 7_500_000
SERVICE: Final = "/apache.rocketmq.v2.MessagingService/"


async def first_answer(broker: RunningBroker, method: str) -> bytes:
    """The first message that answers a call of which nothing but headers was sent."""
    host, _, port = broker.endpoint.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    try:
        writer.write(WIDE_GREETING + frame(FrameType.HEADERS, Flag.END_HEADERS, 1, TABLE_SIZE_0 + block(method)))
        while True:
            head = await asyncio.wait_for(reader.readexactly(FRAME_HEAD_SIZE), 60)
            high, low, kind, _, _ = FRAME_HEAD.unpack(head)
            payload = await reader.readexactly(high << 16 | low)
            if kind == FrameType.DATA:
                size: int = MESSAGE_PREFIX.unpack_from(payload)[1]
                return payload[MESSAGE_PREFIX_SIZE : MESSAGE_PREFIX_SIZE + size]
    finally:
        writer.close()


@both_ways
def test_calls_of_strangers_end_when_their_headers_have_come(with_broker: WithBroker) -> None:
    async def test(broker: RunningBroker) -> None:
        for method in REQUESTS:
            answer = getattr(service, f"{method}Response").FromString(await first_answer(broker, method))
            assert answer.status.code == definition.UNAUTHORIZED, method
        stats = broker.broker._front.stats
        assert stats is not None
        await until(lambda: stats.calls_open == 0, "nothing of them stays open")

    with_broker(test, security=SECURED)


async def status_by(client: Client, method: str, body: bytes, compression: grpc.Compression) -> grpc.StatusCode:
    call = client._channel.unary_stream(SERVICE + method)(
        body, metadata=client.metadata, timeout=20, compression=compression
    )
    async for _ in call:
        pass
    code: grpc.StatusCode = await call.code()
    return code


@both_ways
@pytest.mark.parametrize("front", ["h2", "grpcio"])
def test_millions_of_empty_entries_are_refused_without_a_look_at_them(with_broker: WithBroker, front: str) -> None:
    """As such they have 15 MB, which is less than a request may have."""

    async def test(broker: RunningBroker) -> None:
        add_user(broker, "nobody")
        body = b"\x0a\x00" * EMPTY_ENTRIES
        async with client_of(broker, "nobody") as client:
            (answer,) = await client.raw("SendMessage", body)
            status = service.SendMessageResponse.FromString(answer).status
            assert (status.code, "fields and entries" in status.message) == (definition.PAYLOAD_TOO_LARGE, True)

    with_broker(test, security=SECURED, network={"front": front})


@pytest.mark.parametrize("method", ["SendMessage", "AckMessage", "ReceiveMessage"])
def test_packed_entries_are_not_unpacked(with_broker: WithBroker, method: str) -> None:
    """16 KB on the wire; front `h2` alone is asked how much may become of it."""

    async def test(broker: RunningBroker) -> None:
        add_user(broker, "nobody")
        body = (b"\x1a\x00" if method == "AckMessage" else b"\x0a\x00") * EMPTY_ENTRIES
        async with client_of(broker, "nobody") as client:
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await status_by(client, method, body, grpc.Compression.Gzip)
            assert refused.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED

    with_broker(test, security=SECURED)


@pytest.mark.parametrize("front", ["h2", "grpcio"])
def test_each_method_takes_requests_of_its_own_size(with_broker: WithBroker, front: str) -> None:
    async def test(broker: RunningBroker) -> None:
        async with Client(broker.endpoint) as client:
            for method in REQUESTS:
                size = REQUEST_SIZES.get(method, SMALL_REQUEST_SIZE)
                if size is None:
                    continue
                for beyond in (0, 1):
                    rest = size + beyond - 6
                    # a field that no request has, its size in four bytes
                    sized = bytes((0xFA, 0x07, rest & 0x7F | 0x80, rest >> 7 & 0x7F | 0x80, rest >> 14 | 0x80, 0))
                    body = sized + bytes(rest)
                    if beyond:
                        with pytest.raises(grpc.aio.AioRpcError) as refused:
                            await client.raw(method, body)
                        assert refused.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED, method
                    else:
                        assert await client.raw(method, body), method

    with_broker(test, network={"front": front})
