"""Lite subscriptions of clients that are gone: when they are forgotten."""

from __future__ import annotations

import asyncio

import pytest

from quarry_mq.protocol.proto.apache.rocketmq.v2 import service_pb2 as service
from quarry_mq.server.lite.subscriptions import Asking, Start
from quarry_mq.store.metadata.lite import LiteGroup, LiteSubscriptionTable
from tests.conformance.broker import RunningBroker, until
from tests.conformance.client import resource
from tests.conformance.conftest import WithBroker
from tests.conformance.lite import GROUP, PARENT, LiteClient
from tests.conformance.test_lite import with_topics


@pytest.mark.parametrize("says_goodbye", [True, False])
def test_what_a_client_wanted_is_forgotten_when_it_is_gone(with_broker: WithBroker, says_goodbye: bool) -> None:
    async def test(broker: RunningBroker) -> None:
        with_topics(broker)
        async with LiteClient(broker.endpoint, "gone") as client:
            await client.start()
            await client.add("a")
            if says_goodbye:
                await client.call(
                    "NotifyClientTermination", service.NotifyClientTerminationRequest(group=resource(GROUP))
                )
            else:
                await client.vanish()
                broker.clock.push(400)
            table = LiteSubscriptionTable(broker.store.state_engine)
            await until(lambda: not list(table.all_rows()), "the subscription is forgotten")
            assert not len(broker.delivery.lite._clients)

    with_broker(test)


def test_a_client_that_spoke_while_a_clock_was_years_ahead_is_forgotten_no_sooner_and_no_later(
    with_broker: WithBroker,
) -> None:
    """A member that was ahead for longer than a moment: what it wrote down lies in the future once it is set right."""

    async def test(broker: RunningBroker) -> None:
        with_topics(broker)
        table = LiteSubscriptionTable(broker.store.state_engine)

        def said_ms() -> list[int]:
            return [row.synced_ms for row in table.clients()]

        years_s = 10 * 365 * 86_400
        async with LiteClient(broker.endpoint, "gone") as client:
            await client.start()
            broker.clock.jump(years_s)
            await client.add("a")
            await until(lambda: bool(said_ms()), "it is written down")
            assert said_ms()[0] > broker.clock.wall_ms() - 60_000
            await client.vanish()
            broker.clock.jump(-years_s)
            broker.clock.push(200)
            await until(lambda: said_ms()[0] < broker.clock.wall_ms() + 1, "it counts as said now")
            assert list(table.all_rows())
            broker.clock.push(400)
            await until(lambda: not list(table.all_rows()), "the subscription is forgotten")

    with_broker(test)


def test_a_client_that_comes_back_before_it_is_forgotten_has_what_it_says_then(with_broker: WithBroker) -> None:
    """Clients that are gone are forgotten some at a time: thousands may go at once."""

    async def test(broker: RunningBroker) -> None:
        with_topics(broker)
        async with LiteClient(broker.endpoint, "back") as client:
            await client.start()
            await client.add("a", "b")
            subscriptions, said = broker.messaging.lite_subscriptions, list[Exception | None]()
            subscriptions.client_gone("back")
            asking = Asking(GROUP, LiteGroup(bind_topic=PARENT), "back")
            subscriptions.add(asking, ["b", "c"], Start.STANDING, said.append)
            assert said == [None]
            await asyncio.sleep(0.2)
            table = LiteSubscriptionTable(broker.store.state_engine)
            assert table.of_client(GROUP, "back") == ["b", "c"]
            assert table.clients_of(GROUP, "a") == []

    with_broker(test)
