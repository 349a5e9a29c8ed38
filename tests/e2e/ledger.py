"""Records of official clients about their messages while a broker dies again and again, and the threads that drive
them.

The clients live through all of it, as applications do.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final, NamedTuple

from tests.e2e.clients import ClientError, ClientProcess, Clients, Delivery, Outgoing, Producer, SimpleConsumer

ANSWER_TIMEOUT_S: Final = 150.0
"""How long a client may be busy with one call: it tries again by itself while the broker is down."""
ABANDON_TIMEOUT_S: Final = 10.0
INVISIBLE_S: Final = 10
REPEATED_AFTER_S: Final = 3.0
"""How long the official clients wait for an answer before they send the same message again."""
PAUSE_S: Final = 0.1
"""After an error, as an application would: a broker that is down refuses thousands of calls a second."""


class Call(NamedTuple):
    """One call of a client, in seconds of the monotonic clock."""

    who: str
    began_s: float
    ended_s: float
    refusal: str | None = None
    """The kind of error that the client library raised."""
    text: str = ""
    """Its words."""


class Ledger:
    """A message is named by its body."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.acknowledged: set[str] = set()
        self.attempted: set[str] = set()
        self.delivered: Counter[str] = Counter()
        self.in_order: dict[str, list[str]] = {}
        """Per consumer what it got in a first attempt, in the order in which it came."""
        self.consumed_s: dict[str, float] = {}
        """When the acknowledgement of a delivery was answered."""
        self.sends: list[Call] = []
        """Those that were acknowledged in full."""
        self.refusals: list[Call] = []
        self._send_s: dict[str, float] = {}
        """How long the call took with which each acknowledged message was sent."""
        self._noted: list[str] = []
        """Other faults, in words."""
        self._again: list[tuple[str, float]] = []
        """Messages that came again after the end of their consumption, and how many seconds after it."""

    def note_attempt(self, bodies: list[str]) -> None:
        with self._lock:
            self.attempted.update(bodies)

    def note_sent(self, bodies: list[str], call: Call, *, in_full: bool) -> None:
        with self._lock:
            self.acknowledged.update(bodies)
            self._send_s.update(dict.fromkeys(bodies, call.ended_s - call.began_s))
            if in_full:
                self.sends.append(call)

    def note_delivered(self, who: str, deliveries: Sequence[Delivery], asked_s: float) -> None:
        with self._lock:
            in_order = self.in_order.setdefault(who, [])
            for each in deliveries:
                body = each.body.decode()
                self.delivered[body] += 1
                if each.attempt == 1:
                    in_order.append(body)
                if body not in self.attempted:
                    self._noted.append(f"nobody sent {body!r}")
                if self.consumed_s.get(body, asked_s) < asked_s:
                    self._again.append((body, asked_s - self.consumed_s[body]))

    def note_fault(self, text: str) -> None:
        with self._lock:
            self._noted.append(text)

    def note_consumed(self, bodies: list[str]) -> None:
        now_s = time.monotonic()
        with self._lock:
            for body in bodies:
                self.consumed_s.setdefault(body, now_s)

    def note_refused(self, who: str, what: str, began_s: float, text: str) -> None:
        with self._lock:
            self.refusals.append(Call(who, began_s, time.monotonic(), what, text))

    @property
    def refused(self) -> Counter[str]:
        """How often each client was refused, by what it raised."""
        with self._lock:
            return Counter(f"{each.who}: {each.refusal}" for each in self.refusals)

    @property
    def faults(self) -> list[str]:
        """What breaks a promise, in words.

        A client that has waited `REPEATED_AFTER_S` for the answer to a send sends the message again. Then there may be
        two messages with the same body, as there may be if the send failed.
        """
        with self._lock:
            again = [(body, after_s) for body, after_s in self._again if self._send_s.get(body, 9e9) < REPEATED_AFTER_S]
            return [*self._noted, *(f"{body} came again {after_s:.1f} s after its end" for body, after_s in again)]

    @property
    def undelivered(self) -> set[str]:
        with self._lock:
            return self.acknowledged - self.delivered.keys()


class Workers:
    """Threads that each drive one client until they are told to stop."""

    def __init__(self) -> None:
        self._stops: dict[str, threading.Event] = {}
        self._threads: dict[str, list[threading.Thread]] = {}

    def start(self, kind: str, work: Callable[[threading.Event], None]) -> None:
        stop = self._stops.setdefault(kind, threading.Event())
        thread = threading.Thread(target=work, args=[stop], daemon=True)
        self._threads.setdefault(kind, []).append(thread)
        thread.start()

    def stop(self, kind: str) -> None:
        self._stops[kind].set()
        for thread in self._threads[kind]:
            thread.join(ANSWER_TIMEOUT_S)
            assert not thread.is_alive(), f"a {kind} does not come back"

    def abandon(self) -> None:
        """Something has failed elsewhere: let those come to their end that can."""
        for stop in self._stops.values():
            stop.set()
        for threads in self._threads.values():
            for thread in threads:
                thread.join(ABANDON_TIMEOUT_S)


def start_pairs(
    workers: Workers,
    ledger: Ledger,
    clients_of: Callable[[str], Clients],
    languages: Sequence[str],
    *,
    topic: str,
    group: str,
) -> list[ClientProcess]:
    """Two producers and two consumers of each language, at work; returns their processes."""
    processes: list[ClientProcess] = []
    for language in languages:
        clients = clients_of(language)
        for number in range(2):
            name = f"{language}-{number}"
            producer, consumer = clients.producer(topic), clients.simple_consumer(topic, group=group, await_s=2)
            processes += [producer, consumer]
            workers.start("producer", partial(produce, producer, name, ledger, topics=[topic]))
            workers.start("consumer", partial(consume, consumer, name, ledger))
    return processes


def produce(
    producer: Producer,
    name: str,
    ledger: Ledger,
    stop: threading.Event,
    *,
    topics: Sequence[str],
    per_call: int = 5,
    pause_s: float = 0.0,
) -> None:
    """Send to the topics in turn, one message after the other. `pause_s` is between two calls."""
    count = 0
    while not stop.is_set():
        topic = topics[count // per_call % len(topics)]
        bodies = [f"{name}-{count + n}" for n in range(per_call)]
        count += len(bodies)
        ledger.note_attempt(bodies)
        messages = [Outgoing(topic, body.encode()).line() for body in bodies]
        began_s = time.monotonic()
        try:
            receipts = producer.request("send", messages=messages, timeout_s=ANSWER_TIMEOUT_S)["receipts"]
        except ClientError as error:
            ledger.note_refused(name, error.kind, began_s, str(error))
            stop.wait(PAUSE_S)
            continue
        call = Call(name, began_s, time.monotonic())
        sent = [body for body, receipt in zip(bodies, receipts, strict=True) if "error" not in receipt]
        ledger.note_sent(sent, call, in_full=sent == bodies)
        for receipt in receipts:
            if "error" in receipt:
                ledger.note_refused(name, receipt["error"]["type"], began_s, receipt["error"]["text"])
                stop.wait(PAUSE_S)
        if pause_s:
            stop.wait(pause_s)


def consume(consumer: SimpleConsumer, name: str, ledger: Ledger, stop: threading.Event) -> None:
    """Receive and acknowledge."""
    while not stop.is_set():
        asked_s = time.monotonic()
        try:
            deliveries = consumer.receive(invisible_s=INVISIBLE_S)
            ledger.note_delivered(name, deliveries, asked_s)
            answer = consumer.request(
                "ack", deliveries=[each.number for each in deliveries], timeout_s=ANSWER_TIMEOUT_S
            )
        except ClientError as error:
            ledger.note_refused(name, error.kind, asked_s, str(error))
            stop.wait(PAUSE_S)
            continue
        done = [each for each, result in zip(deliveries, answer["results"], strict=True) if "error" not in result]
        for result in answer["results"]:
            if "error" in result:
                failure = result["error"]
                ledger.note_refused(name, f"acknowledgement: {failure['type']}", asked_s, failure["text"])
        ledger.note_consumed([each.body.decode() for each in done])
