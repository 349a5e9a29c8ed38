"""Features that users need of a client, one function each: they work with any official client, or say what is missing.

A feature gets a `Stage`: a topic and a group of its own on a running broker, and clients of one language. It fails by
an AssertionError, or by what the client raised; a client library that has no such thing raises `Unsupported`.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from tests.e2e.clients import (
    ClientError,
    Clients,
    Delivery,
    Outgoing,
    Producer,
    PushConsumer,
    Receipt,
    SimpleConsumer,
    content_of,
)

SOON_S: Final = 2
BLOCKED_S: Final = 6
"""Longer than a receive that finds nothing: the client of Go waits until its deadline."""
UNSUPPORTED: Final = "Unsupported"


@dataclass(frozen=True)
class Stage:
    """A topic and a group that nobody else uses, made as the feature wants them. `restart` restarts the broker."""

    clients: Clients
    topic: str
    group: str
    restart: Callable[[], None]

    def message(self, body: bytes, **how: Any) -> Outgoing:
        return Outgoing(self.topic, body, **how)

    def producer(self, checker: str | None = None) -> Producer:
        return self.clients.producer(self.topic, checker=checker)

    def consumer(self, **how: Any) -> SimpleConsumer:
        return self.clients.simple_consumer(self.topic, group=self.group, await_s=1, **how)

    def push_consumer(self, **how: Any) -> PushConsumer:
        return self.clients.push_consumer(self.topic, group=self.group, **how)


@dataclass(frozen=True)
class Feature:
    """A feature, and the topic and the group for it. Without `retry_delay_s` the broker's own delays apply."""

    play: Callable[[Stage], None]
    topic_type: str = "normal"
    queues: int = 4
    is_fifo: bool = False
    is_lite: bool = False
    """The group gets lite topics of the topic."""
    max_attempts: int | None = None
    retry_delay_s: int | None = None


def dead_letter_topic(group: str) -> str:
    return f"%DLQ%{group}"


def reader_of(group: str) -> str:
    """The group that reads the dead letters."""
    return f"{group}-reader"


def varied(topic: str, count: int) -> list[Outgoing]:
    """Messages that differ in everything a sender decides."""
    return [
        Outgoing(
            topic,
            b"%d " % number + bytes(range(256)) * number,
            tag=[None, "created", "paid", "支付"][number % 4],
            keys=tuple(f"order-{number}-{key}" for key in range(number % 3)),
            properties={"region": "eu" if number % 2 else "us", "amount": str(number)},
        )
        for number in range(count)
    ]


def nothing_more(consumer: SimpleConsumer) -> None:
    assert [each.body[:40] for each in consumer.receive()] == []


def same(deliveries: Sequence[Delivery], messages: Sequence[Outgoing]) -> None:
    assert sorted(map(repr, (each.content() for each in deliveries))) == sorted(map(repr, map(content_of, messages)))


def normal(stage: Stage) -> None:
    """Sent, received equal, acknowledged, gone."""
    sent = varied(stage.topic, 12)
    stage.producer().send(sent)
    consumer = stage.consumer()
    received = consumer.receive_until(len(sent), invisible_s=10)
    same(received, sent)
    consumer.ack(received)
    nothing_more(consumer)


def simple(stage: Stage) -> None:
    """A simple consumer changes how long a message stays hidden; what it does not acknowledge comes again."""
    stage.producer().send([stage.message(b"soon"), stage.message(b"later"), stage.message(b"done")])
    consumer = stage.consumer()
    by_body = {each.body: each for each in consumer.receive_until(3, invisible_s=60)}
    consumer.change_invisible(by_body[b"soon"], invisible_s=SOON_S)
    consumer.ack([by_body[b"done"]])
    again = consumer.receive_until(1)
    assert [(each.body, each.attempt) for each in again] == [(b"soon", 2)]


def push(stage: Stage) -> None:
    """A push consumer gets every message, and those again that its listener failed."""
    sent = varied(stage.topic, 8)
    stage.producer().send(sent)
    consumer = stage.push_consumer(failed_attempts=1)
    deliveries = [consumer.next_delivery() for _ in range(2 * len(sent))]
    for attempt in (1, 2):
        same([each for each in deliveries if each.attempt == attempt], sent)


def tag_filter(stage: Stage) -> None:
    sent = varied(stage.topic, 16)
    stage.producer().send(sent)
    consumer = stage.consumer(tags="paid || 支付")
    wanted = [each for each in sent if each.tag in ("paid", "支付")]
    same(consumer.receive_until(len(wanted)), wanted)
    nothing_more(consumer)


def sql_filter(stage: Stage) -> None:
    sent = varied(stage.topic, 16)
    stage.producer().send(sent)
    condition = "region = 'eu' AND amount BETWEEN 3 AND 11 OR TAGS = 'created' AND amount > 12"
    consumer = stage.consumer(sql=condition)
    wanted = [each for number, each in enumerate(sent) if (number % 2 and 3 <= number <= 11) or number == 13]
    same(consumer.receive_until(len(wanted)), wanted)
    nothing_more(consumer)


def fifo(stage: Stage) -> None:
    """Each message group arrives in its order, a failed message before those behind it."""
    sent = [stage.message(b"%d" % number, message_group=name) for number in range(8) for name in ("ann", "bob", "cleo")]
    stage.producer().send(sent)
    consumer = stage.push_consumer()
    bodies: dict[str | None, list[bytes]] = defaultdict(list)
    for _ in sent:
        delivery = consumer.next_delivery()
        bodies[delivery.message_group].append(delivery.body)
    assert bodies == {name: [b"%d" % number for number in range(8)] for name in ("ann", "bob", "cleo")}


def fifo_simple(stage: Stage) -> None:
    """A simple consumer of an ordered group gets what follows when all before it is acknowledged."""
    stage.producer().send([stage.message(b"%d" % number, message_group="g") for number in range(4)])
    consumer = stage.consumer()
    first = consumer.receive(count=2, invisible_s=BLOCKED_S)
    assert [each.body for each in first] == [b"0", b"1"]
    assert consumer.receive(count=2) == [], "the queue is blocked"
    again = consumer.receive_until(2)
    assert [each.body for each in again][:2] == [b"0", b"1"]
    consumer.ack(again)
    if len(again) == 2:
        assert [each.body for each in consumer.receive_until(2)] == [b"2", b"3"]


def delay(stage: Stage) -> None:
    """Messages arrive when it is their time, the earliest first."""
    # they take seconds to start on a busy machine
    producer, consumer = stage.producer(), stage.consumer()
    now_ms = time.time_ns() // 1_000_000
    # whole seconds: some clients know nothing else
    at_ms = [(now_ms // 1000 + seconds) * 1000 for seconds in (5, 3, 4)]
    producer.send([stage.message(b"%d" % each, delivery_ms=each) for each in at_ms])
    received = consumer.receive_until(3)
    assert [int(each.body) for each in received] == sorted(at_ms)
    for each in received:
        assert each.at_ms >= int(each.body), "it came early"
        assert each.at_ms <= int(each.body) + 1500, "it came late"


def recall(stage: Stage) -> None:
    """A message that is recalled before its time never arrives."""
    producer, consumer = stage.producer(), stage.consumer()
    at_ms = (time.time_ns() // 1_000_000_000 + 4) * 1000
    first, _ = producer.send([stage.message(body, delivery_ms=at_ms) for body in (b"recalled", b"kept")])
    producer.recall(stage.topic, first)
    assert [each.body for each in consumer.receive_until(1)] == [b"kept"]
    nothing_more(consumer)


def transaction(stage: Stage) -> None:
    """Committed messages arrive, messages that were rolled back do not."""
    producer = stage.producer("unknown")
    for body, resolution in ((b"committed", "commit"), (b"rolled back", "rollback"), (b"too", "commit")):
        producer.send_in_transaction(stage.message(body), resolution)
    consumer = stage.consumer()
    received = consumer.receive_until(2)
    assert sorted(each.body for each in received) == [b"committed", b"too"]
    nothing_more(consumer)


def transaction_check(stage: Stage) -> None:
    """A producer that said nothing is asked, and its answer counts."""
    producer = stage.producer("commit")
    receipt = producer.send_in_transaction(stage.message(b"half"), "none")
    consumer = stage.consumer()
    assert [(each.body, each.message_id) for each in consumer.receive_until(1)] == [(b"half", receipt.message_id)]
    assert receipt.message_id in producer.checked()


def dead_letter(stage: Stage) -> None:
    """A message that a listener fails for the last time is a dead letter, which an ordinary consumer reads."""
    (receipt,) = stage.producer().send([stage.message(b"bad", tag="t")])
    consumer = stage.push_consumer(failed_attempts=99)
    assert [consumer.next_delivery().attempt for _ in range(2)] == [1, 2]
    time.sleep(SOON_S)  # it gets there when its time is up once more
    reader = stage.clients.simple_consumer(dead_letter_topic(stage.group), group=reader_of(stage.group), await_s=1)
    assert [(each.body, each.tag, each.message_id) for each in reader.receive_until(1)] == [
        (b"bad", "t", receipt.message_id)
    ]


def priority(stage: Stage) -> None:
    """Messages of higher priorities come first. None is 0: the client of Node.js takes that for no priority."""
    stage.producer().send([stage.message(b"%d" % each, priority=each) for each in (2, 1, 4, 3)])
    consumer = stage.consumer()
    assert [each.body for each in consumer.receive_until(4)] == [b"4", b"3", b"2", b"1"]


def lite_push(stage: Stage) -> None:
    """A push consumer gets the lite topics that it subscribed to, each in its order, and no others."""
    consumer = stage.clients.lite_push_consumer(stage.topic, group=stage.group)
    consumer.subscribe("ann", "bob")
    _send_to_lite_topics(stage)
    _in_order([consumer.next_delivery() for _ in range(8)])
    consumer.unsubscribe("ann")
    _send_to_lite_topics(stage)
    assert {consumer.next_delivery().lite_topic for _ in range(4)} == {"bob"}


def lite_simple(stage: Stage) -> None:
    """The same of a simple consumer."""
    consumer = stage.clients.lite_simple_consumer(stage.topic, group=stage.group)
    consumer.subscribe("ann", "bob")
    _send_to_lite_topics(stage)
    received = consumer.receive_until(8)
    _in_order(received)
    consumer.ack(received)
    consumer.unsubscribe("ann")
    _send_to_lite_topics(stage)
    assert {each.lite_topic for each in consumer.receive_until(4)} == {"bob"}
    nothing_more(consumer)


def _send_to_lite_topics(stage: Stage) -> None:
    names = ("ann", "bob", "not-wanted")
    stage.producer().send([stage.message(b"%d" % number, lite_topic=name) for number in range(4) for name in names])


def _in_order(deliveries: Sequence[Delivery]) -> None:
    bodies: dict[str | None, list[bytes]] = defaultdict(list)
    for each in deliveries:
        bodies[each.lite_topic].append(each.body)
    assert bodies == {name: [b"%d" % number for number in range(4)] for name in ("ann", "bob")}


def restart(stage: Stage) -> None:
    """The broker restarts in the middle; producer and consumer go on by themselves."""
    producer = stage.producer()
    consumer = stage.push_consumer()
    sent = [stage.message(b"%d" % number) for number in range(40)]
    receipts = producer.send(sent[:20])
    stage.restart()
    receipts += [_sent_at_last(producer.send, each) for each in sent[20:]]
    wanted, bodies = {receipt.message_id for receipt in receipts}, set()
    while wanted:
        delivery = consumer.next_delivery()
        wanted.discard(delivery.message_id)
        bodies.add(delivery.body)
    assert bodies == {each.body for each in sent}


def _sent_at_last(send: Callable[[Sequence[Outgoing]], list[Receipt]], message: Outgoing) -> Receipt:
    """Clients retry a few times at once; an application tries again later."""
    deadline = time.monotonic() + 30
    while True:
        try:
            (receipt,) = send([message])
        except ClientError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.2)
        else:
            return receipt


FEATURES: Final[dict[str, Feature]] = {
    "normal": Feature(normal),
    "simple consumer": Feature(simple),
    "push consumer": Feature(push, retry_delay_s=1),
    "tags": Feature(tag_filter),
    "SQL": Feature(sql_filter),
    "FIFO, push": Feature(fifo, topic_type="fifo", is_fifo=True, retry_delay_s=1),
    "FIFO, simple": Feature(fifo_simple, topic_type="fifo", queues=1, is_fifo=True),
    "delay": Feature(delay, topic_type="delay"),
    "recall": Feature(recall, topic_type="delay"),
    "transaction": Feature(transaction, topic_type="transaction"),
    "check": Feature(transaction_check, topic_type="transaction"),
    "dead letters": Feature(dead_letter, max_attempts=2, retry_delay_s=1),
    "priority": Feature(priority, topic_type="priority"),
    "lite topics, push": Feature(lite_push, topic_type="lite", is_lite=True),
    "lite topics, simple": Feature(lite_simple, topic_type="lite", is_lite=True),
    "broker restart": Feature(restart),
}
