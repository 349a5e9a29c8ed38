"""Messages that no gRPC client sent, as stores of RocketMQ hold them: what every client can do something with."""

from __future__ import annotations

import gzip
import hashlib
import zlib
from collections.abc import Sequence
from typing import Final

import lz4.frame
import pytest

from quarry_mq.protocol.messages.property_names import COMPRESSED_BY
from quarry_mq.protocol.messages.system_flag import COMPRESSED, Compression
from quarry_mq.protocol.proto.apache.rocketmq.v2 import definition_pb2 as definition
from quarry_mq.protocol.times import TIME_MS_MAX
from quarry_mq.server.wire import messages as wire_messages
from quarry_mq.store.message import Message
from tests.conformance.broker import RunningBroker
from tests.conformance.client import Client, message
from tests.conformance.conftest import WithBroker, both_ways
from tests.record import zstd
from tests.store.assembly import message as record

pytestmark = [both_ways, pytest.mark.parametrize("front", ["h2", "grpcio"])]

BODY: Final = b"a body that is worth it " * 100
PACKED: Final = [
    (Compression.ZLIB, zlib.compress(BODY)),
    (Compression.LZ4, lz4.frame.compress(BODY)),
    (Compression.ZSTD, zstd.compress(BODY)),
    (0, zlib.compress(BODY)),  # by a client of version 4.9.3 or older
]


async def stored(broker: RunningBroker, messages: Sequence[Message]) -> None:
    broker.topic("orders", queues=1)
    broker.store.messages.append(list(messages))
    broker.store.messages.dispatch(broker.store.messages.flush())


async def received(client: Client, count: int) -> list[definition.Message]:
    found: list[definition.Message] = []
    while len(found) < count:
        found += (await client.receive("billing", "orders")).messages
    return found


def digest(body: bytes) -> str:
    return hashlib.md5(body, usedforsecurity=False).hexdigest().upper()


def test_bodies_that_remoting_producers_compressed_are_plain(with_broker: WithBroker, native: bool, front: str) -> None:
    async def test(broker: RunningBroker) -> None:
        await stored(
            broker,
            [
                record("orders", 0, packed, UNIQ_KEY=f"M{flag}", colour="blue")._replace(system_flag=COMPRESSED | flag)
                for flag, packed in PACKED
            ],
        )
        async with Client(broker.endpoint) as client:
            for each in await received(client, len(PACKED)):
                assert each.body == BODY
                assert each.system_properties.body_encoding == definition.IDENTITY
                assert each.system_properties.body_digest.checksum == digest(BODY)
                assert dict(each.user_properties) == {"colour": "blue"}

    with_broker(test, network={"front": front}, broker={"native": native})


def test_what_a_grpc_client_sent_as_gzip_comes_as_it_was_sent(
    with_broker: WithBroker, native: bool, front: str
) -> None:
    async def test(broker: RunningBroker) -> None:
        broker.topic("orders", queues=1)
        sent = [gzip.compress(BODY), zlib.compress(BODY), b"neither", b"x"]
        async with Client(broker.endpoint) as client:
            for body in sent:
                await client.sent(message("orders", body, body_encoding=definition.GZIP))
            found = await received(client, len(sent))
        assert [each.body for each in found] == sent
        assert {each.system_properties.body_encoding for each in found} == {definition.GZIP}
        assert [each.system_properties.body_digest.checksum for each in found] == list(map(digest, sent))
        assert all(not each.user_properties for each in found)

    with_broker(test, network={"front": front}, broker={"native": native})


def test_a_body_that_cannot_be_made_plain_comes_as_it_is_and_loses_no_other(
    with_broker: WithBroker, native: bool, front: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wire_messages, "PLAIN_SIZE_MAX", 10_000)
    bad = [
        ("zlib", Compression.ZLIB, zlib.compress(BODY)[:-1]),
        ("zlib", Compression.ZLIB, zlib.compress(bytes(10_001))),
        ("zlib", 0, b"neither"),
        ("lz4", Compression.LZ4, lz4.frame.compress(bytes(10_001))),
        ("zstd", Compression.ZSTD, b"no zstd"),
        ("unknown", 0x500, BODY),
    ]

    async def test(broker: RunningBroker) -> None:
        good = record("orders", 0, b"good", UNIQ_KEY="good")
        await stored(
            broker,
            [
                *(record("orders", 0, body)._replace(system_flag=COMPRESSED | flag) for _, flag, body in bad),
                good,
            ],
        )
        async with Client(broker.endpoint) as client:
            *found, last = await received(client, len(bad) + 1)
        assert last.body == b"good"
        for each, (name, _, body) in zip(found, bad, strict=True):
            assert each.body == body
            assert each.system_properties.body_encoding == definition.IDENTITY
            assert each.system_properties.body_digest.checksum == digest(body)
            assert dict(each.user_properties) == {COMPRESSED_BY: name}

    with_broker(test, network={"front": front}, broker={"native": native})


def test_times_that_no_client_can_show_end_where_its_calendar_does(
    with_broker: WithBroker, native: bool, front: str
) -> None:
    """Micro- and nanoseconds for milliseconds, and what lies before 1970."""
    born = [1_700_000_000_000_000, 1_700_000_000_000_000_000, 2**63 - 1, TIME_MS_MAX + 1, TIME_MS_MAX, 0, -1, -(2**63)]

    async def test(broker: RunningBroker) -> None:
        await stored(broker, [record("orders", 0, UNIQ_KEY="id")._replace(born_timestamp_ms=each) for each in born])
        async with Client(broker.endpoint) as client:
            found = await received(client, len(born))
        shown = [each.system_properties.born_timestamp for each in found]
        assert [each.ToMilliseconds() for each in shown] == [min(max(each, 0), TIME_MS_MAX) for each in born]
        assert all(each.ToJsonString() for each in shown)

    with_broker(test, network={"front": front}, broker={"native": native})
