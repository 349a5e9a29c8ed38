"""A broker keeps nothing in memory of topics, groups and queues that were used once (promise 6; rmq#8956, rmq#9581)."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest

from quarry_mq.protocol.proto.apache.rocketmq.v2 import definition_pb2 as definition
from quarry_mq.protocol.proto.apache.rocketmq.v2 import service_pb2 as service
from quarry_mq.server.delivery.open_subscriptions import IDLE_SUBSCRIPTION_S
from tests.conformance.broker import RunningBroker, run, running_broker, until
from tests.conformance.client import Client, message, resource
from tests.memory import grown, kept_alive

CACHED = 16
FEW = 3 * CACHED
MORE = 56
HIDDEN_S = 1.0
"""Long enough for an acknowledgement on a busy machine."""


async def use(client: Client, number: int) -> None:
    """All that an ordinary client does with a topic of its own, and what only asks."""
    topic, group = f"topic-{number}", f"group-{number}"
    route = await client.call("QueryRoute", service.QueryRouteRequest(topic=resource(topic)))
    assert route.status.code == definition.OK
    await client.sent(message(topic))
    received = await client.receive(group, topic, invisible_s=HIDDEN_S)
    assert len(received.messages) == 1
    assert (await client.ack(group, topic, *received.handles)).status.code == definition.OK
    queue = definition.MessageQueue(topic=resource(topic))
    end = service.QueryOffsetRequest(message_queue=queue, query_offset_policy=definition.END)
    assert (await client.call("QueryOffset", end)).status.code == definition.OK
    ghost = await client.call(
        "QueryAssignment", service.QueryAssignmentRequest(topic=resource(f"ghost-{number}"), group=resource(group))
    )
    assert ghost.status.code == definition.TOPIC_NOT_FOUND


async def settle(broker: RunningBroker) -> None:
    """Until nothing of what was used is in flight, or was used lately."""
    delivery = broker.broker._delivery
    await until(lambda: not len(delivery._deliveries._redelivery_timers), "what was hidden is due")
    broker.clock.push(IDLE_SUBSCRIPTION_S + 1)
    await until(lambda: delivery.subscription_count == 0, "idle subscriptions are dropped")


def shrink_caches(broker: RunningBroker, patch: pytest.MonkeyPatch) -> None:
    """As if there had been many more topics than they hold."""
    for table in (broker.store.topics, broker.store.groups):
        patch.setattr(table._rows, "_cached_max", CACHED)


def test_memory_does_not_grow_with_topics_and_groups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("quarry_mq.server.append.group_commit.TOPICS_REMEMBERED", CACHED)
    monkeypatch.setattr("quarry_mq.store.metadata.offsets.INDEXED_MAX", CACHED)
    monkeypatch.setattr("quarry_mq.server.rpc.routes.QUEUES_MIN", 1)
    monkeypatch.setattr("quarry_mq.server.rpc.routes.BYTES_MAX", 16 << 10)
    monkeypatch.setattr("quarry_mq.server.counters.CANDIDATES_PER_ROW", 1)
    # the history of busy names has a bound of its own, and grows by what is busy at each of its samples
    monkeypatch.setattr("quarry_mq.server.admin.stats.INTERVAL_MS", 3_600_000)
    few_series = {"top_topics": CACHED, "top_groups": CACHED}

    async def test() -> None:
        store = {"cached_queues_max": CACHED}
        async with running_broker(tmp_path, monkeypatch, store=store, metrics=few_series) as broker:
            shrink_caches(broker, monkeypatch)
            async with Client(broker.endpoint) as client:
                for number in range(FEW):
                    await use(client, number)
                await settle(broker)
                counts = [kept_alive(broker.broker)]
                for begin in (FEW, FEW + MORE):
                    for number in range(begin, begin + MORE):
                        await use(client, number)
                    await settle(broker)
                    counts.append(kept_alive(broker.broker))
        # one object for each topic would be twice as many, each time; what others in this process keep comes and goes
        first, second = (grown(before, after, more_than=MORE // 2) for before, after in pairwise(counts))
        assert not first.keys() & second.keys(), (first, second)

    run(test())
