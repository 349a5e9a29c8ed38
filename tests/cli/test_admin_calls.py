"""The commands for calls that only dashboards made, and `quarry call`, against a broker in a process of its own."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import suppress
from itertools import count
from typing import Final

import grpc
import pytest

from quarry_mq.client.endpoint import Endpoint
from quarry_mq.client.messaging import MessagingClient
from quarry_mq.client.requests import Subscription
from quarry_mq.protocol.proto.apache.rocketmq.v2 import definition_pb2 as definition
from quarry_mq.protocol.proto.apache.rocketmq.v2 import service_pb2 as service
from tests.cli.online_runner import Quarry
from tests.e2e.broker import Broker, environment_of

TOPIC, GROUP = "orders", "billing"
SETTINGS: Final = {"store.segment_size": 16 * 1024 * 1024, "index.tiered": True, "broker.name": "quarry-here"}
_NUMBERS: Final = count()


@pytest.fixture(scope="module")
def quarry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Quarry]:
    directory = tmp_path_factory.mktemp("commands")
    broker = Broker(directory / "store", logs=directory / "logs", environment=environment_of(SETTINGS))
    try:
        quarry = Quarry(broker.start())
        quarry.run("topic", "create", TOPIC, "--queues", 2)
        quarry.run("group", "create", GROUP)
        yield quarry
        broker.stop()
    finally:
        broker.close()


class Consumer:
    """A consumer of `billing` that does what it is told. `code` is how its consuming of a message ends."""

    def __init__(self, client: MessagingClient) -> None:
        self.client_id = client._requests.client_id
        self.code = definition.OK
        self._client = client

    def obey(self) -> None:
        """Until the stream ends."""
        with suppress(grpc.RpcError):  # it was closed
            for command in self._client._telemetry:
                said = service.TelemetryCommand(status=definition.Status(code=definition.OK))
                if command.HasField("print_thread_stack_trace_command"):
                    said.thread_stack_trace.nonce = command.print_thread_stack_trace_command.nonce
                    said.thread_stack_trace.thread_stack_trace = "main: waits"
                elif command.HasField("verify_message_command"):
                    said.verify_message_result.nonce = command.verify_message_command.nonce
                    said.status.code = self.code
                self._client._commands.put(said)


@pytest.fixture
def consumer(quarry: Quarry) -> Iterator[Consumer]:
    with MessagingClient(
        Endpoint(quarry.broker.endpoint), subscription=Subscription(group=GROUP, topic=TOPIC)
    ) as client:
        consumer = Consumer(client)
        obeying = threading.Thread(target=consumer.obey)
        obeying.start()
        yield consumer
    obeying.join()


@pytest.fixture
def message_id(quarry: Quarry) -> str:
    """Of a message of `orders`."""
    return str(quarry.row("message", "send", TOPIC, "hello")["messageId"])


def test_a_broker_is_shown(quarry: Quarry, message_id: str) -> None:
    shown = quarry.row("broker")
    assert (shown["name"], shown["cluster"], shown["durability"]) == ("quarry-here", "DefaultCluster", "sync")
    assert shown["appendedOffset"] == shown["dispatchedOffset"] > 0
    assert shown["advertised"] == quarry.broker.endpoint
    assert "dispatched offset  " in quarry.run("broker")


def test_a_topic_as_dashboards_see_it(quarry: Quarry, consumer: Consumer) -> None:
    quarry.run("topic", "create", "described", "--type", "mixed", "--attribute", "description=of the shop")
    assert quarry.row("topic", "status", "described") == {
        "name": "described",
        "messageType": None,
        "description": "of the shop",
        "attributes": {"description": "of the shop"},
    }
    assert quarry.row("topic", "status", TOPIC)["messageType"] == "NORMAL"
    assert quarry.row("topic", "route", TOPIC) == {
        "broker": "quarry-here",
        "cluster": "DefaultCluster",
        "address": quarry.broker.endpoint,
        "readQueues": 2,
        "writeQueues": 2,
        "permission": "read-write",
    }
    (reader,) = quarry.rows("topic", "readers", TOPIC)
    assert (reader["group"], reader["isOnline"], reader["isConsistent"]) == (GROUP, True, True)
    for command in ("status", "route", "readers"):
        assert "topic: no topic ghost" in quarry.run("topic", command, "ghost", status=2)


def test_a_group_and_what_it_reads(quarry: Quarry, consumer: Consumer, message_id: str) -> None:
    (row,) = quarry.rows("group", "consumers", GROUP, "--topic", TOPIC)
    assert (row["clientId"], row["language"], row["address"]) == (consumer.client_id, "PYTHON", "127.0.0.1")
    (subscription,) = quarry.rows("group", "subscriptions", GROUP)
    assert (subscription["topic"], subscription["isOnline"], subscription["expression"]) == (TOPIC, True, "*")
    assert subscription["settingsAt"].endswith("Z")
    quarry.run("group", "reset-offset", "--yes", GROUP, "--topic", TOPIC, "--to", "earliest")
    times = quarry.rows("group", "times", GROUP, "--topic", TOPIC)
    assert [each["queueId"] for each in times] == [0, 1]
    assert {each["readUpTo"] for each in times} == {None}
    assert any(each["firstStoredAt"] and each["firstStoredAt"] <= each["lastStoredAt"] for each in times)
    assert quarry.run("group", "times", GROUP).splitlines()[0].endswith("DELAY")


def test_a_group_that_reads_no_more_is_forgotten(quarry: Quarry, consumer: Consumer) -> None:
    group = f"group-{next(_NUMBERS)}"
    quarry.run("group", "create", group)
    quarry.run("group", "reset-offset", "--yes", group, "--topic", TOPIC, "--to", "latest")
    (subscription,) = quarry.rows("group", "subscriptions", group, "--topic", TOPIC)
    assert (subscription["isOnline"], subscription["settingsAt"]) == (False, None)
    assert quarry.row("group", "forget", "--yes", group, "--topic", TOPIC) == {"forgotten": group, "topic": TOPIC}
    assert quarry.rows("group", "subscriptions", group) == []
    assert "has connected consumers of topic" in quarry.run(
        "group", "forget", "--yes", GROUP, "--topic", TOPIC, status=2
    )


def test_a_consumer_is_shown_and_asked(quarry: Quarry, consumer: Consumer) -> None:
    client = (consumer.client_id, "--group", GROUP)
    shown = quarry.row("client", "show", *client)
    assert (shown["clientId"], shown["group"], shown["address"]) == (consumer.client_id, GROUP, "127.0.0.1")
    assert (shown["isPushed"], shown["isOrdered"], shown["subscriptions"]) == (False, False, {TOPIC: "*"})
    assert quarry.run("client", "stack", *client) == "main: waits\n"
    assert quarry.row("client", "stack", *client) == {"clientId": consumer.client_id, "stack": "main: waits"}
    for command in ("show", "stack"):
        assert "no such consumer" in quarry.run("client", command, "nobody", "--group", GROUP, status=2)


def test_a_consumer_consumes_a_message_once_more(quarry: Quarry, consumer: Consumer, message_id: str) -> None:
    place = ("--group", GROUP, "--topic", TOPIC)
    expected = {"clientId": consumer.client_id, "messageId": message_id, "isConsumed": True}
    assert quarry.row("client", "verify-message", consumer.client_id, message_id, *place) == expected
    consumer.code = definition.FAILED_TO_CONSUME_MESSAGE
    failed = quarry.row("client", "verify-message", consumer.client_id, message_id, *place, status=1)
    assert failed == {**expected, "isConsumed": False}
    assert "message_id" in quarry.run("client", "verify-message", consumer.client_id, "01FF", *place, status=2)


def test_a_message_is_sent_through_the_admin_port(quarry: Quarry) -> None:
    given = ("--tag", "new", "--key", "a", "--key", "b", "--property", "c=d")
    sent = quarry.row("message", "send", TOPIC, "hello", *given)
    assert sent["topic"] == TOPIC
    assert quarry.row("message", "trace", "--topic", TOPIC, "--key", "b")["messageId"] == sent["messageId"]
    assert "topic: no topic ghost" in quarry.run("message", "send", "ghost", "hello", status=2)


def test_any_call_is_made_from_json(quarry: Quarry, message_id: str) -> None:
    found = quarry.row("call", "AdminService/GetTopic", f'{{"name": "{TOPIC}"}}')
    assert (found["name"], found["readQueues"]) == (TOPIC, 2)
    assert quarry.row("call", "quarry.admin.v1.AdminService/GetTopic", f'{{"name": "{TOPIC}"}}') == found
    pages = quarry.rows("call", "AdminService/ListTopics", f'{{"prefix": "{TOPIC}"}}')
    assert [topic["type"] for page in pages for topic in page["topics"]] == ["TOPIC_TYPE_NORMAL"]
    assert '\n  "name": ' in quarry.run("call", "AdminService/GetBroker")
    request = f'{{"topic": {{"name": "{TOPIC}"}}, "messageId": "{message_id}"}}'
    assert quarry.row("call", "Admin/QueryMessage", request)["messages"][0]["body"] == "aGVsbG8="


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("AdminService/GetNothing",), "no call 'AdminService/GetNothing'"),
        (("GetTopic",), "no call 'GetTopic'"),
        (("AdminService/GetTopic", "{"), "no quarry.admin.v1.GetTopicRequest"),
        (("AdminService/GetTopic", '{"nam": "x"}'), '"nam"'),
        (("AdminService/GetTopic", '{"name": "ghost"}'), "no topic ghost"),
        (("Admin/GetTopicRoute", '{"topic": {"name": "ghost"}}'), "topic: no topic ghost"),
    ],
)
def test_what_is_wrong_with_a_call_is_said(quarry: Quarry, arguments: tuple[str, ...], text: str) -> None:
    assert text in quarry.run("call", *arguments, status=2)
