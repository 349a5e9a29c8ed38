"""Limits and costs of lite topics."""

from __future__ import annotations

from quarry_mq.protocol.proto.apache.rocketmq.v2 import definition_pb2 as definition
from tests.conformance.broker import RunningBroker, until
from tests.conformance.client import Client, message
from tests.conformance.conftest import WithBroker
from tests.conformance.lite import PARENT, LiteClient, found, send
from tests.conformance.test_lite import with_topics


def test_rmq_10894_and_10919_the_quota_counts_each_name_once(with_broker: WithBroker) -> None:
    """The quota is checked for each entry, and saying the same again is fine when it is full."""

    async def test(broker: RunningBroker) -> None:
        with_topics(broker, client_quota="10")
        most = [f"n{number}" for number in range(310)]  # with the slack
        async with LiteClient(broker.endpoint) as client:
            await client.start()
            await client.add(*most[:300])
            over = await client.sync(definition.PARTIAL_ADD, *most[300:], "one-more")
            assert over == definition.LITE_SUBSCRIPTION_QUOTA_EXCEEDED
            await client.add(*most[290:])
            await client.add(*most)
            assert await client.sync(definition.PARTIAL_ADD, "one-more") == definition.LITE_SUBSCRIPTION_QUOTA_EXCEEDED
            over = await client.sync(definition.COMPLETE_ADD, *most, "one-more")
            assert over == definition.LITE_SUBSCRIPTION_QUOTA_EXCEEDED
            await client.remove(most[0])
            await client.add("one-more")
            await send(client, most[0], b"not any more")
            await send(client, "one-more", b"here")
            assert found(await client.got(polling_s=2.0)) == [("one-more", b"here")]

    with_broker(test)


def test_pain_30_no_more_lite_topics_than_the_limit_and_those_that_are_there_go_on(with_broker: WithBroker) -> None:
    async def test(broker: RunningBroker) -> None:
        with_topics(broker)
        async with Client(broker.endpoint) as client:
            await until(lambda: broker.broker._maintenance.lite_topics.counts.count_of(PARENT) == 0, "they are counted")
            for name in ("a", "b", "c"):
                await send(client, name, b"1")
            answer = await client.send(message(PARENT, b"1", lite_topic="d", message_type=definition.LITE))
            assert answer.status.code == definition.LITE_TOPIC_QUOTA_EXCEEDED
            await send(client, "b", b"2")

    with_broker(test, limits={"lite_topics_per_topic": 3})


def test_clients_that_are_away_cost_no_memory_and_miss_nothing(with_broker: WithBroker) -> None:
    async def test(broker: RunningBroker) -> None:
        with_topics(broker)
        names = [f"n{number}" for number in range(500)]
        async with LiteClient(broker.endpoint) as client, Client(broker.endpoint) as producer:
            await client.start()
            await client.add(*names)
            for name in names[::50]:
                await send(producer, name, b"1")
            assert len(broker.delivery.lite._clients) == 0
            assert broker.delivery.subscription_count == 0
            got: list[str] = []
            while len(got) < 10:
                received = await client.got(polling_s=2.0, count=4)
                got += [name for name, _ in found(received)]
                await client.done(received)
            assert sorted(got) == sorted(names[::50])
            assert (await client.got()).code == definition.MESSAGE_NOT_FOUND
            assert broker.delivery.subscription_count == 0  # nothing of what is done is kept
            broker.clock.push(61)
            await until(lambda: len(broker.delivery.lite._clients) == 0, "nor of a client that has gone quiet")

    with_broker(test)


def test_lite_topics_that_are_moved_or_read_to_their_end_are_not_kept_in_memory(with_broker: WithBroker) -> None:
    """A client moves thousands in one call, and a group has millions."""

    async def test(broker: RunningBroker) -> None:
        with_topics(broker)
        names = [f"n{number}" for number in range(50)]
        async with LiteClient(broker.endpoint) as client:
            await client.start()
            for name in names:
                await send(client, name, b"old")
            await client.add(*names, policy=definition.OffsetOption.MAX)
            assert broker.delivery.subscription_count == 0
            assert (await client.got()).code == definition.MESSAGE_NOT_FOUND
            await send(client, "n1", b"new")
            received = await client.got()
            assert found(received) == [("n1", b"new")]
            assert broker.delivery.subscription_count == 1
            await client.done(received)
            await until(lambda: not broker.delivery.subscription_count, "what was read is dropped")
            await client.remove("n2")
            await client.add("n2", policy=definition.OffsetOption.MIN)
            assert found(await client.got()) == [("n2", b"old")]

    with_broker(test)
