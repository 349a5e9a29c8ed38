"""QueryOffset: where a queue begins, ends, or stood at a time. No official client calls it."""

from __future__ import annotations

from typing import Any

import pytest

from quarry_mq.protocol.proto.apache.rocketmq.v2 import definition_pb2 as definition
from quarry_mq.protocol.proto.apache.rocketmq.v2 import service_pb2 as service
from quarry_mq.store.metadata import Permission, Topic, TopicType
from tests.conformance.broker import RunningBroker
from tests.conformance.client import Client, message, resource
from tests.conformance.conftest import WithBroker


def asking(topic: str, policy: definition.QueryOffsetPolicy, *, number: int = 0, at_ms: int | None = None) -> Any:
    request = service.QueryOffsetRequest(
        message_queue=definition.MessageQueue(topic=resource(topic), id=number), query_offset_policy=policy
    )
    if at_ms is not None:
        request.timestamp.FromMilliseconds(at_ms)
    return request


def test_a_queue_begins_ends_and_stood_somewhere(with_broker: WithBroker) -> None:
    async def test(broker: RunningBroker) -> None:
        broker.topic("orders", queues=1)
        async with Client(broker.endpoint) as client:
            times = []
            for _ in range(3):
                times.append(broker.clock.wall_ms())
                await client.sent(message("orders"))
                broker.clock.push(60)

            async def offset(policy: definition.QueryOffsetPolicy, at_ms: int | None = None) -> int:
                answer = await client.call("QueryOffset", asking("orders", policy, at_ms=at_ms))
                assert answer.status.code == definition.OK
                return int(answer.offset)

            assert await offset(definition.BEGINNING) == 0
            assert await offset(definition.END) == 3
            assert [await offset(definition.TIMESTAMP, time) for time in times] == [0, 1, 2]
            assert await offset(definition.TIMESTAMP, 0) == 0
            assert await offset(definition.TIMESTAMP, times[2] + 60_000) == 3

    with_broker(test)


@pytest.mark.parametrize(
    ("request_", "code"),
    [
        (asking("orders", definition.TIMESTAMP), definition.BAD_REQUEST),
        (asking("orders", definition.END, number=4), definition.BAD_REQUEST),
        (asking("orders", definition.END, number=-1), definition.BAD_REQUEST),
        (asking("orders", 7), definition.BAD_REQUEST),  # type: ignore[arg-type]
        (asking("ghost", definition.END), definition.TOPIC_NOT_FOUND),
        (asking("no topic!", definition.END), definition.ILLEGAL_TOPIC),
        (asking("closed", definition.END), definition.FORBIDDEN),
    ],
    ids=["no time", "no such queue", "negative", "policy", "no such topic", "name", "not readable"],
)
def test_what_makes_no_sense_is_refused_and_makes_nothing(with_broker: WithBroker, request_: Any, code: int) -> None:
    """rmq#9792: asking about a topic brings none into being."""

    async def test(broker: RunningBroker) -> None:
        broker.topic("orders")
        broker.store.topics.create(Topic("closed", TopicType.NORMAL, 1, 1, Permission.WRITE))
        async with Client(broker.endpoint) as client:
            assert (await client.call("QueryOffset", request_)).status.code == code
        assert {topic.name for topic in broker.store.topics.list()} == {"orders", "closed"}
        assert broker.store.messages.iterate_queues() == []

    with_broker(test)
