"""Telemetry, by the conformance points of docs/formats/protocol.md (numbers in the docstrings)."""

from __future__ import annotations

import pytest

from quarry_mq.protocol.codes import GrpcStatus
from quarry_mq.protocol.proto.apache.rocketmq.v2 import definition_pb2 as definition
from quarry_mq.protocol.proto.apache.rocketmq.v2 import service_pb2 as service
from quarry_mq.server.rpc.sessions import UNREAD_ANSWERS_MAX
from quarry_mq.store.metadata import Group
from tests.rpc.broker import Broker, TelemetryStream, consumer, producer, resource
from tests.rpc.fake_call import CLIENT


@pytest.fixture
def broker() -> Broker:
    return Broker()


def the_answer(stream: TelemetryStream) -> definition.Settings:
    (command,) = stream.answers
    assert command.status.code == definition.OK
    assert command.WhichOneof("command") == "settings"
    assert stream.call.status is None
    return command.settings


def test_a_stream_without_client_id_gets_one_status_and_ends(broker: Broker) -> None:
    """Point 1."""
    stream = broker.open_telemetry(client_id=None)
    stream.say(producer("orders"))
    (command,) = stream.answers
    assert command.status.code == definition.CLIENT_ID_REQUIRED
    assert command.WhichOneof("command") is None
    assert stream.call.status is GrpcStatus.OK
    stream.say(producer("orders"))
    assert len(stream.answers) == 1
    assert broker.telemetry.open_streams == 0


def test_a_stream_that_comes_while_the_broker_stops_ends_at_once(broker: Broker) -> None:
    """One that was on its way kept a stop waiting for all of its grace."""
    before = broker.connect(producer("orders"))
    broker.telemetry.end_streams()
    late = broker.open_telemetry()
    late.say(producer("orders"))
    assert (before.call.status, late.call.status) == (GrpcStatus.OK, GrpcStatus.OK)
    assert late.answers == []
    assert broker.telemetry.open_streams == 0


def test_a_producer_gets_its_policy_and_limits(broker: Broker) -> None:
    """Point 5."""
    settings = the_answer(broker.connect(producer("orders")))
    assert settings.WhichOneof("pub_sub") == "publishing"
    assert [topic.name for topic in settings.publishing.topics] == ["orders"]
    assert settings.publishing.max_body_size == 4_194_304
    assert settings.publishing.validate_message_type
    policy = settings.backoff_policy
    assert policy.max_attempts == 3
    assert policy.WhichOneof("strategy") == "exponential_backoff"
    assert policy.exponential_backoff.initial.ToMilliseconds() == 10
    assert policy.exponential_backoff.max.ToMilliseconds() == 1_000
    assert policy.exponential_backoff.multiplier == 2


def test_a_producer_may_name_no_topic(broker: Broker) -> None:
    """Point 6."""
    assert the_answer(broker.connect(producer())).WhichOneof("pub_sub") == "publishing"


def test_a_push_consumer_gets_its_groups_settings(broker: Broker) -> None:
    """Point 7."""
    broker.add_group("workers")
    settings = the_answer(broker.connect(consumer("workers", "orders")))
    subscription = settings.subscription
    assert subscription.group.name == "workers"
    assert [entry.topic.name for entry in subscription.subscriptions] == ["orders"]
    assert subscription.HasField("fifo")
    assert not subscription.fifo
    assert subscription.receive_batch_size == 32
    assert subscription.long_polling_timeout.ToMilliseconds() == 20_000
    assert settings.backoff_policy.max_attempts == 17
    delays = [each.ToMilliseconds() for each in settings.backoff_policy.customized_backoff.next]
    assert delays[:4] == [1_000, 5_000, 10_000, 30_000]
    assert delays[-1] == 7_200_000
    assert len(delays) == 18


@pytest.mark.parametrize(
    "settings",
    [
        pytest.param(definition.Settings(client_type=definition.PRODUCER), id="neither publishing nor subscription"),
        pytest.param(producer("()"), id="an illegal topic"),
        pytest.param(consumer(""), id="no group"),
        pytest.param(consumer("workers", ""), id="a subscription without topic"),
        pytest.param(consumer("workers", kind=definition.PRODUCER), id="a producer that subscribes"),
        pytest.param(
            definition.Settings(client_type=definition.PUSH_CONSUMER, publishing=definition.Publishing()),
            id="a consumer that publishes",
        ),
        pytest.param(definition.Settings(publishing=definition.Publishing()), id="no client type"),
    ],
)
def test_bad_settings_end_the_stream(broker: Broker, settings: definition.Settings) -> None:
    """Point 8."""
    stream = broker.open_telemetry()
    stream.say(settings)
    assert stream.call.status is GrpcStatus.INVALID_ARGUMENT
    assert stream.call.message
    assert stream.answers == []
    assert broker.clients.find(CLIENT) is None


def test_bytes_that_are_no_protobuf_end_the_stream(broker: Broker) -> None:
    stream = broker.open_telemetry()
    stream.say(b"\xff\xff\xff")
    assert stream.call.status is GrpcStatus.INVALID_ARGUMENT


@pytest.mark.parametrize("kind", [definition.LITE_PUSH_CONSUMER, definition.LITE_SIMPLE_CONSUMER])
def test_lite_consumers_learn_their_quota(broker: Broker, kind: definition.ClientType) -> None:
    """Point 9."""
    subscription = the_answer(broker.connect(consumer("workers", "orders", kind=kind))).subscription
    assert subscription.lite_subscription_quota == 2_000
    assert subscription.max_lite_topic_size == 64


def test_every_settings_command_is_answered_in_order(broker: Broker) -> None:
    """Point 10, one stream."""
    stream = broker.connect(producer("first"))
    stream.say(producer("first", "second"))
    assert [len(answer.settings.publishing.topics) for answer in stream.answers] == [1, 2]


def test_commands_go_to_the_latest_open_stream(broker: Broker) -> None:
    """Point 10, two streams of one client."""
    command = service.TelemetryCommand(
        print_thread_stack_trace_command=service.PrintThreadStackTraceCommand(nonce="n1")
    )
    first, second = broker.connect(producer("orders")), broker.connect(producer("orders"))
    assert broker.telemetry.push(CLIENT, command)
    assert second.answers[-1] == command
    second.call.cancel()
    assert broker.telemetry.push(CLIENT, command)
    assert first.answers[-1] == command
    first.call.cancel()
    assert not broker.telemetry.push(CLIENT, command)
    assert not broker.telemetry.push("nobody", command)


def test_settings_outlive_their_stream(broker: Broker) -> None:
    """Point 11."""
    broker.connect(producer("orders")).half_close()
    response = broker.ask("Heartbeat", service.HeartbeatRequest(), service.HeartbeatResponse)
    assert response.status.code == definition.OK


def test_a_half_closed_stream_is_completed(broker: Broker) -> None:
    stream = broker.connect(producer("orders"))
    stream.half_close()
    assert stream.call.status is GrpcStatus.OK
    assert broker.telemetry.open_streams == 0
    assert broker.clients.push_stream(CLIENT) is None


def test_a_lost_connection_leaves_nothing_after(broker: Broker) -> None:
    stream = broker.connect(producer("orders"))
    stream.call.cancel()
    assert broker.telemetry.open_streams == 0
    assert broker.clients.push_stream(CLIENT) is None
    stream.say(producer("orders"))  # what was on its way when the stream ended
    assert len(stream.answers) == 1


def test_a_consumers_settings_fix_where_it_starts(broker: Broker) -> None:
    """Point 34: a message sent after the start-up of a new group is not missed."""
    broker.connect(consumer("workers", "orders", "payments", kind=definition.SIMPLE_CONSUMER))
    assert broker.subscribed == [("workers", ("orders", "payments"))]


def test_a_fifo_group_makes_its_consumers_fifo(broker: Broker) -> None:
    broker.groups.create(Group("workers", fifo=True, max_attempts=4))
    settings = the_answer(broker.connect(consumer("workers", "orders")))
    assert settings.subscription.fifo
    assert settings.backoff_policy.max_attempts == 4


def test_answers_to_pushed_commands_are_handed_on(broker: Broker) -> None:
    stream = broker.connect(consumer("workers", "orders"))
    answer = service.TelemetryCommand(
        status=definition.Status(code=definition.OK),
        verify_message_result=service.VerifyMessageResult(nonce="n1"),
    )
    stream.say(answer)
    assert broker.command_answers == [(CLIENT, answer)]
    assert len(stream.answers) == 1


def test_other_commands_are_ignored(broker: Broker) -> None:
    stream = broker.connect(producer("orders"))
    stream.say(service.TelemetryCommand())
    stream.say(service.TelemetryCommand(reconnect_endpoints_command=service.ReconnectEndpointsCommand(nonce="n")))
    assert len(stream.answers) == 1
    assert stream.call.status is None


def test_a_client_that_reads_its_answers_late_keeps_its_stream(broker: Broker) -> None:
    stream = broker.open_telemetry(room=1)
    for _ in range(3):
        for _ in range(UNREAD_ANSWERS_MAX):
            stream.say(producer("orders"))
        stream.call.drain()
    assert stream.call.status is None
    assert len(stream.answers) == 3 * UNREAD_ANSWERS_MAX


def test_a_client_that_never_reads_is_cut_off(broker: Broker) -> None:
    stream = broker.open_telemetry(room=1)
    for _ in range(2 * UNREAD_ANSWERS_MAX):
        stream.say(producer("orders"))
    assert stream.call.status is GrpcStatus.RESOURCE_EXHAUSTED
    assert len(stream.answers) <= UNREAD_ANSWERS_MAX + 1


def test_namespaces_and_unknown_fields_come_back_as_sent(broker: Broker) -> None:
    settings = producer()
    settings.publishing.topics.append(resource("orders", "acme"))
    settings.client_properties["team"] = "blue"
    settings.user_agent.language = definition.RUST
    settings.access_point.addresses.add(host="mq.example", port=8081)
    settings.request_timeout.FromMilliseconds(2_500)
    settings.metric.on = True
    answer = the_answer(broker.connect(settings))
    assert answer.publishing.topics == settings.publishing.topics
    assert answer.client_properties == settings.client_properties
    assert answer.user_agent == settings.user_agent
    assert answer.access_point == settings.access_point
    assert answer.request_timeout == settings.request_timeout
    assert answer.HasField("metric")
    assert not answer.metric.on
    known = broker.clients.find(CLIENT)
    assert known is not None
    assert (known.language, known.request_timeout_ms) == ("RUST", 2_500)
