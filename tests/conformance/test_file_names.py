"""A broker that keeps its queues in files, and light queues whose names no file can have."""

from __future__ import annotations

from typing import Any

import grpc.aio
import pytest

from quarry_mq.protocol.proto.apache.rocketmq.v2 import definition_pb2 as definition
from quarry_mq.protocol.proto.quarry.admin.v1 import verification_pb2 as pb
from quarry_mq.protocol.proto.quarry.admin.v1.verification_pb2_grpc import VerificationServiceStub
from quarry_mq.store.message import Host, Message, QueueId
from quarry_mq.store.metadata import TopicType
from tests.conformance.broker import RunningBroker, until
from tests.conformance.client import Client, message
from tests.conformance.conftest import WithBroker, both_ways
from tests.conformance.test_delay import at

pytestmark = both_ways

TOO_LONG = "%LMQ%" + "x" * 300
HOST = Host(bytes([127, 0, 0, 1]), 8081)


def naming(*names: str, **system: Any) -> definition.Message:
    made = message("orders", **system)
    made.user_properties["INNER_MULTI_DISPATCH"] = ",".join(names)
    return made


@pytest.mark.parametrize("front", ["h2", "grpcio"])
def test_a_send_to_one_is_refused_and_leaves_nothing_after(with_broker: WithBroker, front: str) -> None:
    async def test(broker: RunningBroker) -> None:
        broker.topic("orders", TopicType.MIXED, queues=1)
        later = {"delivery_timestamp": at(broker, 60), "message_type": definition.DELAY}
        async with Client(broker.endpoint) as client:
            await client.sent(naming("%LMQ%fits", "%LMQ%" + "y" * 250))
            end = broker.store.messages.appended_up_to
            for refused in (
                naming("%LMQ%a/b"),
                naming("%LMQ%fits", "%LMQ%a/b"),
                naming("%LMQ%a/b", **later),
                naming("%LMQ%a/b", message_type=definition.TRANSACTION),
            ):
                status = (await client.send(refused)).status
                assert status.code == definition.BAD_REQUEST
                assert status.message.startswith("INNER_MULTI_DISPATCH: this store keeps its queues in files")
            status = (await client.send(message("orders"), naming("%LMQ%a/b"))).status
            assert status.code == definition.BAD_REQUEST
            status = (await client.send(naming(TOO_LONG))).status
            assert status.code == definition.ILLEGAL_MESSAGE_PROPERTY_KEY
            assert broker.store.messages.appended_up_to == end
            assert broker.store.messages.pending.first_due(None) is None
            await client.sent(naming("lite", "no light queue at all/"))
        assert broker.store.messages.maximum(QueueId("%LMQ%fits", 0)) == 1

    with_broker(test, consume_queue={"mode": "file"}, network={"front": front})


def test_where_the_queues_are_in_rocksdb_a_slash_is_good(with_broker: WithBroker) -> None:
    async def test(broker: RunningBroker) -> None:
        broker.topic("orders", queues=1)
        async with Client(broker.endpoint) as client:
            await client.sent(naming("%LMQ%a/b"))
        assert broker.store.messages.maximum(QueueId("%LMQ%a/b", 0)) == 1

    with_broker(test)


def test_what_an_older_broker_has_taken_of_them_neither_ends_a_verification_nor_differs(
    with_broker: WithBroker,
) -> None:
    async def test(broker: RunningBroker) -> None:
        broker.topic("orders", queues=1)
        properties = {"INNER_MULTI_DISPATCH": f"{TOO_LONG},%LMQ%a/b,%LMQ%fits"}
        broker.store.messages.append([Message("orders", 0, b"old", properties, 1, HOST, HOST)])
        async with Client(broker.endpoint) as client:
            await client.sent(message("orders"))
        async with grpc.aio.insecure_channel(broker.admin) as channel:
            stub: Any = VerificationServiceStub(channel)
            begun = await stub.BeginVerification(pb.BeginVerificationRequest(busy_percent=100))
            seen = begun

            async def has_ended() -> bool:
                nonlocal seen
                seen = await stub.GetVerification(pb.GetVerificationRequest(id=begun.id))
                return bool(seen.state != "running")

            while not await has_ended():
                await until(lambda: True, "the loop goes on")
        assert seen.state == "agree", seen

    with_broker(test, consume_queue={"mode": "file"})
