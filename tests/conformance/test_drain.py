"""A stop lets calls end that are on their way."""

from __future__ import annotations

import struct

import pytest

from quarry_mq.protocol.proto.apache.rocketmq.v2 import service_pb2 as service
from tests.conformance.broker import RunningBroker, until
from tests.conformance.client import Client, message
from tests.conformance.conftest import WithBroker
from tests.hostile import http2

INITIAL_WINDOW_SIZE = 4


def receive_without_reading(connection: http2.Connection) -> None:
    """Ask for messages, and leave no room for the answer."""
    connection.send(http2.frame(http2.SETTINGS, 0, 0, struct.pack(">HI", INITIAL_WINDOW_SIZE, 0)))
    request = service.ReceiveMessageRequest(batch_size=32)
    request.group.name = "billing"
    request.message_queue.topic.name = "orders"
    request.message_queue.id = -1
    request.filter_expression.expression = "*"
    request.invisible_duration.FromSeconds(3_600)
    connection.open_call(1, http2.call_headers("ReceiveMessage", grpc_timeout=b"60S"))
    connection.data(1, http2.grpc_message(request.SerializeToString()))


@pytest.mark.parametrize("front", ["h2", "grpcio"])
def test_messages_that_did_not_reach_their_client_are_there_again_after_the_stop(
    with_broker: WithBroker, front: str
) -> None:
    """Else they would be hidden for the hour that the client asked for."""
    sent: set[str] = set()

    async def taken(broker: RunningBroker) -> None:
        broker.topic("orders")
        async with Client(broker.endpoint) as client:
            for _ in range(5):
                sent.update(await client.sent(message("orders")))
        with http2.Connection(broker.endpoint) as connection:
            receive_without_reading(connection)
            await until(lambda: broker.broker._delivery.inflight_count == 5, "they are handed out")
            await broker.broker._stop_front(0.3)

    async def come_again(broker: RunningBroker) -> None:
        async with Client(broker.endpoint) as client:
            ids: list[str] = []
            attempts: set[int] = set()
            while len(ids) < 5:
                received = await client.receive("billing", "orders", polling_s=2)
                ids += received.ids
                attempts |= {each.system_properties.delivery_attempt for each in received.messages}
            assert (set(ids), attempts) == (sent, {1}), "nobody has seen a byte of them"

    with_broker(taken, network={"front": front})
    with_broker(come_again, network={"front": front})
