"""A broker exports RocketMQ's metrics under traffic, and as many series with few queues as with many."""

from __future__ import annotations

import asyncio
import sys
import time
from threading import Event, Thread

from prometheus_client import generate_latest

from quarry_mq.protocol.messages.property_names import LIGHT_QUEUES
from quarry_mq.protocol.proto.apache.rocketmq.v2 import definition_pb2 as definition
from quarry_mq.server.counters import OTHER
from quarry_mq.store.message import QueueId
from quarry_mq.store.metadata import TopicType
from tests.conformance.broker import RunningBroker, until
from tests.conformance.client import Client, consumer_settings, message, producer_settings
from tests.conformance.conftest import WithBroker
from tests.conformance.test_transactions import begin, end

SCRAPE_MAX_S = 2.0
"""Ten times the target of `bench/metrics_scrape.py`: other tests run beside this one."""


def values(broker: RunningBroker, name: str, *labels: str) -> dict[tuple[str, ...], float]:
    """The samples of a name by the values of some labels."""
    return {
        tuple(sample.labels[label] for label in labels): sample.value
        for metric in broker.registry.collect()
        for sample in metric.samples
        if sample.name == name
    }


def series(broker: RunningBroker) -> int:
    return sum(len(metric.samples) for metric in broker.registry.collect())


def test_messages_are_counted_by_topic_and_group(with_broker: WithBroker) -> None:
    async def test(broker: RunningBroker) -> None:
        broker.topic("orders", queues=1)
        broker.topic("paid", TopicType.TRANSACTION)
        async with Client(broker.endpoint) as client:
            await client.receive("billing", "orders")
            await client.sent(message("orders", bytes(5_000)), message("orders", bytes(5_000)))
            await client.receive("billing", "orders", polling_s=5)
            await end(client, "paid", await begin(client, "paid"), definition.COMMIT)
            await end(client, "paid", await begin(client, "paid"), definition.ROLLBACK)
            kinds = ("topic", "message_type", "cluster", "node_type", "node_id", "is_system")
            node = ("DefaultCluster", "broker", broker.broker._settings.broker.name, "false")
            assert values(broker, "rocketmq_messages_in_total", *kinds) == {
                ("orders", "normal", *node): 2,
                ("paid", "transaction", *node): 2,
            }
            sizes = values(broker, "rocketmq_message_size_bucket", "topic", "le")
            assert (sizes["orders", "4096.0"], sizes["orders", "524288.0"]) == (0, 2)
            assert 10_000 < values(broker, "rocketmq_throughput_in_total", "topic")["orders",] < 11_000
            pair = ("consumer_group", "topic", "is_retry", "is_system")
            assert values(broker, "rocketmq_messages_out_total", *pair) == {("billing", "orders", "false", "false"): 2}
            assert values(broker, "rocketmq_commit_messages_total", "topic") == {("paid",): 1}
            assert values(broker, "rocketmq_rollback_messages_total", "topic") == {("paid",): 1}

    with_broker(test)


def test_clients_are_counted_by_what_they_say_of_themselves(with_broker: WithBroker) -> None:
    async def test(broker: RunningBroker) -> None:
        broker.topic("orders")
        async with Client(broker.endpoint) as producer, Client(broker.endpoint) as consumer:
            await producer.declare(producer_settings("orders"))
            settings = consumer_settings("billing", "orders")
            settings.user_agent.language = definition.JAVA
            settings.user_agent.version = "5.0.7"
            await consumer.declare(settings)
            labels = ("consumer_group", "language", "version", "consume_mode")
            found = values(broker, "rocketmq_consumer_connections", *labels)
            assert found == {("billing", "java", "5.0.7", "pull"): 1}
            assert sum(values(broker, "rocketmq_producer_connections", "language").values()) == 1

    with_broker(test)


def test_topics_beyond_the_bound_and_light_queues_have_no_series(with_broker: WithBroker) -> None:
    async def test(broker: RunningBroker) -> None:
        broker.topic("lights")
        async with Client(broker.endpoint) as client:
            each = message("lights")
            each.user_properties[LIGHT_QUEUES] = ",".join(f"%LMQ%light-{number}" for number in range(50))
            await client.sent(each)
            assert broker.store.messages.maximum(QueueId("%LMQ%light-7", 0)) == 1
            for number in range(5):
                await client.sent(message(f"topic-{number}"))
            found = values(broker, "rocketmq_messages_in_total", "topic")
            assert found == {("lights",): 1, ("topic-0",): 1, (OTHER,): 4}
            assert "light-7" not in generate_latest(broker.registry).decode()

    with_broker(test, metrics={"top_topics": 2})


def test_lag_is_found_out_and_goes_when_all_is_acknowledged(with_broker: WithBroker) -> None:
    async def test(broker: RunningBroker) -> None:
        broker.topic("orders", queues=2)

        def lag(what: str) -> float | None:
            return values(broker, f"rocketmq_consumer_{what}", "consumer_group").get(("billing",))

        async with Client(broker.endpoint) as client:
            await client.receive("billing", "orders")
            for _ in range(6):
                await client.sent(message("orders"))
            received = await client.receive("billing", "orders", count=4)
            await until(lambda: (lag("ready_messages"), lag("inflight_messages")) == (2, 4), "lag")
            assert lag("lag_messages") == 6
            assert (lag("lag_latency") or 0) >= (lag("queueing_latency") or 0) > 0
            assert lag("lag_latency_milliseconds") is not None
            rest = await client.receive("billing", "orders")
            await client.ack("billing", "orders", *received.handles, *rest.handles)
            await until(lambda: lag("lag_messages") == 0, "no lag")
            assert lag("lag_latency") == 0

    with_broker(test, metrics={"lag_interval_ms": 100})


async def settled(broker: RunningBroker) -> int:
    """How many series there are once rounds in the background bring no more: some begin with what they first find."""
    seen: list[int] = []
    while len(seen) < 5 or len(set(seen[-5:])) > 1:
        seen.append(series(broker))
        await asyncio.sleep(0.2)
    return seen[-1]


def test_a_scrape_has_as_many_series_with_a_thousand_queues_as_with_ten(with_broker: WithBroker) -> None:
    counted: list[int] = []

    def with_queues(topics: int) -> None:
        async def test(broker: RunningBroker) -> None:
            async with Client(broker.endpoint) as client:
                for number in range(topics):
                    name = broker.topic(f"topic-{topics}-{number}", queues=8)
                    for _ in range(8):
                        await client.sent(message(name))
                assert len(broker.store.messages.iterate_queues(f"topic-{topics}-0")) == 8
                for number in range(3):
                    await client.receive("billing", f"topic-{topics}-{number}")
                await until(lambda: values(broker, "rocketmq_consumer_lag_messages", "topic"), "lag")
                began_s = time.perf_counter()
                series(broker)
                assert time.perf_counter() - began_s < SCRAPE_MAX_S
                counted.append(await settled(broker))

        with_broker(test, metrics={"top_topics": 2, "top_groups": 2, "lag_interval_ms": 100})

    with_queues(3)
    with_queues(125)
    assert counted[0] == counted[1]


def test_scrapes_on_another_thread_do_not_disturb_the_counting(with_broker: WithBroker) -> None:
    """A dict that one thread changes while another walks over it raises."""
    interval_s = sys.getswitchinterval()

    async def test(broker: RunningBroker) -> None:
        over, failures = Event(), list[Exception]()

        def scrape() -> None:
            try:
                while not over.is_set():
                    generate_latest(broker.registry)
            except Exception as error:
                failures.append(error)

        scraper = Thread(target=scrape)
        scraper.start()
        try:
            async with Client(broker.endpoint) as client:
                for number in range(80):
                    await client.sent(message(f"topic-{number % 40}"))
                    await client.receive(f"group-{number % 20}", f"topic-{number % 40}")
        finally:
            over.set()
            scraper.join()
        assert not failures

    try:
        sys.setswitchinterval(1e-5)
        with_broker(test, metrics={"top_topics": 5, "top_groups": 5, "lag_interval_ms": 100})
    finally:
        sys.setswitchinterval(interval_s)


def test_the_stages_of_sends_and_receives_are_timed(with_broker: WithBroker) -> None:
    async def test(broker: RunningBroker) -> None:
        broker.topic("orders")
        async with Client(broker.endpoint) as client:
            await client.receive("billing", "orders")
            for _ in range(40):
                await client.sent(message("orders"))
                await client.receive("billing", "orders", polling_s=5)
        sends = values(broker, "quarry_send_stage_seconds_count", "stage")
        assert sends["check",] == 40 // 17
        assert {stage for (stage,), count in sends.items() if count} == {
            *("check", "gather", "append", "flush", "dispatch", "wake", "answer")
        }
        receives = values(broker, "quarry_receive_stage_seconds_count", "stage")
        assert {stage for (stage,), count in receives.items() if count} >= {"take", "read", "write", "answer"}

    with_broker(test)


def test_what_waits_is_counted(with_broker: WithBroker) -> None:
    async def test(broker: RunningBroker) -> None:
        broker.topic("paid", TopicType.TRANSACTION)
        async with Client(broker.endpoint) as client:
            first = await begin(client, "paid")
            await until(lambda: values(broker, "quarry_transactions_waiting") == {(): 1}, "one that was there before")
            second = await begin(client, "paid")
            assert values(broker, "quarry_transactions_waiting") == {(): 2}
            await end(client, "paid", first, definition.COMMIT)
            await end(client, "paid", second, definition.ROLLBACK)
            assert values(broker, "quarry_transactions_waiting") == {(): 0}
            assert values(broker, "quarry_delayed_messages_waiting") == {(): 0}
            assert values(broker, "quarry_delayed_next_due_seconds") == {}

    with_broker(test, metrics={"lag_interval_ms": 100})
