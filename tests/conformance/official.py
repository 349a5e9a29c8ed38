"""Calls of RocketMQ's own admin service, as a dashboard makes them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc.aio

from quarry_mq.protocol.proto.apache.rocketmq.v2.admin_pb2_grpc import AdminStub
from tests.conformance.broker import RunningBroker
from tests.conformance.client import Client

SERVICE = "/apache.rocketmq.v2.Admin/"


@asynccontextmanager
async def official(broker: RunningBroker) -> AsyncIterator[Any]:
    """The service's stub."""
    async with grpc.aio.insecure_channel(broker.admin) as channel:
        yield AdminStub(channel)


async def hand_out(client: Client, group: str, topic: str, *, count: int) -> list[str]:
    """Receive exactly so many messages, which stay in flight; their handles."""
    handles: list[str] = []
    while len(handles) < count:
        received = await client.receive(group, topic, count=count - len(handles), polling_s=1.0)
        assert received.handles, received.status
        handles += received.handles
    return handles
