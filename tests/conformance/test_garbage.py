"""Frequent operations leave nothing behind that only a search for garbage would find: such a search stops everything.

Objects of the client in this process are not looked at, only those of the broker's own modules.
"""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Awaitable, Callable
from types import FunctionType
from typing import Final

import pytest

from quarry_mq.protocol.proto.apache.rocketmq.v2 import definition_pb2 as definition
from quarry_mq.store.metadata import Group, TopicType
from tests.conformance.broker import RunningBroker
from tests.conformance.client import Client, consumer_settings, message, producer_settings
from tests.conformance.conftest import WithBroker, both_ways
from tests.conformance.lite import GROUP, PARENT, LiteClient, send
from tests.conformance.secured import SECURED, add_user, client_of
from tests.conformance.test_access import REQUESTS

OURS: Final = ("quarry_mq.server.", "quarry_mq.store.", "quarry_mq.kv.")
TIMES: Final = 8
"""Some of the first times make what is kept."""

Doing = Callable[[RunningBroker, int], Awaitable[None]]


async def normal_messages(broker: RunningBroker, time: int) -> None:
    async with Client(broker.endpoint) as client:
        await client.declare(producer_settings("orders"))
        await client.declare(consumer_settings("billing", "orders"))
        await client.sent(*(message("orders") for _ in range(3)))
        received = await client.receive("billing", "orders")
        await client.ack("billing", "orders", *received.handles)


async def ordered_messages(broker: RunningBroker, time: int) -> None:
    async with Client(broker.endpoint) as client:
        await client.declare(consumer_settings("ordered", "steps"))
        await client.sent(message("steps", message_group=f"g{time}", message_type=definition.FIFO))
        received = await client.receive("ordered", "steps")
        await client.change("ordered", "steps", received.handles[0], 0)
        received = await client.receive("ordered", "steps")
        await client.ack("ordered", "steps", *received.handles)


async def lite_messages(broker: RunningBroker, time: int) -> None:
    async with LiteClient(broker.endpoint) as client:
        await client.start()
        await client.replace("a", f"b{time}")
        await send(client, f"b{time}", b"1")
        await client.done(await client.got())
        await client.remove(f"b{time}")


async def polls_that_end(broker: RunningBroker, time: int) -> None:
    async with Client(broker.endpoint) as client:
        await client.declare(consumer_settings("billing", "orders"))
        for _ in range(3):
            await client.receive("billing", "orders", polling_s=0.01)


async def clients_that_vanish(broker: RunningBroker, time: int) -> None:
    async with Client(broker.endpoint) as client:
        await client.declare(consumer_settings("billing", "orders"))
        client.start_receive("billing", "orders", polling_s=5)
        await client.vanish()


@pytest.mark.parametrize(
    "doing", [normal_messages, ordered_messages, lite_messages, polls_that_end, clients_that_vanish]
)
def test_what_is_done_often_leaves_no_garbage(with_broker: WithBroker, doing: Doing) -> None:
    async def test(broker: RunningBroker) -> None:
        broker.topic("orders")
        broker.topic("steps", TopicType.FIFO)
        broker.group("billing")
        broker.group("ordered", fifo=True)
        broker.topic(PARENT, TopicType.LITE)
        broker.store.groups.create(Group(GROUP, attributes={"lite.bind.topic": PARENT}))
        assert not await garbage_of(doing, broker)

    with_broker(test)


def _name(found: object) -> str:
    of = found if isinstance(found, FunctionType) else type(found)
    return f"{of.__module__}.{of.__qualname__}"


# -- refusals


async def strangers(broker: RunningBroker, time: int) -> None:
    async with Client(broker.endpoint) as client, client_of(broker, "orders", secret="wrong-secret-indeed") as guesser:
        await client.declare(producer_settings("orders"))
        await guesser.declare(producer_settings("orders"))
        for method, request in REQUESTS.items():
            await client.raw(method, request.SerializeToString())
            await guesser.raw(method, request.SerializeToString())


async def users_without_rights(broker: RunningBroker, time: int) -> None:
    async with client_of(broker, "nobody") as client:
        await client.declare(producer_settings("orders"))
        for method, request in REQUESTS.items():
            await client.raw(method, request.SerializeToString())


async def requests_that_are_refused(broker: RunningBroker, time: int) -> None:
    """Wrong handles, groups that there are not, bytes that are no request, and more of the kind."""
    async with client_of(broker, "all") as client:
        await client.declare(consumer_settings("billing", "orders"))
        for method, request in REQUESTS.items():
            await client.raw(method, request.SerializeToString())
            await client.raw(method, b"")
            await client.raw(method, b"\xff")
        await client.ack("billing", "orders", "x", "y")
        await client.change("billing", "orders", "x", 1)
        await client.receive("billing", "orders", tags="a ||", polling_s=0.0)
        await client.receive("billing", "none-such", polling_s=0.0)
        await client.send(message("orders", bytes(5 << 20)))
        await client.refused(consumer_settings("not a name", "orders"))


@both_ways
@pytest.mark.parametrize("front", ["h2", pytest.param("grpcio", marks=pytest.mark.slow)])
@pytest.mark.parametrize("doing", [strangers, users_without_rights, requests_that_are_refused])
def test_refusals_leave_no_garbage(with_broker: WithBroker, doing: Doing, front: str) -> None:
    """The error of a call refers to its frames, and so to all that it had read."""

    async def test(broker: RunningBroker) -> None:
        broker.topic("orders")
        broker.group("billing")
        add_user(broker, "orders", "topic:orders pub")
        add_user(broker, "nobody")
        add_user(broker, "all", "topic:* pub sub", "group:* sub")
        assert not await garbage_of(doing, broker)

    with_broker(test, security={**SECURED, "failures_per_minute": 10_000}, network={"front": front})


async def garbage_of(doing: Doing, broker: RunningBroker) -> dict[str, int]:
    """What of the broker's own is left behind, by its class, and how many of each."""
    for time in range(TIMES):
        await doing(broker, time)
    gc.collect()
    gc.set_debug(gc.DEBUG_SAVEALL)
    try:
        for time in range(TIMES):
            await doing(broker, TIMES + time)
        gc.collect()
        found = Counter(_name(each) for each in gc.garbage)
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
    return {name: count for name, count in found.items() if name.startswith(OURS)}
