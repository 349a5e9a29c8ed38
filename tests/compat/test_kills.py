"""One store, used by Quarry and by the real RocketMQ 5.5.0 in turns, each ended by `kill -9` under load.

Whoever comes next has every message that either of them acknowledged, and says so through its own gRPC port. Nobody
stops in good order, so each start is a recovery of what the other left behind.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Event, Thread
from typing import Final

import grpc
import pytest

from bench.harness import CannotRun
from bench.peers.rocketmq import RocketMQ
from quarry_mq.store.settings import Durability
from tests.compat.rocketmq_store import open_in_rocketmq
from tests.e2e.broker import Broker
from tests.e2e.clients import ClientError, Clients
from tests.e2e.conftest import StartBroker, StartClients
from tests.e2e.load.raw_client import RawClient, Refused, check_body, stamped_body
from tests.power.load import Ledger, everything, load

TOPIC: Final = "orders"
QUEUES: Final = 4
SEGMENT_SIZE: Final = 8 << 20
SERVES_TIMEOUT_S: Final = 90.0
RECEIVE_TIMEOUT_S: Final = 240.0
MODES: Final[dict[str, dict[str, object]]] = {
    "file": {},
    "rocksdb": {"storeType": "defaultRocksDB"},
    "double": {
        "rocksdbCQDoubleWriteEnable": "true",
        "combineCQLoadingCQTypes": "default;defaultRocksDB",
        "combineCQUseRocksdbForLmq": "true",  # without it 5.5.0 does not start in this mode, and does not say why
        "enableLmq": "true",
        "enableMultiDispatch": "true",
    },
}
"""How RocketMQ keeps its consume queues."""
GROUPS: Final = [f"auditors-{turn}" for turn in range(1, 6)]

pytestmark = pytest.mark.slow


class Store:
    """The store, who works on it, and what was acknowledged by anybody."""

    def __init__(self, tmp_path: Path, mode: str, start_broker: StartBroker, start_clients: StartClients) -> None:
        self.path = tmp_path / "store"
        self.acknowledged: set[str] = set()
        self._scratch = tmp_path
        self._mode = mode
        self._start_broker = start_broker
        self._start_clients = start_clients
        self._turns = 0
        seed = int(os.environ.get("COMPAT_SEED") or random.SystemRandom().randrange(1 << 32))
        print(f"COMPAT_SEED={seed}")
        self._chance = random.Random(seed)

    def quarry_works(self) -> None:
        """Recover, show everything, take messages, be killed."""
        self._turns += 1
        broker: Broker = self._start_broker(
            store=self.path, settings={"store.segment_size": SEGMENT_SIZE, "topics.default_queues": QUEUES}
        )
        if self.acknowledged:
            found = asyncio.run(everything(broker.endpoint, TOPIC, group=f"auditors-{self._turns}"))
            self._assert_nothing_lost(found, "Quarry")
        self._send("quarry", broker.endpoint)
        broker.kill()

    def rocketmq_works(self) -> None:
        """Recover, show everything, take messages, be killed."""
        self._turns += 1
        with kept_in_memory(self.path / "commitlog"), self._rocketmq() as rocketmq:
            asyncio.run(until_it_serves(rocketmq.endpoint))
            if self.acknowledged:
                clients = self._start_clients("python", rocketmq.endpoint)
                self._assert_nothing_lost(
                    receive_all(clients, f"auditors-{self._turns}", self.acknowledged), "RocketMQ"
                )
                clients.close()
            self._send("rocketmq", rocketmq.endpoint)

    @contextmanager
    def _rocketmq(self) -> Iterator[RocketMQ]:
        directory = self._scratch / f"rocketmq-{self._turns}"
        separate = (self.path / "consumequeue_rocksdb" / "CURRENT").exists()
        properties = {
            **MODES[self._mode],
            "mappedFileSizeCommitLog": SEGMENT_SIZE,
            # its queue files are made anew of as many of the last segments, ten of 8 MiB by default
            "commitLogRecoverMaxNum": 1_000,
            "useSeparateStorePathForRocksdbCQ": str(separate).lower(),
        }
        try:
            rocketmq = RocketMQ(
                directory, Durability.ASYNC, topic=TOPIC, queues=QUEUES, groups=GROUPS, store=self.path,
                properties=properties,
            )  # fmt: skip
        except CannotRun as error:
            pytest.skip(str(error))
        try:
            rocketmq.start()
            yield rocketmq
        finally:
            rocketmq.close()

    def _send(self, who: str, endpoint: str) -> None:
        ledger = Ledger(TOPIC, prefix=f"{who}-{self._turns}")

        async def work() -> None:
            async with load(endpoint, ledger, self._chance, consume=False):
                await asyncio.sleep(self._chance.uniform(0.5, 1.5))

        asyncio.run(work())
        assert ledger.acknowledged_s, ledger.refused
        self.acknowledged |= ledger.acknowledged_s.keys()

    def _assert_nothing_lost(self, found: set[str], who: str) -> None:
        lost = self.acknowledged - found
        assert not lost, f"{who} does not find {len(lost)} of {len(self.acknowledged)}: {sorted(lost)[:5]}"
        print(json.dumps({"turn": self._turns, "who": who, "mode": self._mode, "acknowledged": len(self.acknowledged)}))


@contextmanager
def kept_in_memory(directory: Path) -> Iterator[None]:
    """Read its files now and again.

    RocketMQ lets a new group begin with the last message where the first one is not in the page cache, and there are
    machines that take pages out of it while most of their memory is free.
    """
    is_over = Event()

    def read() -> None:
        for path in directory.glob("*"):
            with suppress(FileNotFoundError):  # a recovery removes segments that nothing was written to
                path.read_bytes()

    def read_again() -> None:
        while not is_over.wait(1.0):
            read()

    read()
    reading = Thread(target=read_again)
    reading.start()
    try:
        yield
    finally:
        is_over.set()
        reading.join()


async def until_it_serves(endpoint: str) -> None:
    """RocketMQ listens before its broker has told the name server of itself."""
    deadline = time.monotonic() + SERVES_TIMEOUT_S
    async with RawClient(endpoint) as client:
        while True:
            try:
                await client.send(TOPIC, "first", stamped_body("first", 10))
            except (grpc.aio.AioRpcError, Refused):
                if time.monotonic() > deadline:
                    raise
                await asyncio.sleep(0.2)
            else:
                return


def receive_all(clients: Clients, group: str, wanted: set[str]) -> set[str]:
    """What official consumers get until they have all that is wanted, or for a long time.

    A proxy that has just begun to serve may not have the route or the settings of a client yet.
    """
    found: set[str] = set()
    deadline = time.monotonic() + RECEIVE_TIMEOUT_S
    while not wanted <= found and time.monotonic() < deadline:
        consumer = clients.simple_consumer(TOPIC, group=group, await_s=2)
        with suppress(ClientError):
            while not wanted <= found and time.monotonic() < deadline:
                deliveries = consumer.receive(invisible_s=300)
                for each in deliveries:
                    check_body(each.message_id, each.body)
                found |= {each.message_id for each in deliveries}
                consumer.ack(deliveries)
        consumer.close()
    return found


@pytest.fixture(params=sorted(MODES))
def store(
    request: pytest.FixtureRequest, tmp_path: Path, start_broker: StartBroker, start_clients: StartClients
) -> Store:
    return Store(tmp_path, request.param, start_broker, start_clients)


@pytest.mark.timeout(900)
def test_a_store_that_quarry_began(store: Store, tmp_path: Path) -> None:
    store.quarry_works()
    store.quarry_works()
    dump = open_in_rocketmq(store.path, tmp_path)
    readable = {each["properties"]["UNIQ_KEY"] for each in dump.messages.values() if each is not None}
    assert store.acknowledged <= readable, "RocketMQ's store code on what kill -9 left"
    store.rocketmq_works()
    store.quarry_works()


@pytest.mark.timeout(900)
def test_a_store_that_rocketmq_began(store: Store) -> None:
    store.rocketmq_works()
    store.quarry_works()
    store.quarry_works()
    store.rocketmq_works()
