"""The broker's answer to client settings (docs/formats/protocol.md, "Telemetry")."""

from __future__ import annotations

import pytest
from google.protobuf.duration_pb2 import Duration

from quarry_mq.protocol.limits import DEFAULT_LIMITS, ENTRIES_MAX, WireLimits
from quarry_mq.protocol.proto.apache.rocketmq.v2 import definition_pb2 as definition
from quarry_mq.server.wire.settings import ClientKind, ClientSettings, Expression, answer_settings, client_settings
from quarry_mq.server.wire.status import Refused
from quarry_mq.server.wire.validate import check_settings
from quarry_mq.store.metadata import ExponentialBackoff, Group
from tests.rpc.broker import consumer, producer

KINDS = {
    definition.PUSH_CONSUMER: ClientKind.PUSH_CONSUMER,
    definition.SIMPLE_CONSUMER: ClientKind.SIMPLE_CONSUMER,
    definition.PULL_CONSUMER: ClientKind.PULL_CONSUMER,
    definition.LITE_PUSH_CONSUMER: ClientKind.LITE_PUSH_CONSUMER,
    definition.LITE_SIMPLE_CONSUMER: ClientKind.LITE_SIMPLE_CONSUMER,
}


def test_a_producers_own_limits_are_overwritten() -> None:
    """Python announces 128 MiB, Java a policy without delays, C++ no type check."""
    sent = producer("orders")
    sent.publishing.max_body_size = 128 << 20
    sent.backoff_policy.max_attempts = 9
    sent.backoff_policy.customized_backoff.next.append(Duration(seconds=1))
    answer = answer_settings(sent, None, WireLimits(body_size_max=1000))
    assert answer.publishing.max_body_size == 1000
    assert answer.publishing.validate_message_type
    assert answer.backoff_policy.max_attempts == 3
    assert answer.backoff_policy.WhichOneof("strategy") == "exponential_backoff"


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_consumer_gets_all_values(kind: definition.ClientType) -> None:
    sent = consumer("workers", "orders", kind=kind)
    sent.subscription.long_polling_timeout.CopyFrom(Duration(seconds=3))
    sent.subscription.fifo = True
    answer = answer_settings(sent, Group("workers", max_attempts=5), DEFAULT_LIMITS)
    assert answer.client_type == kind
    subscription = answer.subscription
    assert subscription.subscriptions == sent.subscription.subscriptions
    assert subscription.group == sent.subscription.group
    assert not subscription.fifo
    assert subscription.receive_batch_size == 32
    assert subscription.long_polling_timeout == Duration(seconds=20)
    assert subscription.lite_subscription_quota == 2_000
    assert subscription.max_lite_topic_size == 64
    assert answer.backoff_policy.max_attempts == 5
    assert answer.backoff_policy.WhichOneof("strategy") == "customized_backoff"


def test_a_group_may_have_exponential_delays() -> None:
    group = Group("workers", backoff=ExponentialBackoff())
    policy = answer_settings(consumer("workers"), group, DEFAULT_LIMITS).backoff_policy.exponential_backoff
    assert policy.initial == Duration(seconds=5)
    assert policy.max == Duration(seconds=7200)
    assert policy.multiplier == 2


def test_clients_of_node_js_get_a_list_of_delays_as_exponential_ones() -> None:
    """They take a list for a single attempt: what a listener of ordered messages fails once would be a dead letter."""
    sent = consumer("workers")
    sent.user_agent.language = definition.NODE_JS
    for group, attempts in ((Group("workers", max_attempts=5), 5), (None, 17)):
        policy = answer_settings(sent, group, DEFAULT_LIMITS).backoff_policy
        assert policy.max_attempts == attempts
        assert policy.exponential_backoff.initial == Duration(seconds=1)
        assert policy.exponential_backoff.max == Duration(seconds=7200)
        assert policy.exponential_backoff.multiplier == 2
    own = Group("workers", backoff=ExponentialBackoff(initial_ms=3_000))
    policy = answer_settings(sent, own, DEFAULT_LIMITS).backoff_policy
    assert policy.exponential_backoff.initial == Duration(seconds=3)


def test_the_own_values_of_an_unknown_groups_consumer_stand() -> None:
    sent = consumer("workers", "orders")
    sent.subscription.fifo = True
    sent.backoff_policy.max_attempts = 2
    sent.backoff_policy.customized_backoff.next.append(Duration(seconds=9))
    answer = answer_settings(sent, None, DEFAULT_LIMITS)
    assert answer.subscription.fifo
    assert answer.backoff_policy == sent.backoff_policy
    assert answer.subscription.receive_batch_size == 32
    assert answer.subscription.long_polling_timeout == Duration(seconds=20)
    assert len(answer.subscription.subscriptions) == 1
    assert answer.subscription.group.name == "workers"


def test_an_unknown_group_has_the_default_delays() -> None:
    policy = answer_settings(consumer("workers"), None, DEFAULT_LIMITS).backoff_policy
    assert policy.max_attempts == 17
    assert len(policy.customized_backoff.next) == 18
    assert all(delay.nanos == 0 for delay in policy.customized_backoff.next)


def test_metrics_are_switched_off() -> None:
    sent = producer()
    sent.metric.on = True
    sent.metric.endpoints.addresses.add(host="collector", port=4317)
    metric = answer_settings(sent, None, DEFAULT_LIMITS).metric
    assert not metric.on
    assert not metric.HasField("endpoints")


def test_the_clients_message_is_not_changed() -> None:
    sent = consumer("workers", "orders")
    before = sent.SerializeToString(deterministic=True)
    answer_settings(sent, Group("workers"), DEFAULT_LIMITS)
    assert sent.SerializeToString(deterministic=True) == before


@pytest.mark.parametrize(("sent", "kept"), KINDS.items())
def test_what_is_kept_of_a_consumer(sent: definition.ClientType, kept: ClientKind) -> None:
    settings = consumer("workers", "orders", "payments", kind=sent)
    settings.user_agent.language = definition.PYTHON
    settings.user_agent.version = "5.1.2"
    settings.user_agent.hostname = "host"
    settings.request_timeout.CopyFrom(Duration(seconds=10))
    assert client_settings(settings) == ClientSettings(
        kind=kept,
        topics=("orders", "payments"),
        group="workers",
        request_timeout_ms=10_000,
        language="PYTHON",
        version="5.1.2",
        hostname="host",
        expressions=(Expression("*"), Expression("*")),
    )


def test_what_a_consumer_wants_is_kept_in_its_words_unless_they_are_too_many() -> None:
    settings = consumer("workers", "all", "tags", "sql", "long")
    expressions = [each.expression for each in settings.subscription.subscriptions]
    expressions[1].CopyFrom(definition.FilterExpression(type=definition.TAG, expression="a || b"))
    expressions[2].CopyFrom(definition.FilterExpression(type=definition.SQL, expression="a = 1"))
    expressions[3].CopyFrom(definition.FilterExpression(type=definition.TAG, expression="x" * 256))
    assert client_settings(settings).expressions == (
        Expression("*"),
        Expression("a || b"),
        Expression("a = 1", is_sql=True),
        None,
    )


def test_what_is_kept_of_a_producer() -> None:
    settings = producer("orders")
    settings.user_agent.language = 77  # type: ignore[assignment]
    kept = client_settings(settings)
    assert (kept.kind, kept.topics, kept.group) == (ClientKind.PRODUCER, ("orders",), None)
    assert kept.request_timeout_ms == 3_000
    assert kept.language == "77"


def test_little_is_kept_of_a_client_that_says_much_about_itself() -> None:
    """What is kept stays in memory as long as the client is known; a request may hold 16 MiB of it."""
    settings = producer()
    settings.user_agent.version = settings.user_agent.hostname = "v" * 100_000
    kept = client_settings(settings)
    assert (len(kept.version), len(kept.hostname)) == (255, 255)


def test_settings_of_countless_topics_are_refused() -> None:
    for settings in (producer(*["t"] * (ENTRIES_MAX + 1)), consumer("workers", *["t"] * (ENTRIES_MAX + 1))):
        with pytest.raises(Refused) as refused:
            check_settings(settings)
        assert refused.value.code == definition.PAYLOAD_TOO_LARGE
    check_settings(consumer("workers", *["t"] * ENTRIES_MAX))
