"""`kill -9` again and again while official clients of two languages send, receive and acknowledge, and go on doing so.

The clients live through all of it, as applications do. Their threads here are the oracle: every acknowledged send is
delivered at least once, and what a consumer has acknowledged is never delivered by a later receive. The broker starts
with `sync` or `async` at random: the death of the process must cost nothing in either.
"""

from __future__ import annotations

import json
import os
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Sized
from contextlib import suppress
from functools import partial
from typing import Final

import pytest

from store.settings import Durability
from tests.e2e.broker import Broker, quarry, until
from tests.e2e.clients import ClientError, ClientProcess, Outgoing, Producer, SimpleConsumer
from tests.e2e.conftest import StartBroker, StartClients

ROUNDS: Final = int(os.environ.get("E2E_KILLS", "200"))
LANGUAGES: Final = ("python", "node")
TOPIC: Final = "orders"
GROUP: Final = "workers"
INVISIBLE_S: Final = 10
KILL_WHILE_STARTING: Final = 0.2
JOIN_TIMEOUT_S: Final = 150.0
PAUSE_S: Final = 0.1
"""After an error, as an application would: a broker that is down refuses thousands of calls a second."""

pytestmark = pytest.mark.slow


class Ledger:
    """What the clients know. A message is named by its body."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.acknowledged: set[str] = set()
        self.attempted: set[str] = set()
        self.delivered: Counter[str] = Counter()
        self.consumed_s: dict[str, float] = {}
        """When the acknowledgement of a delivery was answered."""
        self.refused: Counter[str] = Counter()
        self.faults: list[str] = []

    def note_attempt(self, bodies: list[str]) -> None:
        with self._lock:
            self.attempted.update(bodies)

    def note_sent(self, bodies: list[str]) -> None:
        with self._lock:
            self.acknowledged.update(bodies)

    def note_delivered(self, bodies: list[str], asked_s: float) -> None:
        with self._lock:
            self.delivered.update(bodies)
            for body in bodies:
                if body not in self.attempted:
                    self.faults.append(f"nobody sent {body!r}")
                if self.consumed_s.get(body, asked_s) < asked_s:
                    self.faults.append(f"{body} came again {asked_s - self.consumed_s[body]:.1f} s after its end")

    def note_consumed(self, bodies: list[str]) -> None:
        now_s = time.monotonic()
        with self._lock:
            for body in bodies:
                self.consumed_s.setdefault(body, now_s)

    def note_refused(self, what: str) -> None:
        with self._lock:
            self.refused[what] += 1

    @property
    def undelivered(self) -> set[str]:
        with self._lock:
            return self.acknowledged - self.delivered.keys()


class Workers:
    """Threads that each drive one client until they are told to stop."""

    def __init__(self) -> None:
        self._stops: dict[str, threading.Event] = {"producer": threading.Event(), "consumer": threading.Event()}
        self._threads: dict[str, list[threading.Thread]] = {"producer": [], "consumer": []}

    def start(self, kind: str, work: Callable[[threading.Event], None]) -> None:
        thread = threading.Thread(target=work, args=[self._stops[kind]], daemon=True)
        self._threads[kind].append(thread)
        thread.start()

    def stop(self, kind: str) -> None:
        self._stops[kind].set()
        for thread in self._threads[kind]:
            thread.join(JOIN_TIMEOUT_S)
            assert not thread.is_alive(), f"a {kind} does not come back"


def produce(producer: Producer, name: str, ledger: Ledger, stop: threading.Event) -> None:
    count = 0
    while not stop.is_set():
        bodies = [f"{name}-{count + n}" for n in range(5)]
        count += len(bodies)
        ledger.note_attempt(bodies)
        messages = [Outgoing(TOPIC, body.encode()).line() for body in bodies]
        try:
            receipts = producer.request("send", messages=messages, timeout_s=JOIN_TIMEOUT_S)["receipts"]
        except ClientError as error:
            ledger.note_refused(f"{name}: {error.kind}")
            stop.wait(PAUSE_S)
            continue
        ledger.note_sent([body for body, receipt in zip(bodies, receipts, strict=True) if "error" not in receipt])
        for receipt in receipts:
            if "error" in receipt:
                ledger.note_refused(f"{name}: {receipt['error']['type']}")
                stop.wait(PAUSE_S)


def consume(consumer: SimpleConsumer, name: str, ledger: Ledger, stop: threading.Event) -> None:
    while not stop.is_set():
        asked_s = time.monotonic()
        try:
            deliveries = consumer.receive(invisible_s=INVISIBLE_S)
            ledger.note_delivered([each.body.decode() for each in deliveries], asked_s)
            answer = consumer.request("ack", deliveries=[each.number for each in deliveries], timeout_s=JOIN_TIMEOUT_S)
        except ClientError as error:
            ledger.note_refused(f"{name}: {error.kind}")
            stop.wait(PAUSE_S)
            continue
        done = [each for each, result in zip(deliveries, answer["results"], strict=True) if "error" not in result]
        ledger.note_consumed([each.body.decode() for each in done])


def has_grown(these: Sized, before: int) -> bool:
    return len(these) > before


def kill_again_and_again(broker: Broker, ledger: Ledger, chance: random.Random) -> Counter[str]:
    """Each round begins when a send was acknowledged since the last start."""
    starts: Counter[str] = Counter()
    for _ in range(ROUNDS):
        sent, consumed = len(ledger.acknowledged), len(ledger.consumed_s)
        until(partial(has_grown, ledger.acknowledged, sent), "a send is acknowledged")
        if chance.random() < 0.3:
            until(partial(has_grown, ledger.consumed_s, consumed), "a delivery is acknowledged")
        time.sleep(chance.uniform(0.0, 0.7))
        broker.kill()
        while chance.random() < KILL_WHILE_STARTING:
            starts["killed while starting"] += 1
            broker.launch()
            time.sleep(chance.uniform(0.1, 1.0))
            broker.kill()
        durability = chance.choice(list(Durability)).value
        starts[durability] += 1
        broker.start(settings={"store.durability": durability})
    return starts


@pytest.mark.timeout(1800)
def test_nothing_is_lost_and_nothing_consumed_comes_back(
    start_broker: StartBroker, start_clients: StartClients
) -> None:
    seed = int(os.environ.get("E2E_SEED") or random.SystemRandom().randrange(1 << 32))
    print(f"E2E_SEED={seed}")
    broker = start_broker(settings={"store.queue_flush_size": "1MiB"})
    ledger, workers = Ledger(), Workers()
    processes: list[ClientProcess] = []
    for language in LANGUAGES:
        clients = start_clients(language, broker.endpoint)
        for number in range(2):
            name = f"{language}-{number}"
            producer, consumer = clients.producer(TOPIC), clients.simple_consumer(TOPIC, group=GROUP, await_s=2)
            processes += [producer, consumer]
            workers.start("producer", partial(produce, producer, name, ledger))
            workers.start("consumer", partial(consume, consumer, name, ledger))
    starts = kill_again_and_again(broker, ledger, random.Random(seed))
    workers.stop("producer")
    with suppress(AssertionError):
        until(lambda: not ledger.undelivered, "all is delivered")
    workers.stop("consumer")
    for process in processes:
        process.kill()  # the shutdown of a client that is about to connect again may fail
    figures = {
        "kills": ROUNDS,
        "starts": starts,
        "acknowledged": len(ledger.acknowledged),
        "delivered": len(ledger.delivered),
        "consumed": len(ledger.consumed_s),
        "delivered_twice": sum(count > 1 for count in ledger.delivered.values()),
        "refused": ledger.refused,
    }
    print(json.dumps(figures))
    assert not ledger.undelivered, f"{len(ledger.undelivered)} were never delivered: {sorted(ledger.undelivered)[:5]}"
    assert not ledger.faults, f"{len(ledger.faults)} faults: {ledger.faults[:5]}"
    broker.assert_no_stack_trace()
    broker.stop()
    done = quarry("verify", str(broker.store), timeout_s=300)
    assert done.returncode == 0, done.stdout + done.stderr
