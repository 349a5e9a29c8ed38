"""Programs with the client of RocketMQ 4 for Python (`rocketmq` 0.4.4, on RocketMQ's C++ client), one by one.

    python python_programs.py NAME_SERVER PROGRAM TOPIC [ACCESS_KEY SECRET_KEY]

Each prints one JSON object. The client crashes when its objects are collected after their library, so every program
ends without a collection.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from typing import Any

from rocketmq.client import Message, Producer, PullConsumer, PushConsumer
from rocketmq.ffi import MessageModel

WAIT_S = 60.0
SETTLE_S = 0.5
"""Seconds in which messages that come twice would come."""

names, program, topic, *keys = sys.argv[1:]


def prepared(client: Any) -> Any:
    client.set_namesrv_addr(names)
    if keys:
        client.set_session_credentials(*keys, "")
    return client


def message(number: int, **calls: object) -> Any:
    made = Message(topic)
    made.set_keys(f"key-{number}")
    made.set_tags("odd" if number % 2 else "even")
    made.set_property("number", str(number))
    made.set_body(f"body {number}")
    for name, value in calls.items():
        getattr(made, name)(value)
    return made


def until(condition: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + WAIT_S
    while not condition() and time.monotonic() < deadline_s:
        time.sleep(0.05)
    time.sleep(SETTLE_S)


def sends() -> dict[str, object]:
    """Send in every way that the client has."""
    producer = prepared(Producer("python-producer"))
    producer.start()
    statuses = [int(producer.send_sync(message(number)).status) for number in range(10)]
    producer.send_oneway(message(10))
    statuses += [int(producer.send_orderly(message(number), 7).status) for number in range(11, 15)]
    statuses.append(int(producer.send_batch([message(number) for number in range(15, 20)]).status))
    done: list[str] = []
    producer.send_async(message(20), lambda result: done.append(result.msg_id), lambda error: done.append(str(error)))
    until(lambda: bool(done))
    producer.shutdown()
    return {"statuses": statuses, "asynchronous": len(done)}


def pushed(consumer: Any, count: int, expression: str = "*") -> list[list[object]]:
    """Consume until so many messages have come; return body, key, tag, property and queue of each."""
    found: list[list[object]] = []

    def take(each: Any) -> None:
        number = each.get_property("number")
        found.append([each.body.decode(), each.keys.decode(), each.tags.decode(), number.decode(), each.queue_id])

    prepared(consumer).subscribe(topic, take, expression)
    consumer.start()
    until(lambda: len(found) >= count)
    consumer.shutdown()
    return found


def push() -> dict[str, object]:
    return {"found": pushed(PushConsumer("python-push"), 21)}


def push_in_order() -> dict[str, object]:
    return {"found": pushed(PushConsumer("python-ordered", orderly=True), 21)}


def push_by_tag() -> dict[str, object]:
    return {"found": pushed(PushConsumer("python-tags"), 10, "odd")}


def retry() -> dict[str, object]:
    """Fail at the first delivery of a message: it comes again."""
    times: list[int] = []
    consumer = prepared(PushConsumer("python-retry"))

    def take(each: Any) -> None:
        if each.body == b"body 3":
            times.append(each.reconsume_times)
            if each.reconsume_times == 0:
                raise ValueError("once")

    consumer.subscribe(topic, take)
    consumer.start()
    until(lambda: len(times) > 1)
    consumer.shutdown()
    return {"times": times}


def broadcast() -> dict[str, object]:
    """Two consumers of a group get each message. They begin at the end of the topic, so they are started first."""
    consumers = [PushConsumer("python-broadcast", message_model=MessageModel.BROADCASTING) for _ in range(2)]
    found: list[set[bytes]] = [set(), set()]
    for number, (consumer, bodies) in enumerate(zip(consumers, found, strict=True)):
        prepared(consumer).set_instance_name(f"consumer-{number}")
        consumer.subscribe(topic, lambda each, bodies=bodies: bodies.add(each.body))
        consumer.start()
    producer = prepared(Producer("python-producer"))
    producer.start()
    sent: set[bytes] = set()

    def have_begun() -> bool:
        number = 1_000 + len(sent)
        producer.send_sync(message(number))
        sent.add(b"body %d" % number)
        return all(found)

    until(have_begun)
    later = {b"body %d" % number for number in range(2_000, 2_010)}
    for number in range(2_000, 2_010):
        producer.send_sync(message(number))
    until(lambda: all(bodies >= later for bodies in found))
    return {"all": [bodies >= later for bodies in found]}


def pull() -> dict[str, object]:
    consumer = prepared(PullConsumer("python-pull"))
    consumer.start()
    found = [each.body.decode() for each in consumer.pull(topic)]
    consumer.shutdown()
    return {"found": found}


def delay() -> dict[str, object]:
    """Send with a delay of five seconds; return how long the message took."""
    producer = prepared(Producer("python-producer"))
    producer.start()
    sent_s = time.time()
    producer.send_sync(message(0, set_delay_time_level=2))
    came_s: list[float] = []
    consumer = prepared(PushConsumer("python-delay"))
    consumer.subscribe(topic, lambda _: came_s.append(time.time()))
    consumer.start()
    until(lambda: bool(came_s))
    consumer.shutdown()
    producer.shutdown()
    return {"seconds": came_s[0] - sent_s}


PROGRAMS = {each.__name__: each for each in (sends, push, push_in_order, push_by_tag, retry, broadcast, pull, delay)}

if __name__ == "__main__":
    print(json.dumps(PROGRAMS[program]()), flush=True)
    os._exit(0)
