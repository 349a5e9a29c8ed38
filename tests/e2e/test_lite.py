"""Lite topics with the official clients that have them: Python, Node.js, Java and Go.

All of them push; Python's alone is also asked for messages. Nearly all of it takes long: the clients start to receive a
second after their start, and stop only when their last receive does.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import pytest

from tests.e2e.broker import Broker, until
from tests.e2e.clients import ClientError, Clients, Delivery, LitePushConsumer, Outgoing, PushConsumer
from tests.e2e.conftest import StartBroker, StartClients

EVENTS, DEVICES = "events", "devices"
QUIET_S = 3.0
"""How long a test looks whether nothing comes."""
AT_ONCE_MS = 2000
"""Of a busy machine; clients that have to ask anew, or to say again what they want, need longer."""
CLIENT_GONE_S = 60.0
"""Within which messages come again that a killed client had; Go's decides by itself for how long it hides them."""

REFUSALS = {
    "python": ("LiteSubscriptionQuotaExceededException", 42902),
    "node": ("ClientException", 429),
    "java": ("LiteSubscriptionQuotaExceededException", None),
    "go": ("*golang.ErrRpcStatus", 42902),
}
"""What each library raises above the quota; of Java's the code is not shown."""

slow = pytest.mark.slow
StartLite = Callable[..., "Lite"]


@dataclass(frozen=True)
class Lite:
    """A broker with a topic of lite topics and a group for them, and clients of one language."""

    broker: Broker
    clients: Clients

    def consumer(
        self, *lite_topics: str, failed_attempts: int = 0, suspended_ms: int | None = None
    ) -> LitePushConsumer:
        consumer = self.clients.lite_push_consumer(
            EVENTS, group=DEVICES, failed_attempts=failed_attempts, suspended_ms=suspended_ms
        )
        consumer.subscribe(*lite_topics)
        return consumer


@pytest.fixture
def start_lite(start_broker: StartBroker, start_clients: StartClients) -> StartLite:
    """`start_lite("go", "--lite-quota", "5")`: with these options of the group."""

    def start(language: str, *options: str) -> Lite:
        broker = start_broker()
        broker.administer("topic", "create", EVENTS, "--type", "lite", "--queues", "2")
        broker.administer("group", "create", DEVICES, "--lite-parent", EVENTS, "--retry-delays", "1", *options)
        return Lite(broker, start_clients(language, broker.endpoint))

    return start


@pytest.fixture(params=["python", "node", "java", "go"])
def language(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


def message(lite_topic: str, body: bytes) -> Outgoing:
    return Outgoing(EVENTS, body, lite_topic=lite_topic)


def numbered(lite_topics: Sequence[str], numbers: range) -> list[Outgoing]:
    """Messages of all of them by turns."""
    return [message(name, b"%d" % number) for number in numbers for name in lite_topics]


def by_lite_topic(deliveries: Sequence[Delivery]) -> dict[str | None, list[bytes]]:
    bodies: dict[str | None, list[bytes]] = defaultdict(list)
    for each in deliveries:
        bodies[each.lite_topic].append(each.body)
    return dict(bodies)


def next_deliveries(consumer: PushConsumer, count: int) -> list[Delivery]:
    return [consumer.next_delivery() for _ in range(count)]


def nothing_comes(consumer: PushConsumer) -> None:
    with pytest.raises(TimeoutError):
        raise AssertionError(f"{consumer.next_delivery(QUIET_S)} came")


def test_a_simple_consumer_gets_lite_topics_born_after_it_subscribed_and_unacknowledged_messages_again(
    start_lite: StartLite,
) -> None:
    clients = start_lite("python").clients
    consumer = clients.lite_simple_consumer(EVENTS, group=DEVICES)
    consumer.subscribe("a", "b")
    producer = clients.producer(EVENTS)
    producer.send(numbered(("a", "b", "not-wanted"), range(3)))

    first = consumer.receive_until(6)

    assert by_lite_topic(first) == {name: [b"0", b"1", b"2"] for name in "ab"}
    assert {(each.topic, each.attempt) for each in first} == {(EVENTS, 1)}
    (late,) = [each for each in first if (each.lite_topic, each.body) == ("b", b"1")]
    consumer.ack([each for each in first if each is not late])
    consumer.change_invisible(late, invisible_s=1)
    again = consumer.receive_until(1)
    assert [(each.lite_topic, each.body, each.attempt) for each in again] == [("b", b"1", 2)]
    producer.send([message("a", b"3"), message("b", b"3")])
    assert by_lite_topic(consumer.receive_until(1)) == {"a": [b"3"]}
    consumer.ack(again)  # which lets its lite topic go on
    assert by_lite_topic(consumer.receive_until(1)) == {"b": [b"3"]}


@slow
def test_a_lite_topic_born_after_its_subscription_is_received_at_once(start_lite: StartLite, language: str) -> None:
    lite = start_lite(language)
    consumer = lite.consumer("first")
    producer = lite.clients.producer(EVENTS)
    producer.send([message("first", b"here")])
    assert consumer.next_delivery().body == b"here", "it receives"

    for number in range(3):
        name = f"born_{number}-Later"
        consumer.subscribe(name)
        (receipt,) = producer.send([message(name, b"%d" % number)])
        delivery = consumer.next_delivery()
        assert (delivery.lite_topic, delivery.body, delivery.topic) == (name, b"%d" % number, EVENTS)
        assert delivery.message_id == receipt.message_id
        assert delivery.at_ms - receipt.at_ms < AT_ONCE_MS


@slow
def test_each_of_many_mixed_lite_topics_keeps_its_order(start_lite: StartLite, language: str) -> None:
    names = [f"device-{number}" for number in range(20)]
    lite = start_lite(language)
    consumer = lite.consumer(*names)
    producer = lite.clients.producer(EVENTS)
    producer.send(numbered([*names, "not-wanted"], range(10)))

    deliveries = next_deliveries(consumer, len(names) * 10)

    assert by_lite_topic(deliveries) == {name: [b"%d" % number for number in range(10)] for name in names}
    assert {each.attempt for each in deliveries} == {1}
    nothing_comes(consumer)


@slow
@pytest.mark.parametrize("language", ["python", "java", "go"])
def test_a_failed_message_is_tried_again(start_lite: StartLite, language: str) -> None:
    """The libraries do that by themselves; Go's is meanwhile done with those behind it."""
    names = ["a", "b", "c"]
    bodies = [b"%d" % number for number in range(4)]
    lite = start_lite(language)
    consumer = lite.consumer(*names, failed_attempts=1)
    lite.clients.producer(EVENTS).send(numbered(names, range(4)))

    deliveries = next_deliveries(consumer, 2 * len(names) * len(bodies))

    assert by_lite_topic([each for each in deliveries if each.failed]) == dict.fromkeys(names, bodies)
    done = by_lite_topic([each for each in deliveries if not each.failed])
    if language == "go":
        done = {name: sorted(found) for name, found in done.items()}
    assert done == dict.fromkeys(names, bodies)
    nothing_comes(consumer)


@slow
@pytest.mark.parametrize("language", ["node", "go"])
def test_a_suspended_lite_topic_comes_again_in_its_order_and_not_as_a_further_attempt(
    start_lite: StartLite, language: str
) -> None:
    """The libraries of Python and Java cannot suspend."""
    lite = start_lite(language)
    producer = lite.clients.producer(EVENTS)
    producer.send([message("a", b"%d" % number) for number in range(3)])
    consumer = lite.consumer("a", failed_attempts=1, suspended_ms=300)

    deliveries = next_deliveries(consumer, 6)

    assert [each.body for each in deliveries if not each.failed] == [b"0", b"1", b"2"]
    assert {each.attempt for each in deliveries} == {1}
    nothing_comes(consumer)


@slow
def test_what_fails_too_often_is_a_dead_letter_and_does_not_block_its_lite_topic(
    start_lite: StartLite, language: str
) -> None:
    attempts = 2
    lite = start_lite(language, "--max-attempts", "2")
    bad, later = lite.clients.producer(EVENTS).send([message("a", b"bad"), message("a", b"behind")])
    consumer = lite.consumer("a", failed_attempts=2)
    assert sorted(each.body for each in next_deliveries(consumer, 2 * attempts)) == sorted(
        [b"bad", b"behind"] * attempts
    )
    reader = lite.clients.simple_consumer(f"%DLQ%{DEVICES}", group="reader", await_s=1)
    assert {each.message_id for each in reader.receive_until(2)} == {bad.message_id, later.message_id}
    nothing_comes(consumer)


@slow
def test_a_message_of_a_killed_client_comes_again_first(start_lite: StartLite, language: str) -> None:
    lite = start_lite(language)
    lite.clients.producer(EVENTS).send([message("a", b"%d" % number) for number in range(3)])
    killed = lite.consumer("a", failed_attempts=99)
    assert killed.next_delivery().body == b"0"
    killed.kill()

    consumer = lite.consumer("a")

    bodies = [consumer.next_delivery(CLIENT_GONE_S).body for _ in range(3)]
    assert bodies == [b"0", b"1", b"2"]


@slow
def test_nothing_comes_of_a_lite_topic_once_it_is_unsubscribed(start_lite: StartLite, language: str) -> None:
    lite = start_lite(language)
    consumer = lite.consumer("a", "b")
    producer = lite.clients.producer(EVENTS)
    producer.send([message("a", b"0"), message("b", b"0")])
    assert by_lite_topic(next_deliveries(consumer, 2)) == {"a": [b"0"], "b": [b"0"]}

    consumer.unsubscribe("a")
    producer.send([message("a", b"1"), message("b", b"1")])

    assert by_lite_topic([consumer.next_delivery()]) == {"b": [b"1"]}
    nothing_comes(consumer)
    consumer.subscribe("a")  # where the group stands
    assert by_lite_topic([consumer.next_delivery()]) == {"a": [b"1"]}


@slow
def test_the_second_client_of_an_exclusive_group_takes_over_and_the_first_is_told(
    start_lite: StartLite, language: str
) -> None:
    lite = start_lite(language, "--lite-model", "exclusive")
    first, second = lite.consumer("a", "b"), lite.consumer()
    producer = lite.clients.producer(EVENTS)
    producer.send([message("a", b"0")])
    assert by_lite_topic([first.next_delivery()]) == {"a": [b"0"]}

    second.subscribe("a")
    producer.send([message("a", b"1"), message("b", b"1")])

    assert by_lite_topic([second.next_delivery()]) == {"a": [b"1"]}
    assert by_lite_topic([first.next_delivery()]) == {"b": [b"1"]}
    if language == "java":
        until(lambda: first.subscribed() == {"b"}, "the first client forgets it")
    if language == "go":
        until(lambda: "notifyUnsubscribeLite liteTopic:a" in lite.clients.logged(), "the first client is told")
    producer.send([message("a", b"2")])
    assert by_lite_topic([second.next_delivery()]) == {"a": [b"2"]}

    first.unsubscribe("a")  # libraries that were not told think that they have it
    first.subscribe("a")
    producer.send([message("a", b"3")])
    assert by_lite_topic([first.next_delivery()]) == {"a": [b"3"]}
    nothing_comes(second)


@slow
def test_a_client_that_comes_again_begins_where_its_group_stands(start_lite: StartLite, language: str) -> None:
    lite = start_lite(language)
    consumer = lite.consumer("a", "b")
    producer = lite.clients.producer(EVENTS)
    producer.send(numbered(("a", "b"), range(3)))
    next_deliveries(consumer, 6)
    consumer.close()
    producer.send(numbered(("a", "b", "c"), range(3, 6)))

    consumer = lite.consumer("a", "b")

    assert by_lite_topic(next_deliveries(consumer, 6)) == {name: [b"3", b"4", b"5"] for name in "ab"}
    nothing_comes(consumer)


@slow
def test_subscriptions_and_progress_outlive_the_broker(start_lite: StartLite, language: str) -> None:
    lite = start_lite(language)
    consumer = lite.consumer("a", "b")
    producer = lite.clients.producer(EVENTS)
    producer.send(numbered(("a", "b"), range(3)))
    assert by_lite_topic(next_deliveries(consumer, 6)) == {name: [b"0", b"1", b"2"] for name in "ab"}

    lite.broker.restart()
    lite.clients.producer(EVENTS).send(numbered(("a", "b", "c"), range(3, 6)))

    assert by_lite_topic(next_deliveries(consumer, 6)) == {name: [b"3", b"4", b"5"] for name in "ab"}
    nothing_comes(consumer)


@slow
def test_a_client_that_wants_too_many_lite_topics_is_refused(start_lite: StartLite, language: str) -> None:
    lite = start_lite(language, "--lite-quota", "3")
    consumer = lite.consumer("a", "b", "c")
    # Go's does not look itself, and the broker leaves some room for those that clients have just given up
    names = ["d"] if language != "go" else [f"d{number}" for number in range(301)]
    with pytest.raises(ClientError) as refused:
        consumer.subscribe(*names)
    assert (refused.value.kind, refused.value.code) == REFUSALS[language]
    lite.clients.producer(EVENTS).send([message("c", b"0"), message(names[-1], b"1")])
    assert by_lite_topic([consumer.next_delivery()]) == {"c": [b"0"]}


@slow
@pytest.mark.parametrize("language", ["node", "java"])
def test_a_client_says_where_in_a_lite_topic_it_starts(start_lite: StartLite, language: str) -> None:
    """The libraries of Python and Go have no such option."""
    lite = start_lite(language)
    producer = lite.clients.producer(EVENTS)
    early = producer.send(numbered(("last", "min", "max", "offset", "tail", "time"), range(3)))
    consumer = lite.consumer()
    time.sleep(0.01)
    middle_ms = time.time_ns() // 1_000_000
    assert middle_ms > max(each.at_ms for each in early)
    producer.send([message("time", b"late")])
    consumer.subscribe("last", start={"policy": "last"})
    consumer.subscribe("min", start={"policy": "min"})
    consumer.subscribe("max", start={"policy": "max"})
    consumer.subscribe("offset", start={"offset": 1})
    consumer.subscribe("tail", start={"tail_n": 2})
    consumer.subscribe("time", start={"timestamp": middle_ms})
    producer.send([message("max", b"new")])

    assert by_lite_topic(next_deliveries(consumer, 12)) == {
        "last": [b"0", b"1", b"2"],
        "min": [b"0", b"1", b"2"],
        "max": [b"new"],
        "offset": [b"1", b"2"],
        "tail": [b"1", b"2"],
        "time": [b"late"],
    }
    nothing_comes(consumer)


@slow
def test_a_subscription_of_python_counts_when_it_says_it_again(start_lite: StartLite) -> None:
    """rocketmq-python-client 5.1.2 subscribes to the letters of the name, and to the name each 30 seconds."""
    lite = start_lite("python")
    consumer = lite.clients.lite_push_consumer(EVENTS, group=DEVICES)
    consumer.subscribe("orders", synchronizes=False)
    lite.clients.producer(EVENTS).send([message("orders", b"0"), message("o", b"a letter"), message("z", b"none")])
    assert by_lite_topic([consumer.next_delivery()]) == {"o": [b"a letter"]}
    assert by_lite_topic([consumer.next_delivery(35)]) == {"orders": [b"0"]}
