"""The way back: an unmodified slave of Apache RocketMQ 5.5.0 follows a Quarry under load, and takes over as master."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Final
from urllib.request import urlopen

import pytest

from bench.peers import rocketmq as ports
from bench.peers.rocketmq import STOP_TIMEOUT_S
from quarry_mq.protocol.remoting.codes import RequestCode, ResponseCode
from quarry_mq.store.settings import Durability
from tests.e2e.broker import Broker, quarry, until
from tests.e2e.conftest import StartBroker
from tests.following.test_live_rocketmq import DELAYED, SEGMENT_SIZE, TOPIC, Producer, WithoutProxy
from tests.remoting.client import RemotingClient, ask, prepare, records_in, send_fields
from tests.remoting.test_fleet import QUEUES, Fleet, knows_topic
from tests.remoting.test_java_clients import remoting_classes

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

TIMED: Final = "timed"
LARGE: Final = "large"
LARGE_SIZE: Final = 500_000
TIMERS_S: Final = (1, 2, 5, 20, 40, 60, 61, 75, 90, 120)
"""Delays in seconds: some timers are delivered by Quarry, some by RocketMQ, and some about when it takes over."""


class Returning(WithoutProxy):
    """A broker of RocketMQ 5.5.0 that begins as the slave of a Quarry."""

    def __init__(self, directory: Path, names: str) -> None:
        properties = {
            "brokerRole": "SLAVE",
            "brokerId": 1,
            "namesrvAddr": names,
            "mappedFileSizeCommitLog": SEGMENT_SIZE,
            "mappedFileSizeTimerLog": 1024 * 1024,
        }
        super().__init__(directory, Durability.ASYNC, topic=TOPIC, queues=1, groups=[], properties=properties)
        self._front = self.broker_port
        self.store = directory / "store"

    def start_name_server(self) -> None:
        """Start the name server that the programs have once the broker is a master."""
        self._launch(self.name_server_command())
        self._wait_for(self._names)

    def end_broker(self, *, kills: bool) -> None:
        process = self._processes.pop()
        if kills:
            process.kill()
        else:
            process.terminate()
        process.wait(STOP_TIMEOUT_S)

    def promote(self) -> None:
        """Start the broker as a master."""
        with (self._configuration / "broker.conf").open("a") as file:
            file.write(f"brokerRole=ASYNC_MASTER\nbrokerId=0\nnamesrvAddr={self.names}\n")
        self.start_broker()


@pytest.fixture
def served(start_broker: StartBroker) -> tuple[Broker, str, str]:
    """A Quarry that serves slaves, and the addresses of its remoting port and of its name server's."""
    first, *_ = ports._ports()
    fast, names, own, ha = (f"127.0.0.1:{first + place}" for place in (0, 1, 2, 3))
    settings = {
        "store.segment_size": SEGMENT_SIZE,
        "network.rocketmq_ha": ha,
        "network.stop_grace_ms": 10_000,
        "remoting.listen": own,
        "remoting.names_listen": names,
        "remoting.fast_listen": fast,
    }
    return start_broker(settings=settings), own, names


@pytest.fixture
def slave(served: tuple[Broker, str, str], tmp_path: Path) -> Iterator[Returning]:
    made = Returning(tmp_path / "rocketmq", served[2])
    try:
        made.start_name_server()
        yield made
    finally:
        made.close()


def metric(broker: Broker, name: str) -> float:
    with urlopen(f"http://{broker.http}/metrics") as answer:
        lines = answer.read().decode().splitlines()
    return float(next(line.split()[1] for line in lines if line.startswith(f"{name} ")))


def until_caught_up(broker: Broker) -> None:
    until(lambda: metric(broker, "quarry_slaves") == 1, "the slave is attached", timeout_s=60)
    until(lambda: metric(broker, "quarry_slave_lag_bytes") < SEGMENT_SIZE, "it is near", timeout_s=60)


def bodies(address: str, topic: str) -> list[bytes]:
    """Return the bodies of all messages of a topic."""
    return asyncio.run(_bodies(address, topic))


async def _bodies(address: str, topic: str) -> list[bytes]:
    found: list[bytes] = []
    client = await RemotingClient.connect(address)
    for queue in range(QUEUES):
        offset = 0
        while (answer := await client.pull(topic, offset, queue, group="look")).code == ResponseCode.SUCCESS:
            found += [bytes(each.body) for each in records_in(answer.body)]
            offset = int(answer.fields["nextBeginOffset"])
    await client.close()
    return found


def copies(slave: Returning, producer: Producer) -> tuple[Counter[int], Counter[int]]:
    """Wait until each timer and each delayed message was delivered; return how often each was."""
    address = f"127.0.0.1:{slave.broker_port}"
    counted: list[Counter[int]] = []
    for topic, wanted in ((TIMED, set(TIMERS_S)), (DELAYED, set(producer.numbers("delayed")))):

        def have_all(topic: str = topic, wanted: set[int] = wanted) -> bool:
            return {int(body) for body in bodies(address, topic)} >= wanted

        until(have_all, f"every message of {topic} has come", timeout_s=180)
        counted.append(Counter(int(body) for body in bodies(address, topic)))
    timed, delayed = counted
    return timed, delayed


def assert_same_log(store: Path, other: Path) -> int:
    """Compare all segments byte for byte; return how many bytes these are."""
    files = sorted(path.name for path in (store / "commitlog").iterdir())
    for name in files:
        assert (store / "commitlog" / name).read_bytes() == (other / "commitlog" / name).read_bytes(), name
    return len(files) * SEGMENT_SIZE


@pytest.fixture
def producer(served: tuple[Broker, str, str], classes: str, tmp_path: Path) -> Iterator[Producer]:
    """A producer on the Quarry, whose topics were made."""
    _, own, names = served
    prepare(own, [TOPIC, DELAYED, TIMED, LARGE], ["fleet"], queues=QUEUES)
    made = Producer(names, classes, tmp_path)
    yield made
    made.close()


@pytest.fixture
def classes(tmp_path_factory: pytest.TempPathFactory) -> str:
    return remoting_classes("4.9.8", tmp_path_factory)


def send_large(address: str, count: int) -> None:
    ask(address, *((RequestCode.SEND_MESSAGE_V2, send_fields(LARGE), bytes(LARGE_SIZE)) for _ in range(count)))


def follow_under_load(broker: Broker, own: str, slave: Returning, producer: Producer) -> None:
    """Let the slave follow from the middle of the load on, be killed, and follow again until it has all metadata."""
    producer.until_sent(1_000)
    slave.start_broker()
    until_caught_up(broker)
    timers = [
        (send_fields(TIMED, at % QUEUES, TIMER_DELAY_SEC=str(delay_s)), b"%d" % delay_s)
        for at, delay_s in enumerate(TIMERS_S)
    ]
    ask(own, *((RequestCode.SEND_MESSAGE_V2, fields, body) for fields, body in timers))
    send_large(own, 100)
    slave.end_broker(kills=True)
    until(lambda: metric(broker, "quarry_slaves") == 0, "the slave is gone", timeout_s=60)
    send_large(own, 50)
    slave.start_broker()
    until_caught_up(broker)
    delays = slave.store / "config" / "delayOffset.json"
    delays.unlink(missing_ok=True)
    until(delays.exists, "the slave has asked for all metadata", timeout_s=120)


def take_over(broker: Broker, slave: Returning) -> float:
    """Let the slave become the master; return the seconds without one."""
    begin_s = time.monotonic()
    broker.stop()
    stopped_s = time.monotonic() - begin_s
    slave.end_broker(kills=False)
    slave_stopped_s = time.monotonic() - begin_s
    compared = assert_same_log(broker.store, slave.store)
    exported = quarry("export-metadata", str(broker.store), "--output", str(slave.store / "config"))
    assert exported.returncode == 0, exported.stderr
    slave.promote()
    until(lambda: knows_topic(slave.names), "the new master has registered", timeout_s=60)
    print(
        f"\n{exported.stdout}{compared} bytes are equal; Quarry stopped in {stopped_s:.1f} s, the slave after "
        f"{slave_stopped_s:.1f} s"
    )
    return time.monotonic() - begin_s


def test_a_slave_of_rocketmq_follows_and_takes_over(
    served: tuple[Broker, str, str], slave: Returning, producer: Producer, classes: str
) -> None:
    broker, own, names = served
    follow_under_load(broker, own, slave, producer)
    received = Fleet(names, classes).receive(200, repeated=set(producer.numbers("failed")))
    producer.until_sent(500)
    away_s = take_over(broker, slave)
    producer.move_to(slave.names)
    producer.until_sent(300)
    producer.end()

    print(f"RocketMQ served after {away_s:.1f} s; sends failed for {producer.numbers('again')[-1]} ms")
    sent = producer.numbers("sent")
    repeated = set(producer.numbers("failed"))
    rest = Fleet(slave.names, classes).receive(len(sent) - len(received), repeated=repeated)
    assert set(received) | set(rest) == set(sent)
    assert set(received) & set(rest) <= repeated
    timed, delayed = copies(slave, producer)
    assert set(timed.values()) == {1}
    assert {number for number, times in delayed.items() if times > 1} <= repeated


def test_a_slave_that_is_promoted_after_a_crash_may_repeat_and_loses_nothing(
    served: tuple[Broker, str, str], slave: Returning, producer: Producer, classes: str
) -> None:
    """The slave is promoted without an export: it has the positions and the progress that it copied last."""
    broker, own, names = served
    follow_under_load(broker, own, slave, producer)
    received = Fleet(names, classes).receive(200, repeated=set(producer.numbers("failed")))
    producer.end()
    until(lambda: metric(broker, "quarry_slave_lag_bytes") == 0, "the slave has all", timeout_s=60)
    broker.kill()
    slave.end_broker(kills=True)
    slave.promote()
    until(lambda: knows_topic(slave.names), "the new master has registered", timeout_s=60)
    sent = producer.numbers("sent")
    rest: list[int] = []
    while missing := set(sent).difference(received, rest):
        rest += Fleet(slave.names, classes).receive(len(missing), repeated=set(sent))
    timed, delayed = copies(slave, producer)
    twice = [number for number, times in (timed + delayed).items() if times > 1]
    print(f"{len(set(received) & set(rest))} messages came twice, and {len(twice)} delayed ones")
