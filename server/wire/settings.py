"""Client settings: the broker's answer, and what it keeps of them (docs/formats/protocol.md, "Telemetry").

Client libraries overwrite their own values with the answer, so a field left out is not "unchanged" but zero: a
`max_body_size` of 0 would block every send.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Final, NamedTuple

from quarry_mq.protocol.limits import WireLimits
from quarry_mq.protocol.lite_attributes import NUMBER_MAX
from quarry_mq.protocol.proto.apache.rocketmq.v2 import definition_pb2 as definition
from quarry_mq.protocol.times import duration, to_ms
from quarry_mq.store.metadata import Backoff, CustomizedBackoff, ExponentialBackoff, Group
from quarry_mq.store.metadata.lite import LiteGroup


class ClientKind(Enum):
    """Kinds of clients; each client's own settings say which it is."""

    PRODUCER = "producer"
    PUSH_CONSUMER = "push consumer"
    SIMPLE_CONSUMER = "simple consumer"
    PULL_CONSUMER = "pull consumer"
    LITE_PUSH_CONSUMER = "lite push consumer"
    LITE_SIMPLE_CONSUMER = "lite simple consumer"


LITE_CONSUMERS: Final = frozenset({ClientKind.LITE_PUSH_CONSUMER, ClientKind.LITE_SIMPLE_CONSUMER})


class Expression(NamedTuple):
    """A filter expression, as the consumer wrote it, selects messages of a topic."""

    text: str
    is_sql: bool = False


@dataclass(frozen=True, slots=True)
class ClientSettings:
    """The broker keeps this part of a client's settings. `topics` are those it publishes or subscribes to.

    `expressions` are a consumer's filters, one for each of its topics; None stands for one too long to be kept.
    """

    kind: ClientKind
    topics: tuple[str, ...]
    group: str | None
    request_timeout_ms: int
    language: str
    version: str
    hostname: str
    expressions: tuple[Expression | None, ...] = ()


REQUEST_TIMEOUT_DEFAULT_MS: Final = 3_000
"""The default of every client library."""

AGENT_TEXT_MAX: Final = 255
"""Characters that are kept of what a client says about itself; they stay in memory as long as the client is known."""

EVERYTHING: Final = Expression("*")

PRODUCER_ATTEMPTS: Final = 3
# libraries throw at a producer without an exponential policy
PRODUCER_BACKOFF: Final = ExponentialBackoff(initial_ms=10, max_ms=1_000, multiplier=2.0)

_KINDS: Final[Mapping[definition.ClientType, ClientKind]] = {
    definition.PRODUCER: ClientKind.PRODUCER,
    definition.PUSH_CONSUMER: ClientKind.PUSH_CONSUMER,
    definition.SIMPLE_CONSUMER: ClientKind.SIMPLE_CONSUMER,
    definition.PULL_CONSUMER: ClientKind.PULL_CONSUMER,
    definition.LITE_PUSH_CONSUMER: ClientKind.LITE_PUSH_CONSUMER,
    definition.LITE_SIMPLE_CONSUMER: ClientKind.LITE_SIMPLE_CONSUMER,
}


def client_settings(settings: definition.Settings) -> ClientSettings:
    """Return what the broker keeps of settings that passed `check_settings`."""
    if settings.HasField("subscription"):
        subscription = settings.subscription
        topics = tuple(entry.topic.name for entry in subscription.subscriptions)
        expressions = tuple(_expression(entry.expression) for entry in subscription.subscriptions)
        group = subscription.group.name
    else:
        topics = tuple(topic.name for topic in settings.publishing.topics)
        expressions = ()
        group = None
    has_timeout = settings.HasField("request_timeout")
    agent = settings.user_agent
    return ClientSettings(
        kind=_KINDS[settings.client_type],
        topics=topics,
        group=group,
        request_timeout_ms=to_ms(settings.request_timeout) if has_timeout else REQUEST_TIMEOUT_DEFAULT_MS,
        language=_language_name(agent.language),
        version=agent.version[:AGENT_TEXT_MAX],
        hostname=agent.hostname[:AGENT_TEXT_MAX],
        expressions=expressions,
    )


def _expression(said: definition.FilterExpression) -> Expression | None:
    """Return the expression, or None if it is long: half of a long expression would mean something else."""
    text, is_sql = said.expression, said.type == definition.SQL
    if is_sql or text not in {"", EVERYTHING.text}:
        return Expression(text, is_sql) if len(text) <= AGENT_TEXT_MAX else None
    return EVERYTHING  # one object for all clients that want every message


def _language_name(language: int) -> str:
    # enums are open: a client newer than this broker may name a language it does not know
    value = definition.Language.DESCRIPTOR.values_by_number.get(language)
    return str(language) if value is None else value.name


def answer_settings(
    settings: definition.Settings, group: Group | None, limits: WireLimits, *, is_lite: bool = False
) -> definition.Settings:
    """Return the client's own settings, overwritten with the broker's values.

    `group` is None for a producer, and for a consumer of a group that does not exist: its own values are then kept, and
    defaults fill those it left out.
    """
    answer = definition.Settings()
    if settings.HasField("publishing"):
        answer.CopyFrom(settings)
        answer.publishing.max_body_size = limits.body_size_max
        answer.publishing.validate_message_type = True
        _fill_policy(answer.backoff_policy, PRODUCER_ATTEMPTS, PRODUCER_BACKOFF)
    elif group is not None:
        answer.CopyFrom(settings)
        _fill_consumer(answer, group, limits, settings.user_agent.language)
    else:
        unknown = Group(settings.subscription.group.name)
        _fill_consumer(answer, unknown, limits, settings.user_agent.language)
        if settings.HasField("backoff_policy"):
            # merging would append to a list of delays instead of replacing it
            answer.ClearField("backoff_policy")
        answer.MergeFrom(settings)
    if is_lite:
        answer.subscription.fifo = True  # each lite topic is consumed in order, whatever its group says
    # otherwise clients would send OpenTelemetry metrics to an endpoint that does not exist
    answer.metric.on = False
    answer.metric.ClearField("endpoints")
    return answer


def _fill_consumer(answer: definition.Settings, group: Group, limits: WireLimits, language: int) -> None:
    _fill_policy(answer.backoff_policy, group.max_attempts, _understood(group.backoff, language))
    subscription = answer.subscription
    subscription.fifo = group.fifo
    subscription.receive_batch_size = limits.batch_size_max
    subscription.long_polling_timeout.CopyFrom(duration(limits.polling_max_ms))
    subscription.lite_subscription_quota = _lite_quota(group, limits)
    subscription.max_lite_topic_size = limits.lite_topic_size_max


def _lite_quota(group: Group, limits: WireLimits) -> int:
    lite = LiteGroup.of(group)
    if lite is None:
        return limits.lite_subscription_quota
    return NUMBER_MAX if lite.client_quota is None else lite.client_quota


def _understood(backoff: Backoff, language: int) -> Backoff:
    """Return the delays in a form that the client understands: Node.js takes a list of delays for a single attempt."""
    if language == definition.NODE_JS and isinstance(backoff, CustomizedBackoff):
        return ExponentialBackoff(backoff.next_ms[0], max(backoff.next_ms))
    return backoff


def _fill_policy(policy: definition.RetryPolicy, max_attempts: int, backoff: Backoff) -> None:
    policy.Clear()
    policy.max_attempts = max_attempts
    match backoff:
        case ExponentialBackoff(initial_ms, max_ms, multiplier):
            policy.exponential_backoff.initial.CopyFrom(duration(initial_ms))
            policy.exponential_backoff.max.CopyFrom(duration(max_ms))
            policy.exponential_backoff.multiplier = multiplier
        case CustomizedBackoff(next_ms):
            policy.customized_backoff.next.extend([duration(each) for each in next_ms])
