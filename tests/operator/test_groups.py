"""Consumer groups are at the broker what resources declare."""

from __future__ import annotations

from quarry_mq.cli.operator.resources import CONSUMER_GROUP, DRIFTED
from quarry_mq.client.aio import AsyncMessagingClient
from quarry_mq.client.endpoint import Endpoint
from quarry_mq.client.requests import Subscription
from quarry_mq.protocol.proto.quarry.admin.v1 import admin_pb2 as pb
from tests.e2e.broker import Broker
from tests.operator.bench import run
from tests.operator.conftest import OpenBench

FULL = {
    "fifo": True,
    "maxAttempts": 5,
    "enabled": False,
    "retryDelaysSeconds": [1, 30],
    "liteModel": "exclusive",
    "liteQuota": 7,
    "attributes": {"owner": "shop"},
}


def test_a_group_is_made_as_declared(open_bench: OpenBench, name: str) -> None:
    async def scenario() -> None:
        async with open_bench() as bench, bench.operating():
            await bench.declare(CONSUMER_GROUP, "billing", {"name": name, "liteParent": f"{name}-chats", **FULL})
            await bench.ready(CONSUMER_GROUP, "billing")
            group = await bench.admin.group(name)
            assert (group.fifo, group.max_attempts, group.enabled) == (True, 5, False)
            assert list(group.customized.delays_ms) == [1_000, 30_000]
            assert dict(group.attributes) == {
                "owner": "shop",
                "lite.bind.topic": f"{name}-chats",
                "lite.sub.model": "Exclusive",
                "lite.sub.client.quota": "7",
            }
            await bench.looked(CONSUMER_GROUP)
            await bench.told("billing", "Created")

    run(scenario())


def test_what_is_not_declared_stays_as_it_is(open_bench: OpenBench, name: str) -> None:
    """An operator disables a group in an emergency: nothing enables it again."""

    async def scenario() -> None:
        async with open_bench() as bench, bench.operating():
            await bench.declare(CONSUMER_GROUP, name, {"maxAttempts": 5})
            await bench.ready(CONSUMER_GROUP, name)
            await bench.call("AdminService/UpdateGroup", pb.UpdateGroupRequest(name=name, enabled=False))
            await bench.change(CONSUMER_GROUP, name, {"maxAttempts": 6})
            await bench.ready(CONSUMER_GROUP, name)
            group = await bench.admin.group(name)
            assert (group.max_attempts, group.enabled) == (6, False)

    run(scenario())


def test_an_exponential_backoff_is_another_one_than_a_list(open_bench: OpenBench, name: str) -> None:
    async def scenario() -> None:
        async with open_bench() as bench, bench.operating():
            backoff = pb.ExponentialBackoff(initial_ms=1_000, maximum_ms=9_000, multiplier=3)
            await bench.call("AdminService/CreateGroup", pb.CreateGroupRequest(name=name, exponential=backoff))
            await bench.declare(CONSUMER_GROUP, name, {"retryDelaysSeconds": [2]})
            assert "an exponential backoff" in await bench.not_ready(CONSUMER_GROUP, name, "AlreadyExists")
            await bench.change(CONSUMER_GROUP, name, {"adopt": True})
            await bench.ready(CONSUMER_GROUP, name)
            assert list((await bench.admin.group(name)).customized.delays_ms) == [2_000]

    run(scenario())


def test_a_group_that_was_changed_by_hand_is_put_right(open_bench: OpenBench, name: str) -> None:
    async def scenario() -> None:
        async with open_bench() as bench, bench.operating():
            await bench.declare(CONSUMER_GROUP, name, {"fifo": True})
            await bench.ready(CONSUMER_GROUP, name)
            await bench.call("AdminService/UpdateGroup", pb.UpdateGroupRequest(name=name, fifo=False))
            await bench.until(CONSUMER_GROUP, name, lambda each: each.condition(DRIFTED)["reason"] == "Corrected")
            assert (await bench.admin.group(name)).fifo

    run(scenario())


def test_a_group_goes_with_its_resource_when_nobody_consumes(open_bench: OpenBench, name: str, broker: Broker) -> None:
    async def scenario() -> None:
        async with open_bench() as bench, bench.operating():
            await bench.admin.create_topic(name)
            await bench.declare(CONSUMER_GROUP, name, {"deletionPolicy": "Delete"})
            await bench.ready(CONSUMER_GROUP, name)
            subscription = Subscription(group=name, topic=name)
            async with AsyncMessagingClient(Endpoint(broker.endpoint), subscription=subscription):
                await bench.delete(CONSUMER_GROUP, name)
                message = await bench.not_ready(CONSUMER_GROUP, name, "ConsumersConnected")
                assert "1 consumers are connected" in message
            await bench.gone(CONSUMER_GROUP, name)
            assert name not in [each.name async for each in bench.admin.groups(name)]

    run(scenario())
