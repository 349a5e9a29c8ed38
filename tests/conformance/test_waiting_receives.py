"""Point 37: receives that wait, and what may happen until they are woken."""

from __future__ import annotations

import asyncio
import hashlib
import os
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from quarry_mq.protocol.proto.apache.rocketmq.v2 import definition_pb2 as definition
from quarry_mq.server.delivery import Delivered
from tests.conformance.broker import QUICK, RunningBroker, running_broker, until
from tests.conformance.client import Client, message
from tests.conformance.conftest import WithBroker, both_ways

pytestmark = both_ways


def test_point_37_of_the_waiting_receives_of_a_group_one_gets_the_message(with_broker: WithBroker) -> None:
    async def test(broker: RunningBroker) -> None:
        broker.topic("orders")
        async with Client(broker.endpoint) as consumer, Client(broker.endpoint) as producer:
            await one_of_four_gets_the_message(broker, consumer, producer)

    with_broker(test)


async def one_of_four_gets_the_message(broker: RunningBroker, consumer: Client, producer: Client) -> None:
    """However long that takes: the receives that got nothing are ended once it was got."""
    waiting = [
        asyncio.ensure_future(consumer.receive("billing", "orders", polling_s=60, deadline_s=90)) for _ in range(4)
    ]
    await until(lambda: broker.delivery.waiting_polls == 4, "the receives wait")
    [sent] = await producer.sent(message("orders"))
    await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
    assert broker.delivery.waiting_polls == 3
    broker.delivery.end_waiting()
    received = [await each for each in waiting]
    assert sorted(each.ids for each in received) == [[], [], [], [sent]]
    await consumer.ack("billing", "orders", *[handle for each in received for handle in each.handles])


def test_point_37_a_message_that_no_answer_can_be_made_of_is_the_fault_of_its_own_receive(
    with_broker: WithBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not of those that are answered with it, nor of the store."""

    async def test(broker: RunningBroker) -> None:
        broker.topic("orders")
        items = broker.messaging._messages._items

        def items_or_not(topic: str, messages: Sequence[Delivered], digest: definition.DigestType) -> list[bytes]:
            if any(bytes(each.record.body) == b"bad" for each in messages):
                raise ValueError("a year that no calendar has")
            return items(topic, messages, digest)

        monkeypatch.setattr(broker.messaging._messages, "_items", items_or_not)
        async with Client(broker.endpoint) as consumer, Client(broker.endpoint) as producer:
            waiting = []
            for number in range(3):
                each = consumer.receive("billing", "orders", polling_s=60, deadline_s=90, count=1)
                waiting.append(asyncio.ensure_future(each))
                await until(lambda number=number: broker.delivery.waiting_polls == number + 1, "the receive waits")
            await producer.sent(*(message("orders", body) for body in (b"bad", b"good", b"good")))
            received = [await each for each in waiting]
            codes = [each.code for each in received]
            assert sorted(codes) == [definition.OK, definition.OK, definition.INTERNAL_SERVER_ERROR]
            await producer.sent(message("orders"))

    with_broker(test)


def test_point_37_what_fails_beside_a_receive_keeps_no_message_from_it_and_poisons_nothing(
    with_broker: WithBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def test(broker: RunningBroker) -> None:
        def failing(_requests: object) -> None:
            raise ValueError("a fault of the broker's own")

        broker.topic("orders")
        monkeypatch.setattr(broker.delivery.lite, "arrived", failing)
        monkeypatch.setattr(broker.broker._delays, "messages_arrived", failing)
        async with Client(broker.endpoint) as consumer, Client(broker.endpoint) as producer:
            waiting = asyncio.ensure_future(consumer.receive("billing", "orders", polling_s=60, deadline_s=90))
            await until(lambda: broker.delivery.waiting_polls == 1, "the receive waits")
            light = message("orders")
            light.user_properties["INNER_MULTI_DISPATCH"] = "%LMQ%light"
            sent = await producer.sent(light)
            assert (await waiting).ids == sent
            await producer.sent(message("orders"))

    with_broker(test)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("durability", ["sync", "async"])
def test_point_37_one_gets_it_each_of_thousands_of_times_beside_loads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, durability: str, native: bool
) -> None:
    """Beside threads that compute and write to the disk. A wake-up that is lost lets it wait for a minute."""

    async def repeat() -> None:
        store = {**QUICK["store"], "durability": durability}
        async with running_broker(tmp_path, monkeypatch, broker={"native": native}, store=store) as broker:
            broker.topic("orders")
            async with Client(broker.endpoint) as consumer, Client(broker.endpoint) as producer:
                for _ in range(2_000):
                    await asyncio.wait_for(one_of_four_gets_the_message(broker, consumer, producer), 50)

    with loads(tmp_path):
        asyncio.run(repeat())


@contextmanager
def loads(folder: Path) -> Iterator[None]:
    """Threads that keep processor and disk busy until the test ends."""
    over = threading.Event()

    def compute() -> None:
        while not over.is_set():
            hashlib.sha256(b"x" * 4_000_000).digest()

    def write() -> None:
        with (folder / "written").open("wb", buffering=0) as file:
            while not over.is_set():
                file.seek(0)
                file.write(b"x" * 1_000_000)
                os.fsync(file.fileno())

    threads = [threading.Thread(target=each) for each in (compute, compute, write)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        over.set()
        for thread in threads:
            thread.join()
