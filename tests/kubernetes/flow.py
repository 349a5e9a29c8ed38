"""A producer and a consumer of the official Python client that count what becomes of their messages.

    python flow.py --endpoint quarry:8081 --topic orders --group flow [--rate 20] [--message-groups 8] [--tls]

It sends numbered messages at a fixed rate until its standard input ends, waits until all that were acknowledged are
received, and prints one line of JSON. The program stands alone, because it runs in pods that have no project.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import threading
import time
from collections import Counter, defaultdict
from typing import Any, Final

from rocketmq import (
    ClientConfiguration,
    ConsumeResult,
    Credentials,
    FilterExpression,
    Message,
    MessageListener,
    Producer,
    PushConsumer,
)

SENDERS: Final = 4
"""Threads that send messages without a group: one send that hangs is not a pause of the producer."""
DRAIN_TIMEOUT_S: Final = 120.0
SHOWN: Final = 20


class Record:
    """A record of what was sent and received; all threads write into it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._acknowledged: dict[str, float] = {}
        """Message to the time of its acknowledgement."""
        self._received: Counter[str] = Counter()
        self._highest: dict[str, int] = defaultdict(lambda: -1)
        self._pauses_s: dict[str, float] = defaultdict(float)
        self._last_s: dict[str, float] = {}
        self.errors: Counter[str] = Counter()
        self.slowest_send_s = 0.0
        self.disordered = 0

    def begin(self, line: str) -> None:
        self._last_s[line] = time.monotonic()

    def acknowledge(self, line: str, body: str, took_s: float) -> None:
        """Note that a message was acknowledged; `line` has the messages whose acknowledgements follow each other."""
        with self._lock:
            now_s = time.monotonic()
            self._acknowledged[body] = now_s
            self.slowest_send_s = max(self.slowest_send_s, took_s)
            self._note_pause(line, now_s)

    def refuse(self, error: Exception) -> None:
        with self._lock:
            self.errors[f"{type(error).__name__}: {error}"[:200]] += 1

    def end(self) -> None:
        with self._lock:
            for line in list(self._last_s):
                self._note_pause(line, time.monotonic())

    def _note_pause(self, line: str, now_s: float) -> None:
        self._pauses_s[line] = max(self._pauses_s[line], now_s - self._last_s[line])
        self._last_s[line] = now_s

    def receive(self, body: str) -> None:
        line, _, number = body.rpartition(":")
        with self._lock:
            self._received[body] += 1
            if self._received[body] == 1:
                self.disordered += int(number) < self._highest[line]
                self._highest[line] = max(self._highest[line], int(number))

    def missing(self) -> list[str]:
        with self._lock:
            return [body for body in self._acknowledged if body not in self._received]

    def summary(self, *, is_ordered: bool) -> dict[str, Any]:
        missing = self.missing()
        with self._lock:
            return {
                "acknowledged": len(self._acknowledged),
                "refused": self.errors.total(),
                "lost": len(missing),
                "duplicated": sum(count - 1 for count in self._received.values()),
                "disordered": self.disordered if is_ordered else 0,
                "longest_pause_s": round(max(self._pauses_s.values(), default=0.0), 2),
                "slowest_send_s": round(self.slowest_send_s, 2),
                "missing": missing[:SHOWN],
                "errors": dict(self.errors.most_common(SHOWN)),
            }


class Listener(MessageListener):  # type: ignore[misc]  # the client has no types
    def __init__(self, record: Record) -> None:
        self._record = record

    def consume(self, message: Message) -> ConsumeResult:
        self._record.receive(message.body.decode())
        return ConsumeResult.SUCCESS


class Sender(threading.Thread):
    """A thread that sends one message after the other."""

    def __init__(self, producer: Producer, record: Record, topic: str, line: str, body: str) -> None:
        super().__init__(daemon=True)
        self._producer = producer
        self._record = record
        self._topic = topic
        self._line = line
        self._body = body
        self.message_group = ""
        self.period_s = 1.0
        self.stopped = threading.Event()

    def run(self) -> None:
        number = 0
        next_s = time.monotonic()
        while not self.stopped.wait(max(0.0, next_s - time.monotonic())):
            next_s = max(next_s + self.period_s, time.monotonic() - self.period_s)
            body = f"{self._body}:{number}"
            number += 1
            message = Message()
            message.topic = self._topic
            message.body = body.encode()
            if self.message_group:
                message.message_group = self.message_group
            began_s = time.monotonic()
            try:
                self._producer.send(message)
            except Exception as error:
                self._record.refuse(error)
            else:
                self._record.acknowledge(self._line, body, time.monotonic() - began_s)


def senders(producer: Producer, record: Record, options: argparse.Namespace) -> list[Sender]:
    """Threads of their own for each message group; messages without a group share some."""
    count = options.message_groups or SENDERS
    made = []
    for each in range(count):
        line = f"g{each}" if options.message_groups else ""
        sender = Sender(producer, record, options.topic, line, f"{os.getpid()}.{time.time_ns()}.{each}")
        sender.message_group = line
        sender.period_s = count / options.rate
        made.append(sender)
        record.begin(line)
    return made


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--endpoint", required=True)
    parser.add_argument("--topic", required=True)
    parser.add_argument("--group", required=True)
    parser.add_argument("--rate", type=float, default=20.0, help="messages a second")
    parser.add_argument("--message-groups", type=int, default=0)
    parser.add_argument("--tls", action="store_true")
    options = parser.parse_args()
    credentials = Credentials(os.environ.get("CLIENT_USER", ""), os.environ.get("CLIENT_SECRET", ""))
    configuration = ClientConfiguration(options.endpoint, credentials)
    record = Record()
    subscriptions = {options.topic: FilterExpression("*")}
    consumer = PushConsumer(configuration, options.group, Listener(record), subscriptions, tls_enable=options.tls)
    producer = Producer(configuration, [options.topic], tls_enable=options.tls)
    producer.startup()
    consumer.startup()
    threads = senders(producer, record, options)
    for each in threads:
        each.start()
    print(json.dumps({"started": True}), flush=True)
    sys.stdin.read()
    for each in threads:
        each.stopped.set()
    for each in threads:
        each.join()
    record.end()
    deadline_s = time.monotonic() + DRAIN_TIMEOUT_S
    while record.missing() and time.monotonic() < deadline_s:
        time.sleep(0.2)
    print(json.dumps(record.summary(is_ordered=bool(options.message_groups))), flush=True)
    os._exit(0)  # threads of the client may wait for brokers that are gone


if __name__ == "__main__":
    main()
