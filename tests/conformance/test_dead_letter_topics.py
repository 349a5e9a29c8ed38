"""The topic for the dead letters of a group is there as soon as the group is, and as long."""

from __future__ import annotations

import asyncio
from typing import Any

import grpc
import grpc.aio
import pytest

from quarry_mq.protocol.proto.apache.rocketmq.v2 import definition_pb2 as definition
from quarry_mq.protocol.proto.apache.rocketmq.v2 import service_pb2 as service
from quarry_mq.protocol.proto.quarry.admin.v1 import admin_pb2 as pb
from quarry_mq.protocol.proto.quarry.admin.v1 import browsing_pb2, dead_letters_pb2
from quarry_mq.protocol.proto.quarry.admin.v1.admin_pb2_grpc import AdminServiceStub
from quarry_mq.protocol.proto.quarry.admin.v1.browsing_pb2_grpc import BrowsingServiceStub
from quarry_mq.protocol.proto.quarry.admin.v1.dead_letters_pb2_grpc import DeadLetterServiceStub
from tests.conformance.broker import PATIENCE_S, RunningBroker, until
from tests.conformance.client import Client, consumer_settings, message, resource
from tests.conformance.conftest import WithBroker, both_ways
from tests.conformance.test_order import dead_letter

pytestmark = [both_ways, pytest.mark.parametrize("front", ["h2", "grpcio"])]

LETTERS = "%DLQ%billing"


async def route(client: Client, topic: str) -> int:
    answer = await client.call("QueryRoute", service.QueryRouteRequest(topic=resource(topic)))
    return int(answer.status.code)


async def topics(admin: Any) -> list[str]:
    return [each.name async for page in admin.ListTopics(pb.ListTopicsRequest()) for each in page.topics]


@pytest.mark.parametrize("start", ["auto", "latest"])
def test_a_consumer_begins_before_the_first_dead_letter_and_gets_it(
    with_broker: WithBroker, front: str, start: str
) -> None:
    async def test(broker: RunningBroker) -> None:
        broker.topic("orders", queues=1)
        async with Client(broker.endpoint) as client, Client(broker.endpoint) as looker:
            settings = consumer_settings("looking", LETTERS)
            await looker.declare(settings)
            assert await route(looker, LETTERS) == definition.TOPIC_NOT_FOUND
            broker.group("billing", max_attempts=1)
            await looker.declare(settings)
            assert await route(looker, LETTERS) == definition.OK
            assert (await looker.receive("looking", LETTERS)).code == definition.MESSAGE_NOT_FOUND
            assert broker.store.topics.stored(LETTERS) is None
            waiting = asyncio.ensure_future(looker.receive("looking", LETTERS, polling_s=PATIENCE_S))
            await until(lambda: broker.delivery.waiting_polls == 1, "it waits")
            await client.declare(consumer_settings("billing", "orders"))
            await client.sent(message("orders", b"a"))
            received = await client.receive("billing", "orders", polling_s=PATIENCE_S)
            await dead_letter(client, "billing", "orders", *received.handles)
            assert [each.body for each in (await waiting).messages] == [b"a"]
            assert broker.store.topics.stored(LETTERS) is not None

    with_broker(test, network={"front": front}, delivery={"new_group_start": start})


def test_operators_see_it_empty_and_it_goes_with_the_group(with_broker: WithBroker, front: str) -> None:
    async def test(broker: RunningBroker) -> None:
        broker.group("billing")
        async with grpc.aio.insecure_channel(broker.admin) as channel:
            admin: Any = AdminServiceStub(channel)
            letters: Any = DeadLetterServiceStub(channel)
            browsing: Any = BrowsingServiceStub(channel)
            topic = await admin.GetTopic(pb.GetTopicRequest(name=LETTERS))
            assert (topic.type, topic.read_queues, topic.write_queues) == (pb.TOPIC_TYPE_MIXED, 1, 1)
            [queue] = (await admin.ListQueues(pb.ListQueuesRequest(topic=LETTERS))).queues
            assert (queue.minimum_offset, queue.maximum_offset) == (0, 0)
            listing = dead_letters_pb2.ListDeadLettersRequest(group="billing")
            assert not (await letters.ListDeadLetters(listing)).dead_letters
            assert not (await browsing.BrowseMessages(browsing_pb2.BrowseMessagesRequest(topic=LETTERS))).messages
            assert await topics(admin) == []
            await admin.DeleteTopic(pb.DeleteTopicRequest(name=LETTERS))
            await admin.GetTopic(pb.GetTopicRequest(name=LETTERS))
            await admin.DeleteGroup(pb.DeleteGroupRequest(name="billing"))
            for call in (
                admin.GetTopic(pb.GetTopicRequest(name=LETTERS)),
                letters.ListDeadLetters(listing),
            ):
                with pytest.raises(grpc.aio.AioRpcError, match="NOT_FOUND"):
                    await call
            broker.group("billing")
            changed = await admin.UpdateTopic(pb.UpdateTopicRequest(name=LETTERS, permission=pb.PERMISSION_READ))
            assert changed.permission == pb.PERMISSION_READ
            assert await topics(admin) == [LETTERS]

    with_broker(test, network={"front": front})


def test_what_is_sent_there_is_in_a_topic_that_stays(with_broker: WithBroker, front: str) -> None:
    async def test(broker: RunningBroker) -> None:
        broker.group("billing")
        async with Client(broker.endpoint) as client:
            await client.sent(message(LETTERS, b"a"))
            assert broker.store.topics.stored(LETTERS) is not None
            broker.broker._administration.delete_group("billing")
            assert [each.body for each in (await client.receive("looking", LETTERS)).messages] == [b"a"]

    with_broker(test, network={"front": front}, delivery={"new_group_start": "earliest"}, topics={"auto_create": False})
