"""A broker or Kubernetes that is away delays the operator, and neither ends nor confuses it."""

from __future__ import annotations

import asyncio

import pytest

from quarry_mq.cli.demo import free_ports
from quarry_mq.cli.operator.resources import READY, TOPIC
from tests.e2e.broker import Broker
from tests.operator.bench import run
from tests.operator.conftest import OpenBench
from tests.operator.fake_api import FakeApi


def test_without_a_broker_nothing_is_known(open_bench: OpenBench) -> None:
    async def scenario() -> None:
        (port,) = free_ports(1)
        async with open_bench(f"127.0.0.1:{port}") as bench, bench.operating():
            await bench.declare(TOPIC, "orders", {})
            await bench.not_ready(TOPIC, "orders", "BrokerUnavailable")
            found = await bench.find(TOPIC, "orders")
            assert found is not None
            assert found.condition(READY)["status"] == "Unknown"
            await bench.looked(TOPIC, 2)
            await bench.told("orders")

    run(scenario())


def test_a_broker_that_comes_back_gets_what_is_declared(open_bench: OpenBench, broker: Broker, name: str) -> None:
    async def scenario() -> None:
        async with open_bench() as bench, bench.operating():
            await bench.declare(TOPIC, name, {})
            await bench.ready(TOPIC, name)
            broker.stop()
            await bench.not_ready(TOPIC, name, "BrokerUnavailable")
            await bench.declare(TOPIC, f"{name}-later", {})
            await bench.not_ready(TOPIC, f"{name}-later", "BrokerUnavailable")
            await asyncio.to_thread(broker.start)
            await bench.ready(TOPIC, name)
            await bench.ready(TOPIC, f"{name}-later")

    run(scenario())


@pytest.mark.parametrize("open_bench", ["fake"], indirect=True)
def test_kubernetes_may_be_away_for_a_while(open_bench: OpenBench, fake_api: FakeApi, name: str) -> None:
    async def scenario() -> None:
        async with open_bench() as bench, bench.operating():
            await bench.declare(TOPIC, name, {"queues": 2})
            await bench.ready(TOPIC, name)
            fake_api.is_down = True
            await bench.admin.delete_topic(name)
            await asyncio.sleep(1)
            fake_api.is_down = False
            await bench.change(TOPIC, name, {"queues": 3})
            await bench.ready(TOPIC, name)
            assert (await bench.admin.topic(name)).write_queues == 3

    run(scenario())
