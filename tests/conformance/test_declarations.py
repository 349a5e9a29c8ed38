"""Points 4 to 9, 18 and 19: what a client says about itself, and what it is told."""

from __future__ import annotations

import grpc
import pytest

from quarry_mq.protocol.proto.apache.rocketmq.v2 import definition_pb2 as definition
from quarry_mq.protocol.proto.apache.rocketmq.v2 import service_pb2 as service
from quarry_mq.store.metadata import TopicType
from tests.conformance.broker import RunningBroker
from tests.conformance.client import Client, consumer_settings, message, producer_settings, resource
from tests.conformance.conftest import WithBroker

CONSUMERS = [
    definition.PUSH_CONSUMER,
    definition.SIMPLE_CONSUMER,
    definition.LITE_PUSH_CONSUMER,
    definition.LITE_SIMPLE_CONSUMER,
]


async def heartbeat(client: Client, group: str | None) -> definition.Code:
    request = service.HeartbeatRequest(group=None if group is None else resource(group))
    answer: service.HeartbeatResponse = await client.call("Heartbeat", request)
    return answer.status.code


def test_point_04_without_users_an_empty_signature_is_as_good_as_none(with_broker: WithBroker) -> None:
    """What the Python client sends without credentials."""

    async def test(broker: RunningBroker) -> None:
        broker.topic("orders")
        async with Client(broker.endpoint) as client:
            signature = "MQv2-HMAC-SHA1 Credential=, SignedHeaders=x-mq-date-time, Signature="
            client.metadata += [("authorization", signature), ("x-mq-date-time", "20260101T000000Z")]
            await client.sent(message("orders"))

    with_broker(test)


@pytest.mark.parametrize("topics", [["orders"], []], ids=["point_05_topics", "point_06_no_topics"])
def test_point_05_and_06_a_producer_is_told_how_to_send(with_broker: WithBroker, topics: list[str]) -> None:
    async def test(broker: RunningBroker) -> None:
        async with Client(broker.endpoint) as client:
            told = await client.declare(producer_settings(*topics))
            assert told.status.code == definition.OK
            assert told.settings.WhichOneof("pub_sub") == "publishing"
            publishing, policy = told.settings.publishing, told.settings.backoff_policy
            assert [topic.name for topic in publishing.topics] == topics
            assert (publishing.max_body_size, publishing.validate_message_type) == (4_194_304, True)
            assert policy.max_attempts == 3
            backoff = policy.exponential_backoff
            assert (backoff.initial.ToMilliseconds(), backoff.max.ToMilliseconds()) == (10, 1_000)
            assert backoff.multiplier == 2.0

    with_broker(test)


def test_point_07_a_push_consumer_is_told_how_to_receive(with_broker: WithBroker) -> None:
    async def test(broker: RunningBroker) -> None:
        broker.topic("orders")
        broker.group("billing")
        async with Client(broker.endpoint) as client:
            asked = consumer_settings("billing", "orders", kind=definition.PUSH_CONSUMER)
            asked.subscription.subscriptions[0].expression.expression = "paid"
            asked.subscription.subscriptions[0].expression.type = definition.TAG
            told = await client.declare(asked)
            assert told.status.code == definition.OK
            subscription = told.settings.subscription
            assert subscription.group.name == "billing"
            assert list(subscription.subscriptions) == list(asked.subscription.subscriptions)
            assert not subscription.fifo
            assert subscription.receive_batch_size == 32
            assert subscription.long_polling_timeout.ToSeconds() == 20
            assert told.settings.backoff_policy.max_attempts == 17
            delays_s = [each.ToSeconds() for each in told.settings.backoff_policy.customized_backoff.next]
            assert (len(delays_s), delays_s[0], delays_s[-1]) == (18, 1, 7_200)

    with_broker(test, delivery={"polling_max_ms": 20_000})


def _neither() -> definition.Settings:
    return definition.Settings(client_type=definition.PRODUCER)


@pytest.mark.parametrize(
    "settings",
    [_neither(), producer_settings("()"), consumer_settings("", "orders", kind=definition.PUSH_CONSUMER)],
    ids=["neither part", "illegal topic", "no group"],
)
def test_point_08_settings_that_make_no_sense_end_the_stream(
    with_broker: WithBroker, settings: definition.Settings
) -> None:
    async def test(broker: RunningBroker) -> None:
        async with Client(broker.endpoint) as client:
            assert await client.refused(settings) is grpc.StatusCode.INVALID_ARGUMENT

    with_broker(test)


@pytest.mark.parametrize("kind", [definition.LITE_PUSH_CONSUMER, definition.LITE_SIMPLE_CONSUMER])
def test_point_09_a_lite_consumer_is_told_its_quotas(with_broker: WithBroker, kind: definition.ClientType) -> None:
    async def test(broker: RunningBroker) -> None:
        broker.topic("lights", TopicType.LITE)
        async with Client(broker.endpoint) as client:
            told = await client.declare(consumer_settings("billing", "lights", kind=kind))
            assert told.status.code == definition.OK
            assert told.settings.subscription.lite_subscription_quota > 0
            assert told.settings.subscription.max_lite_topic_size == 64

    with_broker(test)


def test_point_18_a_producers_heartbeat_comes_after_its_settings(with_broker: WithBroker) -> None:
    async def test(broker: RunningBroker) -> None:
        async with Client(broker.endpoint) as client:
            assert await heartbeat(client, None) == definition.UNRECOGNIZED_CLIENT_TYPE
            await client.declare(producer_settings("orders"))
            assert await heartbeat(client, None) == definition.OK

    with_broker(test)


@pytest.mark.parametrize("kind", CONSUMERS)
def test_point_18_a_consumers_heartbeat_names_its_group(with_broker: WithBroker, kind: definition.ClientType) -> None:
    async def test(broker: RunningBroker) -> None:
        async with Client(broker.endpoint) as client:
            await client.declare(consumer_settings("billing", "orders", kind=kind))
            assert await heartbeat(client, "billing") == definition.OK
            for group in (None, "", "g" * 121, "CID_RMQ_SYS_x"):
                assert await heartbeat(client, group) == definition.ILLEGAL_CONSUMER_GROUP, group

    with_broker(test)


def test_point_19_who_has_said_goodbye_is_not_known(with_broker: WithBroker) -> None:
    async def test(broker: RunningBroker) -> None:
        async with Client(broker.endpoint) as client:
            await client.declare(producer_settings("orders"))
            goodbye = service.NotifyClientTerminationRequest()
            assert (await client.call("NotifyClientTermination", goodbye)).status.code == definition.OK
            assert await heartbeat(client, None) == definition.UNRECOGNIZED_CLIENT_TYPE

    with_broker(test)
