"""Strangers on the admin port of a broker that asks who calls, and users who hold more calls open than they may."""

from __future__ import annotations

from contextlib import AsyncExitStack
from typing import Any

import grpc
import grpc.aio

from quarry_mq.protocol.proto.quarry.admin.v1 import admin_pb2, browsing_pb2
from quarry_mq.protocol.proto.quarry.admin.v1.browsing_pb2_grpc import BrowsingServiceStub
from quarry_mq.store.security.model import UserKind
from tests.admin.test_slots import CREATE_TOPIC, WATCH, stranger
from tests.conformance.broker import RunningBroker
from tests.conformance.conftest import WithBroker
from tests.conformance.secured import SECURED, add_user
from tests.conformance.test_admin_access import ADMIN, Operator

TAIL = "/quarry.admin.v1.BrowsingService/TailMessages"


def test_users_have_places_that_strangers_do_not_take(with_broker: WithBroker) -> None:
    async def test(broker: RunningBroker) -> None:
        add_user(broker, "ops", kind=UserKind.SUPER)
        ops = Operator(broker, "ops")
        async with AsyncExitStack() as open_calls:
            for path, says in ((WATCH, b""), (WATCH, None), (CREATE_TOPIC, None), (TAIL, b"")):
                for _ in range(5):
                    await open_calls.enter_async_context(stranger(broker.admin, path, 100, says=says))
            for number in range(20):
                request = admin_pb2.CreateTopicRequest(name=f"orders-{number}")
                assert await ops.code(ADMIN + "CreateTopic", request) == "OK"

    with_broker(test, security=SECURED)


def test_one_user_leaves_half_of_the_places_to_others(with_broker: WithBroker) -> None:
    async def test(broker: RunningBroker) -> None:
        for user in ("many", "one"):
            add_user(broker, user, "topic:* get create")
        broker.topic("orders")
        many, one = Operator(broker, "many"), Operator(broker, "one")
        async with grpc.aio.insecure_channel(broker.admin) as channel:
            stub: Any = BrowsingServiceStub(channel)
            request = browsing_pb2.TailMessagesRequest(topic="orders")
            tails = []
            for _ in range(2):
                tails.append(stub.TailMessages(request, metadata=many.headers(TAIL)))
                # an address has one slot here until its caller is known: a second call at once ends the first
                await tails[-1].initial_metadata()
                assert not tails[-1].done()
            create = admin_pb2.CreateTopicRequest
            refused = await many.code(ADMIN + "CreateTopic", create(name="refused"))
            assert refused == "RESOURCE_EXHAUSTED: 2 calls of user many are already open"
            assert broker.store.topics.get("refused") is None
            assert await one.code(ADMIN + "CreateTopic", create(name="payments")) == "OK"
            for tail in tails:
                tail.cancel()

    with_broker(test, security=SECURED, limits={"admin_calls": 4})
