"""Kill the broker at random moments while it takes messages: what it acknowledged must be there afterwards.

An acknowledged send is on disk before its answer, and a message that a crash may take back is never shown
(rmq#8239). A message may come twice. A broker killed while it recovers must get there at the next start (rmq#9587).
"""

from __future__ import annotations

import os
import random
import sys
import time
from pathlib import Path

import pytest

from tests.e2e.broker import PROJECT, Broker, quarry
from tests.e2e.clients import ClientProcess, Clients
from tests.e2e.conftest import StartBroker, StartClients
from tests.e2e.load.raw_client import check_body

ROUNDS = 50
OFFICIAL_CLIENT_EVERY = 10
KILL_WHILE_STARTING = 0.2

pytestmark = pytest.mark.slow


def load_program(name: str, broker: Broker, home: Path, **options: object) -> ClientProcess:
    command = [sys.executable, "-m", f"tests.e2e.load.{name}", "--endpoint", broker.endpoint]
    for option, value in options.items():
        command += [f"--{option}", str(value)]
    return ClientProcess(command, directory=PROJECT, home=home)


def send_until_killed(broker: Broker, topic: str, acked: Path, number: int, chance: random.Random) -> None:
    home = acked.parent / "home"
    seed = chance.randrange(1 << 32)
    sender = load_program("send", broker, home, topic=topic, prefix=f"r{number}", acked=acked, seed=seed)
    try:
        time.sleep(chance.uniform(0.0, 1.2))
        broker.kill()
        assert sender.next_line(30) == {"problems": []}
        sender.close()
    finally:
        sender.kill()


def start_again(broker: Broker, chance: random.Random) -> None:
    """Start, now and then after a start that is killed while it is under way."""
    if chance.random() < KILL_WHILE_STARTING:
        broker.launch()
        time.sleep(chance.uniform(0.1, 1.0))
        broker.kill()
    broker.start()


def delivered_to_load_client(broker: Broker, topic: str, home: Path) -> list[str]:
    drain = load_program("drain", broker, home, topic=topic, group="readers")
    try:
        found: list[str] = drain.next_line(120)["found"]
        drain.close()
    finally:
        drain.kill()
    return found


def delivered_to_official_client(clients: Clients, topic: str, wanted: set[str]) -> set[str]:
    consumer = clients.simple_consumer(topic, group="official-readers", await_s=1)
    found: set[str] = set()
    deadline = time.monotonic() + 120
    while not wanted <= found:
        assert time.monotonic() < deadline, f"{len(wanted - found)} acknowledged messages did not come"
        deliveries = consumer.receive(invisible_s=300)
        for each in deliveries:
            check_body(each.message_id, each.body)
        found |= {each.message_id for each in deliveries}
        consumer.ack(deliveries)
    consumer.close()
    return found


def assert_sound(store: Path) -> None:
    """Every record of the commit log decodes, with all checks made."""
    done = quarry("decode", str(store), "--json", timeout_s=300)
    assert done.returncode == 0, done.stderr[-4000:]


@pytest.mark.timeout(1200)
def test_every_acknowledged_message_survives_kills(
    tmp_path: Path, start_broker: StartBroker, start_clients: StartClients
) -> None:
    seed = int(os.environ.get("E2E_SEED") or random.SystemRandom().randrange(1 << 32))
    print(f"E2E_SEED={seed}")
    chance = random.Random(seed)
    broker = start_broker(settings={"store.durability": "sync"})
    acked: dict[str, Path] = {}
    delivered: dict[str, set[str]] = {}
    for number in range(ROUNDS):
        official = number % OFFICIAL_CLIENT_EVERY == OFFICIAL_CLIENT_EVERY - 1
        topic = f"official-{number}" if official else f"crash-{number % 3}"
        acked.setdefault(topic, tmp_path / f"{topic}.acked")
        delivered.setdefault(topic, set())
        send_until_killed(broker, topic, acked[topic], number, chance)
        start_again(broker, chance)
        wanted = set(acked[topic].read_text().split())
        if official:
            clients = start_clients("python", broker.endpoint)
            delivered[topic] |= delivered_to_official_client(clients, topic, wanted)
        else:
            delivered[topic] |= set(delivered_to_load_client(broker, topic, tmp_path / "home"))
        lost = wanted - delivered[topic]
        assert not lost, f"round {number}: {len(lost)} of {len(wanted)} acknowledged messages lost, {sorted(lost)[:5]}"
    broker.assert_no_stack_trace()
    broker.stop()
    assert_sound(broker.store)
    total = sum(len(path.read_text().split()) for path in acked.values())
    print(f"{ROUNDS} kills, {total} acknowledged messages, all delivered")
    assert total > ROUNDS
