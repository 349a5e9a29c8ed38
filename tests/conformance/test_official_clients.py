"""The official admin service shows who consumes: no gRPC consumer is invisible (dashboard#185, #2504, #4367)."""

from __future__ import annotations

from typing import Any

import grpc.aio
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from quarry_mq.protocol.proto.apache.rocketmq.v2 import admin_pb2 as pb
from quarry_mq.protocol.proto.apache.rocketmq.v2 import definition_pb2 as definition
from quarry_mq.protocol.proto.apache.rocketmq.v2 import service_pb2 as service
from quarry_mq.server.admin_port.official import clients as clients_module
from quarry_mq.server.admin_port.official.service import NAME
from quarry_mq.store.metadata import Group, TopicType
from tests.conformance.broker import RunningBroker, until
from tests.conformance.client import Client, consumer_settings, message, producer_settings, resource
from tests.conformance.conftest import WithBroker
from tests.conformance.lite import PARENT, LiteClient
from tests.conformance.official import hand_out, official


def settings(
    group: str, *topics: str, expression: str = "", kind: definition.ClientType = definition.PUSH_CONSUMER
) -> definition.Settings:
    made = consumer_settings(group, *topics, kind=kind)
    made.user_agent.language = definition.GOLANG
    made.user_agent.version = "5.1.4"
    made.user_agent.hostname = "web-1"
    for entry in made.subscription.subscriptions:
        entry.expression.type = definition.TAG
        entry.expression.expression = expression
    return made


def ids(answer: Any) -> list[str]:
    return [each.client_id for each in answer.client_info]


def test_the_consumers_of_a_group_are_listed_with_what_they_are(with_broker: WithBroker) -> None:
    async def test(broker: RunningBroker) -> None:
        broker.topic("orders")
        broker.topic("payments")
        async with (
            Client(broker.endpoint, "one") as one,
            Client(broker.endpoint, "two") as two,
            Client(broker.endpoint, "sender") as sender,
            official(broker) as admin,
        ):
            await one.declare(settings("billing", "orders"))
            await two.declare(settings("billing", "orders", "payments"))
            await sender.declare(producer_settings("orders"))
            request = pb.ListConsumerConnectionRequest(group=resource("billing"))
            answer = await admin.ListConsumerConnection(request)
            assert answer.status.code == definition.OK
            assert ids(answer) == ["one", "two"]
            assert answer.client_info[0] == pb.ClientInfo(
                client_id="one",
                version="5.1.4",
                language="GOLANG",
                hostname="web-1",
                egress_ip="127.0.0.1",
                message_model=pb.CLUSTERING,
            )
            request.topic.name = "payments"
            assert ids(await admin.ListConsumerConnection(request)) == ["two"]
            # it is another one's now
            await one.declare(settings("shipping", "orders"))
            assert ids(await admin.ListConsumerConnection(pb.ListConsumerConnectionRequest(group=request.group))) == [
                "two"
            ]
            await two.vanish()
            await until(lambda: not broker.broker._clients.consumers_of("billing")[0].streams, "the stream is gone")
            broker.clock.push(30)
            await until(lambda: broker.broker._clients.consumers_of("billing")[0].is_lost, "the client is lost")
            assert ids(await admin.ListConsumerConnection(request)) == []

    with_broker(test)


def test_the_consumers_of_a_lite_topic_are_listed(with_broker: WithBroker) -> None:
    async def test(broker: RunningBroker) -> None:
        broker.topic(PARENT, TopicType.LITE, queues=1)
        broker.topic("orders")
        bound = {"lite.bind.topic": PARENT}
        broker.store.groups.create(Group("devices", attributes=bound))
        broker.store.groups.create(Group("watchers", attributes={**bound, "lite.sub.wildcard": "room-"}))
        async with (
            LiteClient(broker.endpoint, "one") as one,
            LiteClient(broker.endpoint, "two") as two,
            LiteClient(broker.endpoint, "watcher") as watcher,
            official(broker) as admin,
        ):
            for client in (one, two):
                await client.start()
                await client.add("room-1")
            await two.add("a")
            await watcher.start("watchers")
            await watcher.replace()

            async def readers(group: str, lite_topic: str, **fields: Any) -> list[str]:
                request = pb.ListConsumerConnectionRequest(group=resource(group), liteTopic=lite_topic, **fields)
                answer = await admin.ListConsumerConnection(request)
                assert answer.status.code == definition.OK, answer.status
                return ids(answer)

            assert await readers("devices", "room-1") == ["one", "two"]
            assert await readers("devices", "a", topic=resource(PARENT)) == ["two"]
            assert await readers("devices", "nobody-wants-it") == []
            assert await readers("watchers", "room-1") == ["watcher"]
            assert await readers("watchers", "a") == []
            await one.remove("room-1")
            assert await readers("devices", "room-1") == ["two"]
            wrong = pb.ListConsumerConnectionRequest(group=resource("devices"), topic=resource("orders"), liteTopic="a")
            refused = await admin.ListConsumerConnection(wrong)
            assert refused.status.code == definition.ILLEGAL_TOPIC
            assert "topic: group devices is bound to topic events" in refused.status.message

    with_broker(test)


def test_subscriptions_are_listed_online_or_not(with_broker: WithBroker) -> None:
    async def test(broker: RunningBroker) -> None:
        orders, payments = broker.topic("orders"), broker.topic("payments")
        async with Client(broker.endpoint) as gone:
            await gone.declare(settings("billing", payments))
            await gone.sent(message(payments))
            await hand_out(gone, "billing", payments, count=1)
            goodbye = service.NotifyClientTerminationRequest(group=resource("billing"))
            await gone.call("NotifyClientTermination", goodbye)
        async with (
            Client(broker.endpoint, "one") as one,
            Client(broker.endpoint, "two") as two,
            official(broker) as admin,
        ):
            await one.declare(settings("billing", orders, expression="a || b"))
            listed = await admin.ListSubscription(pb.ListSubscriptionRequest(group=resource("billing")))
            assert [(each.topic.name, each.online) for each in listed.subscription_info] == [
                (orders, True),
                (payments, False),
            ]
            online, offline = listed.subscription_info
            assert online.expression == definition.FilterExpression(type=definition.TAG, expression="a || b")
            assert online.message_model == pb.CLUSTERING
            assert abs(online.last_update_timestamp.ToMilliseconds() - broker.clock.wall_ms()) < 10_000
            assert online.subscription_consistency
            assert not offline.HasField("expression")
            assert not offline.HasField("last_update_timestamp")
            # consumers of one group that want different things are a mistake that this shows
            await two.declare(settings("billing", orders, expression="c"))
            by_topic = await admin.ListSubscription(pb.ListSubscriptionRequest(topic=resource(orders)))
            assert [(each.group.name, each.subscription_consistency) for each in by_topic.subscription_info] == [
                ("billing", False)
            ]
            both = pb.ListSubscriptionRequest(topic=resource(payments), group=resource("billing"))
            assert [each.online for each in (await admin.ListSubscription(both)).subscription_info] == [False]
            readers = await admin.ListSubscription(pb.ListSubscriptionRequest(topic=resource(payments)))
            assert [each.group.name for each in readers.subscription_info] == ["billing"]

    with_broker(test)


def test_subscriptions_are_described_client_by_client(with_broker: WithBroker) -> None:
    async def test(broker: RunningBroker) -> None:
        broker.topic("orders")
        async with (
            Client(broker.endpoint, "one") as one,
            Client(broker.endpoint, "two") as two,
            Client(broker.endpoint, "lite") as lite,
            official(broker) as admin,
        ):
            await one.declare(settings("billing", "orders", "payments", expression="a"))
            await two.declare(settings("shipping", "orders"))
            await lite.declare(settings("bots", kind=definition.LITE_PUSH_CONSUMER))
            everything = await admin.DescribeSubscription(pb.DescribeSubscriptionRequest())
            assert [
                (each.client_info.client_id, each.subscription_info.group.name, each.subscription_info.topic.name)
                for each in everything.client_subscription_info
            ] == [
                ("one", "billing", "orders"),
                ("one", "billing", "payments"),
                ("two", "shipping", "orders"),
                ("lite", "bots", ""),
            ]
            assert everything.client_subscription_info[0].subscription_info.expression.expression == "a"
            assert everything.client_subscription_info[3].client_info.message_model == pb.LITE_SELECTIVE
            one_topic = pb.DescribeSubscriptionRequest(topic=resource("orders"), group=resource("shipping"))
            described = await admin.DescribeSubscription(one_topic)
            assert [each.client_info.client_id for each in described.client_subscription_info] == ["two"]

    with_broker(test)


def test_what_a_consumer_does_inside_is_not_made_up(with_broker: WithBroker) -> None:
    async def test(broker: RunningBroker) -> None:
        broker.topic("orders")
        broker.group("billing", fifo=True)
        async with Client(broker.endpoint, "one") as one, official(broker) as admin:
            await one.declare(settings("billing", "orders", expression="a"))
            request = pb.GetConsumerRunningInfoRequest(group=resource("billing"), client_id="one")
            answer = await admin.GetConsumerRunningInfo(request)
        assert answer.status.code == definition.OK
        info = answer.consumer_running_info
        assert dict(info.properties) == {
            "PROP_CLIENT_VERSION": "GOLANG 5.1.4",
            "PROP_CONSUME_TYPE": "CONSUME_PASSIVELY",
            "PROP_CONSUMEORDERLY": "true",
        }
        assert {topic: each.expression for topic, each in info.subscriptions.items()} == {"orders": "a"}
        assert not info.message_queue_table
        assert not info.consume_status_table

    with_broker(test)


def test_an_answer_has_an_end_and_says_so(with_broker: WithBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clients_module, "ROWS_MAX", 1)

    async def test(broker: RunningBroker) -> None:
        broker.topic("orders")
        async with (
            Client(broker.endpoint, "one") as one,
            Client(broker.endpoint, "two") as two,
            official(broker) as admin,
        ):
            await one.declare(settings("billing", "orders"))
            await two.declare(settings("billing", "orders"))
            request = pb.ListConsumerConnectionRequest(group=resource("billing"))
            connections = await admin.ListConsumerConnection(request)
            described = await admin.DescribeSubscription(pb.DescribeSubscriptionRequest())
        assert (ids(connections), connections.status.code) == (["one"], definition.OK)
        assert "there are more" in connections.status.message
        assert len(described.client_subscription_info) == 1
        assert "there are more" in described.status.message

    with_broker(test)


def test_the_stats_of_the_broker_are_those_of_the_last_seconds(with_broker: WithBroker) -> None:
    async def test(broker: RunningBroker) -> None:
        topic = broker.topic("orders")
        async with Client(broker.endpoint) as sender, Client(broker.endpoint) as reader, official(broker) as admin:
            await sender.declare(producer_settings(topic))
            await reader.declare(settings("billing", topic, kind=definition.SIMPLE_CONSUMER))
            for _ in range(20):
                await sender.sent(message(topic))
            await hand_out(reader, "billing", topic, count=10)
            broker.clock.push(2)
            stats = await admin.GetProxyRuntimeStats(pb.GetProxyRuntimeStatsRequest())
            broker.clock.push(60)
            await until(lambda: broker.broker._messaging.rates.totals().sent < 1, "the window has moved on")
        assert stats.status.code == definition.OK
        assert (stats.connections, stats.producers, stats.consumers) == (2, 1, 1)
        assert (stats.proxy_name, bool(stats.version)) == ("quarry-0", True)
        assert 2 < stats.in_tps <= 10
        assert stats.in_tps == pytest.approx(2 * stats.out_tps, rel=0.01)

    with_broker(test, broker={"name": "quarry-0"})


def test_the_log_level_is_changed(with_broker: WithBroker) -> None:
    async def test(broker: RunningBroker) -> None:
        async with official(broker) as admin:
            for level, word in (
                (pb.ChangeLogLevelRequest.ERROR, "error"),
                (pb.ChangeLogLevelRequest.TRACE, "debug"),
                (pb.ChangeLogLevelRequest.WARN, "warning"),
                (pb.ChangeLogLevelRequest.INFO, "info"),
            ):
                answer = await admin.ChangeLogLevel(pb.ChangeLogLevelRequest(level=level))
                assert answer.remark == f"log.level is {word} now"
                assert broker.broker._live.current.log.level == word
            unknown: Any = 99
            with pytest.raises(Exception, match="level: 99 is unknown"):
                await admin.ChangeLogLevel(pb.ChangeLogLevelRequest(level=unknown))

    with_broker(test)


def test_the_service_is_listed_and_healthy(with_broker: WithBroker) -> None:
    async def test(broker: RunningBroker) -> None:
        async with grpc.aio.insecure_channel(broker.admin) as channel:
            untyped: Any = channel
            health: Any = health_pb2_grpc.HealthStub(untyped)
            assert (await health.Check(health_pb2.HealthCheckRequest(service=NAME))).status == 1
            look: Any = reflection_pb2_grpc.ServerReflectionStub(untyped)
            request = reflection_pb2.ServerReflectionRequest(list_services="")
            (answer,) = [each async for each in look.ServerReflectionInfo(iter([request]))]
            assert NAME in [each.name for each in answer.list_services_response.service]

    with_broker(test)


def test_a_subscription_is_deleted_when_its_consumers_are_gone(with_broker: WithBroker) -> None:
    async def test(broker: RunningBroker) -> None:
        broker.topic("orders")
        broker.topic("payments")
        broker.group("billing")
        request = pb.DeleteSubscriptionRequest(topic=resource("orders"), group=resource("billing"))
        async with Client(broker.endpoint) as client, official(broker) as admin:
            for topic in ("orders", "payments"):
                await client.sent(message(topic, b"1"), message(topic, b"2"))
                assert len((await client.receive("billing", topic, count=1)).messages) == 1
            async with Client(broker.endpoint) as consumer:
                await consumer.declare(settings("billing", "orders"))
                assert (await admin.DeleteSubscription(request)).status.code == definition.PRECONDITION_FAILED
                await consumer.call(
                    "NotifyClientTermination", service.NotifyClientTerminationRequest(group=resource("billing"))
                )
            assert (await admin.DeleteSubscription(request)).status.code == definition.OK
            assert broker.delivery.inflight_count == 1  # that of the other topic
            assert (await admin.DeleteSubscription(request)).status.code == definition.OFFSET_NOT_FOUND
            again = await client.receive("billing", "orders")  # as a new group
            assert [each.body for each in again.messages] == [b"1", b"2"]
            other = await client.receive("billing", "payments")
            assert [each.body for each in other.messages] == [b"2"]

    with_broker(test)
