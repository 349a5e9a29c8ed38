"""A fleet of remoting clients moves from Apache RocketMQ 5.5.0 to Quarry, and then client by client to gRPC."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from pathlib import Path
from typing import Final

import pytest

from bench.peers.rocketmq import RocketMQ
from quarry_mq.protocol.remoting.codes import RequestCode
from quarry_mq.store.settings import Durability
from tests.e2e.broker import quarry, until
from tests.e2e.clients import Outgoing
from tests.e2e.conftest import StartBroker, StartClients
from tests.remoting.client import ask
from tests.remoting.test_java_clients import played, remoting_classes

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

TOPIC: Final = "orders"
QUEUES: Final = 4
SEGMENT_SIZE: Final = 16 * 1024 * 1024


class Fleet:
    """Clients of RocketMQ 4 with one name server address."""

    def __init__(self, names: str, class_path: str) -> None:
        self.names = names
        self._class_path = class_path

    def send(self, numbers: range) -> None:
        options = [f"-Dfirst={numbers.start}", f"-Dlast={numbers.stop}"]
        played(self.names, self._class_path, TOPIC, "fleet-send", options=options)

    def receive(self, count: int, *, repeated: Collection[int] = ()) -> list[int]:
        """Return the numbers that the group gets, at least so many. In each queue they ascend.

        Numbers in `repeated` may come more than once: the producer does not know whether its first send was stored.
        """
        text = played(self.names, self._class_path, TOPIC, "fleet-receive", options=[f"-Dcount={count}"])
        rows = [line.split()[1:] for line in text.splitlines() if line.startswith("got ")]
        for queue in range(QUEUES):
            assert_ascends(int(number) for own, number in rows if int(own) == queue and int(number) not in repeated)
        return [int(number) for _, number in rows]


def knows_topic(names: str) -> bool:
    """Return whether the name server knows a broker with the topic; brokers register some time after they listen."""
    try:
        ask(names, (RequestCode.GET_ROUTE_BY_TOPIC, {"topic": TOPIC}, b""))
    except AssertionError:
        return False
    return True


def assert_ascends(numbers: Iterable[int]) -> None:
    found = list(numbers)
    assert found == sorted(set(found))


def test_old_clients_move_with_their_store_and_are_replaced_later(
    start_broker: StartBroker,
    start_clients: StartClients,
    tmp_path: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    class_path = remoting_classes("4.9.8", tmp_path_factory)
    store = tmp_path / "store"
    properties = {"mappedFileSizeCommitLog": SEGMENT_SIZE}
    rocketmq = RocketMQ(
        tmp_path / "rocketmq", Durability.SYNC, topic=TOPIC, queues=QUEUES, groups=["fleet"], store=store,
        properties=properties,
    )  # fmt: skip
    fleet = Fleet(rocketmq.names, class_path)
    try:
        rocketmq.start()
        until(lambda: knows_topic(rocketmq.names), "the broker has registered")
        fleet.send(range(100))
        before = fleet.receive(100)
        fleet.send(range(100, 150))
    finally:
        rocketmq.stop()

    # the old name server address is Quarry's now: no client is changed
    settings = {
        "store.segment_size": SEGMENT_SIZE,
        "consume_queue.mode": "file",
        "remoting.names_listen": fleet.names,
    }
    broker = start_broker(store=store, settings=settings)
    fleet.send(range(150, 200))
    moved = fleet.receive(100)
    assert sorted(before) == list(range(100))
    assert sorted(moved) == list(range(100, 200))

    # a consumer by gRPC takes the group over, while a producer by remoting goes on
    fleet.send(range(200, 300))
    clients = start_clients("python", broker.endpoint)
    consumer = clients.simple_consumer(TOPIC, group="fleet", await_s=2)
    deliveries = consumer.receive_until(100)
    consumer.ack(deliveries)
    assert sorted(int(each.body) for each in deliveries) == list(range(200, 300))

    # and back again: what a producer by gRPC sends comes to a consumer by remoting
    clients.producer(TOPIC).send([Outgoing(TOPIC, b"%d" % number) for number in range(300, 340)])
    assert sorted(fleet.receive(40)) == list(range(300, 340))
    clients.close()
    broker.stop()
    assert quarry("verify", str(store)).returncode == 0
