"""Lists of connected clients, from a running broker."""

from __future__ import annotations

from itertools import count
from typing import Any

import grpc.aio
import pytest

from quarry_mq.protocol.proto.apache.rocketmq.v2 import definition_pb2 as definition
from quarry_mq.protocol.proto.quarry.admin.v1 import clients_pb2 as pb
from quarry_mq.protocol.proto.quarry.admin.v1.clients_pb2_grpc import ClientServiceStub
from quarry_mq.protocol.signature import signed_admin_headers
from quarry_mq.server.admin_port.metadata import clients as clients_module
from tests.conformance.broker import RunningBroker, until
from tests.conformance.client import Client, producer_settings
from tests.conformance.conftest import WithBroker
from tests.conformance.secured import SECRET, SECURED, add_user
from tests.conformance.test_official_clients import settings

_calls = count()
PRODUCER, CONSUMER = pb.CLIENT_TYPE_PRODUCER, pb.CLIENT_TYPE_CONSUMER


async def pages(broker: RunningBroker, user: str | None = None, **fields: Any) -> list[list[pb.Client]]:
    headers: Any = ()
    if user is not None:
        method, nonce = "/quarry.admin.v1.ClientService/ListClients", f"{user:-<10}{next(_calls):010}"
        headers = signed_admin_headers(user, SECRET, method, now_ms=broker.clock.wall_ms(), nonce=nonce)
    async with grpc.aio.insecure_channel(broker.admin) as channel:
        stub = ClientServiceStub(channel)
        call = stub.ListClients(pb.ListClientsRequest(**fields), metadata=headers)
        return [list(page.clients) async for page in call]


async def ids(broker: RunningBroker, **fields: Any) -> list[str]:
    return [each.client_id for page in await pages(broker, **fields) for each in page]


async def refused(broker: RunningBroker, user: str | None = None, **fields: Any) -> str:
    """Code and words."""
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await pages(broker, user, **fields)
    return f"{caught.value.code().name} {caught.value.details()}"


def test_producers_and_consumers_are_listed_with_what_they_are(with_broker: WithBroker) -> None:
    async def test(broker: RunningBroker) -> None:
        broker.topic("orders")
        broker.topic("payments")
        async with (
            Client(broker.endpoint, "sender") as sender,
            Client(broker.endpoint, "one") as one,
            Client(broker.endpoint, "two") as two,
        ):
            await sender.declare(producer_settings("orders"))
            await one.declare(settings("billing", "orders", "payments"))
            await two.declare(settings("bots", kind=definition.LITE_PUSH_CONSUMER))
            [[producer, consumer, lite]] = await pages(broker)
            assert (producer.client_id, producer.kind, producer.group) == ("sender", "producer", "")
            assert producer.topics == ["orders"]
            assert abs(consumer.settings_at_ms - broker.clock.wall_ms()) < 10_000
            consumer.settings_at_ms = 0
            assert consumer == pb.Client(
                client_id="one",
                kind="push consumer",
                group="billing",
                topics=["orders", "payments"],
                language="GOLANG",
                version="5.1.4",
                hostname="web-1",
                address="127.0.0.1",
            )
            assert (lite.kind, lite.group) == ("lite push consumer", "bots")
            assert await ids(broker, type=PRODUCER) == ["sender"]
            assert await ids(broker, type=CONSUMER) == ["one", "two"]
            assert await ids(broker, group="billing") == await ids(broker, topic="payments") == ["one"]
            assert await ids(broker, topic="orders") == ["sender", "one"]
            assert await ids(broker, topic="orders", type=PRODUCER) == ["sender"]
            assert await ids(broker, topic="orders", group="bots") == []
            # who may look at one topic is not told of the others
            [[_, of_topic]] = await pages(broker, topic="orders")
            assert of_topic.topics == ["orders"]
            await one.vanish()
            await until(lambda: not broker.broker._clients.consumers_of("billing")[0].streams, "the stream is gone")
            broker.clock.push(30)
            await until(lambda: broker.broker._clients.consumers_of("billing")[0].is_lost, "the client is lost")
            assert await ids(broker, type=CONSUMER) == ["two"]

    with_broker(test)


def test_what_is_wrong_is_named(with_broker: WithBroker) -> None:
    async def test(broker: RunningBroker) -> None:
        broker.group("billing")
        assert await pages(broker, group="billing") == [[]]
        assert await refused(broker, group="nobody") == "NOT_FOUND group: no group nobody"
        assert await refused(broker, topic="nothing") == "NOT_FOUND topic: no topic nothing"
        assert await refused(broker, type=99) == "INVALID_ARGUMENT type: 99 is unknown"
        assert (
            await refused(broker, type=PRODUCER, group="billing")
            == "INVALID_ARGUMENT group: not allowed for producers, which have no group"
        )

    with_broker(test)


@pytest.mark.parametrize(("name", "most"), [("PAGE_NAMES", 4), ("LOOKED_AT_ONCE", 2)])
def test_pages_have_an_end(with_broker: WithBroker, monkeypatch: pytest.MonkeyPatch, name: str, most: int) -> None:
    monkeypatch.setattr(clients_module, name, most)

    async def test(broker: RunningBroker) -> None:
        async with (
            Client(broker.endpoint, "one") as one,
            Client(broker.endpoint, "two") as two,
            Client(broker.endpoint, "three") as three,
        ):
            await one.declare(settings("billing", "orders"))
            await two.declare(settings("billing", "orders"))
            await three.declare(settings("billing", *(f"t{number}" for number in range(9))))
            found = await pages(broker)
        assert [[each.client_id for each in page] for page in found if page] == [["one", "two"], ["three"]]
        assert len(found[-1][0].topics) == 9

    with_broker(test)


def test_who_names_nothing_needs_the_right_to_list_all(with_broker: WithBroker) -> None:
    async def test(broker: RunningBroker) -> None:
        broker.topic("orders")
        broker.group("billing")
        add_user(broker, "shop", "topic:orders get", "group:billing get")
        add_user(broker, "groups", "group:* list")
        add_user(broker, "topics", "topic:* list")
        for fields in ({"topic": "orders"}, {"group": "billing"}, {"topic": "orders", "group": "billing"}):
            assert await pages(broker, "shop", **fields) == [[]]
            assert (await refused(broker, "groups", **fields)).startswith("PERMISSION_DENIED")
        assert await pages(broker, "groups", type=CONSUMER) == await pages(broker, "topics", type=PRODUCER) == [[]]
        denied: tuple[tuple[str, dict[str, Any]], ...] = (
            ("shop", {}),
            ("shop", {"type": PRODUCER}),
            ("groups", {}),
            ("groups", {"type": PRODUCER}),
            ("topics", {"type": CONSUMER}),
        )
        for user, fields in denied:
            assert (await refused(broker, user, **fields)).startswith("PERMISSION_DENIED"), (user, fields)
        assert (await refused(broker)).startswith("UNAUTHENTICATED")

    with_broker(test, security=SECURED)
