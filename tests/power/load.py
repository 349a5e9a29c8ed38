"""Clients on a broker whose end is near, and what they know when it came: the oracle outside of the broker's disk."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import Final

import grpc

from tests.e2e.load.drain import drain
from tests.e2e.load.raw_client import RawClient, Refused, stamped_body

SENDERS: Final = 16
SIZES: Final = (0, 10, 200, 200, 1024, 1024, 5000, 30_000)
GROUP: Final = "readers"
GONE: Final = (grpc.aio.AioRpcError, Refused)


@dataclass(slots=True)
class Ledger:
    """What happened on one topic, by message id."""

    topic: str
    prefix: str
    """Of the message ids."""
    acknowledged_s: dict[str, float] = field(default_factory=dict)
    """Sends the broker has acknowledged, and when that was known here (monotonic clock)."""
    seen_s: dict[str, float] = field(default_factory=dict)
    """Messages a consumer was given, and when."""
    refused: list[str] = field(default_factory=list)


@asynccontextmanager
async def load(endpoint: str, ledger: Ledger, chance: random.Random, *, consume: bool = True) -> AsyncIterator[None]:
    """Senders, and a consumer, at work as long as this is entered, or until the broker refuses or is gone."""
    async with AsyncExitStack() as stack:
        clients = [await stack.enter_async_context(RawClient(endpoint)) for _ in range(3)]
        tasks = [
            asyncio.create_task(_send(clients[n % 2], ledger, n, random.Random(chance.random())))
            for n in range(SENDERS)
        ]
        if consume:
            tasks.append(asyncio.create_task(_consume(clients[2], ledger)))
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()
            outcomes = await asyncio.gather(*tasks, return_exceptions=True)
        for outcome in outcomes:
            if isinstance(outcome, Exception):
                raise outcome


async def _send(client: RawClient, ledger: Ledger, number: int, chance: random.Random) -> None:
    count = 0
    while True:
        count += 1
        message_id = f"{ledger.prefix}-{number}-{count}"
        try:
            await client.send(ledger.topic, message_id, stamped_body(message_id, chance.choice(SIZES)))
        except GONE as error:
            ledger.refused.append(str(error))
            return
        ledger.acknowledged_s[message_id] = time.monotonic()


async def _consume(client: RawClient, ledger: Ledger) -> None:
    try:
        await client.subscribe(GROUP, ledger.topic)
        while True:
            received = await client.receive(GROUP, ledger.topic, polling_s=1.0)
            now_s = time.monotonic()
            ledger.seen_s.update((each.message_id, now_s) for each in received)
            await client.ack(GROUP, ledger.topic, received)
    except GONE as error:
        ledger.refused.append(str(error))


async def everything(endpoint: str, topic: str, *, group: str = "auditors") -> set[str]:
    """The ids of all messages of the topic, each checked from its digest to its last byte."""
    async with RawClient(endpoint) as client:
        await client.subscribe(group, topic)
        return set(await drain(client, group, topic))
