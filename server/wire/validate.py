"""The protocol's limits on requests. Each check raises `Refused` with the protocol's code, or an illegal name's error.

The order of the checks is the protocol's: the first broken rule decides the code.

The properties of a record have 32,767 bytes, and some of them are reserved for properties that a message gets later. A
message that is delivered late, committed, given to a group again, dead-lettered or sent once more is copied each time,
and each copy adds properties on where it comes from. So a message is accepted only if everything it may ever get fits
beside what its sender gave it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sized
from functools import lru_cache
from typing import Final, NamedTuple, NoReturn

from quarry_mq.protocol.limits import (
    BORN_HOST_SIZE_MAX,
    ENTRIES_MAX,
    MESSAGE_ID_SIZE_MAX,
    NAME_SIZE_MAX,
    SETTINGS_SQL_MAX,
    TRACE_CONTEXT_SIZE_MAX,
    WireLimits,
)
from quarry_mq.protocol.messages import property_names as reserved
from quarry_mq.protocol.messages.property_names import LIGHT_QUEUES, RESERVED_PREFIX, RESERVED_PROPERTIES
from quarry_mq.protocol.names import ALPHABET, GROUP_NAME_MAX, TOPIC_NAME_MAX, is_blank, is_in_alphabet
from quarry_mq.protocol.proto.apache.rocketmq.v2 import definition_pb2 as definition
from quarry_mq.protocol.proto.apache.rocketmq.v2 import service_pb2 as service
from quarry_mq.protocol.times import to_ms
from quarry_mq.server.filters import IllegalExpression, MessageFilter, SqlFilter, TagFilter
from quarry_mq.server.wire.message_types import derive_message_type
from quarry_mq.server.wire.parsing import check_texts
from quarry_mq.server.wire.status import Refused
from quarry_mq.store.metadata import IllegalGroupName, IllegalTopicName, check_group_name, check_topic_name
from quarry_mq.store.record.layout import CRC_PROPERTY_SIZE, PROPERTIES_LENGTH_MAXIMUM

_NUMBER_SIZE: Final = 20
"""Characters of a number of 64 bits with a sign."""
LIGHT_QUEUE_OFFSET_SIZE: Final = _NUMBER_SIZE
"""Bytes that a record needs for the offset in each light queue that it names, with a comma."""
_SEPARATORS_SIZE: Final = 2
"""Bytes of the separators of each property."""

_PLACE_SIZE: Final = NAME_SIZE_MAX + 2 * (1 + _NUMBER_SIZE)
MARKS: Final[Mapping[str, int]] = {
    reserved.RESENT_FROM: _PLACE_SIZE,
    reserved.RESENT_ID: MESSAGE_ID_SIZE_MAX,
    reserved.REPLAYED_FROM: _PLACE_SIZE,
    reserved.REPLAYED_ID: MESSAGE_ID_SIZE_MAX,
}
"""User properties that mark a message as a copy that was sent again, and the size of the largest value.

They do not count against the number of properties a message may have, so every accepted message can be sent again.
"""

ADDED_LATER: Final[Mapping[str, int]] = {
    reserved.REAL_TOPIC: NAME_SIZE_MAX,
    reserved.REAL_QUEUE: _NUMBER_SIZE,
    reserved.DELIVER_AT_MS: _NUMBER_SIZE,
    reserved.TIMER_OUT_MS: _NUMBER_SIZE,
    reserved.DEQUEUED_MS: _NUMBER_SIZE,
    reserved.ROLL_TIMES: _NUMBER_SIZE,
    reserved.TRANSACTION_ID: MESSAGE_ID_SIZE_MAX,
    reserved.DEAD_LETTER_TOPIC: NAME_SIZE_MAX,
    reserved.DEAD_LETTER_MESSAGE_ID: MESSAGE_ID_SIZE_MAX,
    reserved.ORIGIN_GROUP: NAME_SIZE_MAX,
    reserved.RETRY_TOPIC: NAME_SIZE_MAX,
    **MARKS,
}
"""Properties that the copies of a message may have beside its own, and the size of the largest value."""

_FROM_FIELDS: Final[Mapping[str, int]] = {
    reserved.TAGS: 0,  # counted with the user properties, as the keys are
    reserved.KEYS: ENTRIES_MAX,
    reserved.UNIQUE_KEY: MESSAGE_ID_SIZE_MAX,
    reserved.PRODUCER_GROUP: NAME_SIZE_MAX,
    reserved.BORN_TIMESTAMP: _NUMBER_SIZE,
    reserved.BORN_HOST: BORN_HOST_SIZE_MAX,
    reserved.TRANSACTION: len("true"),
    reserved.TRANSACTION_RECOVERY_S: _NUMBER_SIZE,
    reserved.MESSAGE_GROUP: 0,  # as large as a setting allows
    reserved.PRIORITY: _NUMBER_SIZE,
    reserved.LITE_TOPIC: NAME_SIZE_MAX,
    reserved.LIGHT_QUEUES: NAME_SIZE_MAX,  # the name for a lite topic; other names are user properties
    reserved.LIGHT_QUEUE_OFFSETS: LIGHT_QUEUE_OFFSET_SIZE,
    reserved.TRACE_CONTEXT: TRACE_CONTEXT_SIZE_MAX,
    reserved.RECONSUME_TIMES: _NUMBER_SIZE,
}
"""Properties made from other fields of a message, and the size of the largest value that is not counted elsewhere."""


def _size_of(properties: Mapping[str, int]) -> int:
    return sum(len(name) + size + _SEPARATORS_SIZE for name, size in properties.items())


ROOM_FOR_LATER: Final = _size_of(ADDED_LATER) + len("\x02") + CRC_PROPERTY_SIZE
"""Bytes of a record's properties that accepted messages leave free."""
ROOM_FOR_SENDERS: Final = PROPERTIES_LENGTH_MAXIMUM - ROOM_FOR_LATER - _size_of(_FROM_FIELDS)
"""Bytes that the settings may divide among user properties, tag, keys and message group."""


def uncounted(properties: Mapping[str, str]) -> tuple[int, int]:
    """Return how many of the user properties are marks, and how many of their bytes do not count."""
    found = [name for name in MARKS if name in properties]
    return len(found), sum(len(name) + min(len(properties[name].encode()), MARKS[name]) for name in found)


def needed_by(*, properties_count: int, properties_size: int, message_group_size: int) -> int:
    """Return how many bytes of `ROOM_FOR_SENDERS` a message may take with these settings."""
    return properties_count * _SEPARATORS_SIZE + properties_size + message_group_size


NAME_SHOWN_MAX: Final = 60
POLLING_CODE_SINCE: Final = "5.0.3"
"""Clients before this version do not know ILLEGAL_POLLING_TIME. Versions are compared as text, as RocketMQ does."""

_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f-\x9f]")
_LITE_TOPIC: Final = re.compile(r"[A-Za-z0-9_-]+")


# faults of names, in RocketMQ's words: programs written for RocketMQ look for them


def topic_fault(name: str) -> str:
    """Return why no client may use the name for a topic."""
    if is_blank(name):
        return "The specified topic is blank"
    if len(name) > TOPIC_NAME_MAX:
        return f"The specified topic is longer than topic max length {TOPIC_NAME_MAX}."
    if not is_in_alphabet(name):
        return f"The specified topic[{_shown(name)}] contains illegal characters, allowing only {ALPHABET}"
    return "cannot access system topic"


def group_fault(name: str) -> str:
    """Return why no client may use the name for a consumer group."""
    if is_blank(name):
        return "the specified group is blank"
    if len(name) > GROUP_NAME_MAX:
        return f"the specified group[{_shown(name)}] is longer than group max length: {GROUP_NAME_MAX}."
    if not is_in_alphabet(name):
        return f"the specified group[{_shown(name)}] contains illegal characters, allowing only {ALPHABET}"
    return "cannot use system consumer group"


def _shown(name: str) -> str:
    """Return the name cut, and without characters that could affect a terminal."""
    return "".join(each if each.isprintable() else "\ufffd" for each in name[:NAME_SHOWN_MAX])


class CheckedMessage(NamedTuple):
    """A message within the limits, with the parts that were copied out of protobuf for the checks."""

    message: definition.Message
    type: definition.MessageType
    user_properties: dict[str, str]
    keys: list[str]


class CheckedSend(NamedTuple):
    """The messages of a send, and the topic that they share."""

    topic: str
    messages: list[CheckedMessage]

    @property
    def types(self) -> list[definition.MessageType]:
        return [each.type for each in self.messages]

    @property
    def ordered_group(self) -> str:
        """Return the message group or lite topic of the first message, which decides the queue of all; empty without
        order.
        """
        first = self.messages[0]
        system = first.message.system_properties
        if first.type == definition.LITE:
            return system.lite_topic
        return system.message_group if first.type == definition.FIFO else ""


class ReceiveTerms(NamedTuple):
    """The terms of a receive, with limits applied. If `invisible_ms` is None, the broker chooses it and renews the
    lease.
    """

    topic: str
    group: str
    filter: MessageFilter
    batch_size: int
    invisible_ms: int | None
    polling_ms: int
    attempt_id: str | None


class AckTerms(NamedTuple):
    """The topic and group of an acknowledgement; its entries stay in the request."""

    topic: str
    group: str


class ChangeTerms(NamedTuple):
    """The terms under which a delivered message is hidden from now on, and for how long."""

    topic: str
    group: str
    receipt_handle: str
    invisible_ms: int


@lru_cache(maxsize=4096)
def check_topic(name: str) -> None:
    """Raise IllegalTopicName for a bad name. Good names are cached: senders repeat them a million times."""
    try:
        check_topic_name(name)
    except IllegalTopicName as error:
        raise IllegalTopicName(f"{topic_fault(name)} ({error})") from None


@lru_cache(maxsize=4096)
def check_group(name: str) -> None:
    """Raise IllegalGroupName for a bad name. Good names are cached."""
    try:
        check_group_name(name)
    except IllegalGroupName as error:
        raise IllegalGroupName(f"{group_fault(name)} ({error})") from None


def check_count(entries: Sized, name: str) -> None:
    """Raise Refused (PAYLOAD_TOO_LARGE) for more than `ENTRIES_MAX` entries, before each of them is looked at."""
    if len(entries) > ENTRIES_MAX:
        raise Refused(definition.PAYLOAD_TOO_LARGE, f"{len(entries)} {name}, at most {ENTRIES_MAX} are allowed")


def has_control_character(text: str) -> bool:
    """Return whether one of U+0000..U+001F, U+007F..U+009F is in the text."""
    # almost every text is printable, and this check is many times faster than a search
    return not text.isprintable() and _CONTROL.search(text) is not None


def check_send(request: service.SendMessageRequest, limits: WireLimits, now_ms: int) -> CheckedSend:
    """Check everything about a send that can be checked without the settings of its topic."""
    check_count(request.messages, "messages")
    messages = request.messages[:]
    if not messages:
        raise Refused(definition.MESSAGE_CORRUPTED, "no message to send: the request contains no message")
    topic = messages[0].topic.name
    check_topic(topic)
    if len(messages) > 1 and any(each.topic.name != topic for each in messages):
        raise Refused(
            definition.MESSAGE_CORRUPTED,
            "topic in message is not same: the messages of one request must have one topic",
        )
    for each in messages:
        if each.topic.resource_namespace:
            check_texts(each.topic)
    return CheckedSend(topic, [_check_message(each, limits, now_ms) for each in messages])


def _check_message(message: definition.Message, limits: WireLimits, now_ms: int) -> CheckedMessage:
    body_size = len(message.body)
    if body_size > limits.body_size_max:
        raise Refused(
            definition.MESSAGE_BODY_TOO_LARGE,
            f"message body cannot exceed the max {limits.body_size_max}: the body has {body_size} bytes",
        )
    if not body_size and not limits.accept_empty_body:
        raise Refused(definition.MESSAGE_BODY_EMPTY, "message body cannot be empty")
    system = message.system_properties
    user_properties = _checked_user_properties(message, limits)
    keys = system.keys[:]
    _check_labels(user_properties, system.tag, keys, limits)
    message_id = system.message_id
    if is_blank(message_id) or has_control_character(message_id):
        fault = "cannot be empty" if is_blank(message_id) else "cannot contain control character"
        raise Refused(definition.ILLEGAL_MESSAGE_ID, f"message id {fault}")
    if system.ByteSize() > MESSAGE_ID_SIZE_MAX:  # the smallest of their bounds
        check_texts(system)
    kind = derive_message_type(system)
    if kind != definition.NORMAL:
        _check_special(system, limits, now_ms)
    if has_control_character(system.trace_context):
        raise Refused(definition.BAD_REQUEST, "the trace context contains a control character")
    return CheckedMessage(message, kind, user_properties, keys)


def _checked_user_properties(message: definition.Message, limits: WireLimits) -> dict[str, str]:
    found = message.user_properties
    count = len(found)
    if not count:
        return {}
    if count > limits.user_properties_max and count - uncounted(found)[0] > limits.user_properties_max:
        raise Refused(
            definition.MESSAGE_PROPERTIES_TOO_LARGE,
            f"too many user properties, max is {limits.user_properties_max}: the message has {count}",
        )
    # three times as fast as dict(found)
    properties = {name: found[name] for name in found}
    if not RESERVED_PROPERTIES.isdisjoint(properties) or "" in properties:
        _refuse_names(properties)
    for name, value in properties.items():
        if not (name.isprintable() and value.isprintable()) and _CONTROL.search(name + value):
            part = "key" if _CONTROL.search(name) else "value"
            raise Refused(
                definition.ILLEGAL_MESSAGE_PROPERTY_KEY, f"the {part} of property cannot contain control character"
            )
        if name.startswith(RESERVED_PREFIX):
            _refuse_names(properties)
    return properties


def _check_labels(user_properties: dict[str, str], tag: str, keys: list[str], limits: WireLimits) -> None:
    """Check the tag and the keys, and the size that they share with the user properties."""
    if tag and (is_blank(tag) or "|" in tag or has_control_character(tag)):
        fault = _text_fault(tag) or "cannot contain '|'"
        raise Refused(definition.ILLEGAL_MESSAGE_TAG, f"tag {fault}")
    if len(keys) > ENTRIES_MAX:
        raise Refused(definition.MESSAGE_PROPERTIES_TOO_LARGE, f"{len(keys)} keys, at most {ENTRIES_MAX} are allowed")
    for key in keys:
        if key and (is_blank(key) or has_control_character(key)):
            raise Refused(definition.ILLEGAL_MESSAGE_KEY, f"key {_text_fault(key)}")
    text = "".join([tag, *keys, *user_properties, *user_properties.values()])
    size = len(text) if text.isascii() else len(text.encode())
    if not MARKS.keys().isdisjoint(user_properties):
        size -= uncounted(user_properties)[1]
    if LIGHT_QUEUES in user_properties:
        size += _offsets_size(user_properties[LIGHT_QUEUES])
    if size > limits.user_properties_size_max:
        raise Refused(
            definition.MESSAGE_PROPERTIES_TOO_LARGE,
            f"the total size of user property is too large, max is {limits.user_properties_size_max}: "
            f"user properties, tag and keys have {size} bytes",
        )


def _offsets_size(light_queues: str) -> int:
    """Return the bytes of the offsets of the light queues. Raises Refused for a name that is too long."""
    names = light_queues.split(",")
    if any(len(name.encode()) > NAME_SIZE_MAX for name in names):
        raise Refused(
            definition.ILLEGAL_MESSAGE_PROPERTY_KEY,
            f"user property {LIGHT_QUEUES}: the name of a light queue has more than {NAME_SIZE_MAX} bytes",
        )
    return LIGHT_QUEUE_OFFSET_SIZE * len(names)


def _check_special(system: definition.SystemProperties, limits: WireLimits, now_ms: int) -> None:
    """Check the fields that only messages other than NORMAL can have."""
    if system.message_type == definition.TRANSACTION:
        _check_transaction(system, limits)
    if system.HasField("delivery_timestamp"):
        _check_delivery_time(system, limits, now_ms)
    message_group = system.message_group
    if message_group and (
        is_blank(message_group)
        or len(message_group.encode()) > limits.message_group_size_max
        or has_control_character(message_group)
    ):
        fault = _text_fault(message_group) or f"exceed the max size {limits.message_group_size_max}"
        raise Refused(definition.ILLEGAL_MESSAGE_GROUP, f"message group {fault}")
    if system.lite_topic:
        check_lite_topic(system.lite_topic, limits)
    if system.priority < 0:
        raise Refused(definition.BAD_REQUEST, f"the priority is negative: {system.priority}")


def _text_fault(text: str) -> str | None:
    if is_blank(text):
        return "cannot be the char sequence of whitespace"
    return "cannot contain control character" if has_control_character(text) else None


def _refuse_names(names: Iterable[str]) -> None:
    for name in names:
        if not name:
            raise Refused(definition.ILLEGAL_MESSAGE_PROPERTY_KEY, "a user property has no name")
        if name in RESERVED_PROPERTIES or name.startswith(RESERVED_PREFIX):
            raise Refused(
                definition.ILLEGAL_MESSAGE_PROPERTY_KEY,
                f"property is used by system: {name[:NAME_SHOWN_MAX]}",
            )


def _check_transaction(properties: definition.SystemProperties, limits: WireLimits) -> None:
    if properties.HasField("orphaned_transaction_recovery_duration"):
        recovery_ms = to_ms(properties.orphaned_transaction_recovery_duration)
        if not 0 <= recovery_ms <= limits.transaction_recovery_max_ms:
            raise Refused(
                definition.BAD_REQUEST,
                "the max transaction recovery time of message is too large, max is "
                f"{limits.transaction_recovery_max_ms // 1000}: it is {recovery_ms} ms; 0 to "
                f"{limits.transaction_recovery_max_ms} ms are allowed",
            )


def _check_delivery_time(properties: definition.SystemProperties, limits: WireLimits, now_ms: int) -> None:
    delay_ms = to_ms(properties.delivery_timestamp) - now_ms
    if delay_ms > limits.delivery_delay_max_ms:
        raise Refused(
            definition.ILLEGAL_DELIVERY_TIME,
            f"the max delay time of message is too large, max is {limits.delivery_delay_max_ms}: it is {delay_ms} ms",
        )


def check_lite_topic(name: str, limits: WireLimits) -> None:
    """Raise Refused (ILLEGAL_LITE_TOPIC) for a bad name."""
    if len(name) > limits.lite_topic_size_max or not _LITE_TOPIC.fullmatch(name):
        raise Refused(
            definition.ILLEGAL_LITE_TOPIC,
            f"a lite topic has 1 to {limits.lite_topic_size_max} letters, digits, underscores or hyphens",
        )


def check_receive(
    request: service.ReceiveMessageRequest,
    limits: WireLimits,
    *,
    remaining_s: float | None,
    request_timeout_ms: int,
    client_version: str,
) -> ReceiveTerms:
    """Return the terms of a receive. `remaining_s` is what is left of the client's deadline, None without one."""
    polling_ms = _polling_ms(request, limits, remaining_s, request_timeout_ms, client_version)
    topic = request.message_queue.topic.name
    check_topic(topic)
    group = request.group.name
    check_group(group)
    invisible_ms = None
    if not request.auto_renew:
        invisible_ms = to_ms(request.invisible_duration)
        if not limits.invisible_min_ms <= invisible_ms <= limits.invisible_max_ms:
            _refuse_invisible(invisible_ms, limits.invisible_min_ms, limits.invisible_max_ms)
    return ReceiveTerms(
        topic=topic,
        group=group,
        filter=check_filter(request.filter_expression),
        batch_size=min(max(request.batch_size, 1), limits.batch_size_max),
        invisible_ms=invisible_ms,
        polling_ms=polling_ms,
        attempt_id=request.attempt_id if request.HasField("attempt_id") else None,
    )


def _polling_ms(
    request: service.ReceiveMessageRequest,
    limits: WireLimits,
    remaining_s: float | None,
    request_timeout_ms: int,
    client_version: str,
) -> int:
    without_deadline_ms = limits.polling_max_ms + request_timeout_ms
    remaining_ms = without_deadline_ms if remaining_s is None else int(remaining_s * 1000)
    if request.HasField("long_polling_timeout"):
        wanted_ms = to_ms(request.long_polling_timeout)
    else:
        wanted_ms = remaining_ms - request_timeout_ms // 2
    polling_ms = min(max(wanted_ms, limits.polling_min_ms), limits.polling_max_ms)
    if limits.strict_polling and polling_ms > remaining_ms < limits.polling_min_ms:
        code = definition.ILLEGAL_POLLING_TIME
        if client_version < POLLING_CODE_SINCE:
            code = definition.BAD_REQUEST
        raise Refused(
            code,
            "The deadline time remaining is not enough for polling, please check network condition: "
            f"the deadline leaves {remaining_ms} ms, at least {limits.polling_min_ms} ms are needed",
        )
    return max(0, min(polling_ms, remaining_ms - limits.polling_reserve_ms))


def check_filter(expression: definition.FilterExpression) -> MessageFilter:
    """Return the filter of an expression, which lets all messages pass if it is empty. Raises IllegalExpression."""
    try:
        if expression.type == definition.SQL:
            return SqlFilter.parse(expression.expression)
        return TagFilter.parse(expression.expression)
    except IllegalExpression as error:
        raise IllegalExpression(f"expression format is not correct: {error}") from None


def _check_expressions(entries: Iterable[definition.SubscriptionEntry]) -> None:
    """Check the size of all SQL together, before any of it is parsed. Raises Refused (PAYLOAD_TOO_LARGE)."""
    size = sum(len(each.expression.expression) for each in entries if each.expression.type == definition.SQL)
    if size > SETTINGS_SQL_MAX:
        raise Refused(
            definition.PAYLOAD_TOO_LARGE,
            f"{size} characters of SQL, at most {SETTINGS_SQL_MAX} are allowed",
        )


def _refuse_invisible(asked_ms: int, min_ms: int, max_ms: int) -> NoReturn:
    bound = f"large. max is {max_ms}" if asked_ms > max_ms else f"small. min is {min_ms}"
    raise Refused(definition.ILLEGAL_INVISIBLE_TIME, f"the invisibleTime is too {bound}: it is {asked_ms} ms")


def check_ack(request: service.AckMessageRequest) -> AckTerms:
    """Return the terms of an acknowledgement. Raises for illegal names, and for a request without or with too many
    entries.
    """
    topic = request.topic.name
    check_topic(topic)
    group = request.group.name
    check_group(group)
    if not request.entries:
        raise Refused(definition.BAD_REQUEST, "ack message result is empty: the request names no message")
    check_count(request.entries, "entries")
    return AckTerms(topic, group)


def check_change(request: service.ChangeInvisibleDurationRequest, limits: WireLimits) -> ChangeTerms:
    """Return the terms of a change. Zero means visible at once; the minimum for receives does not apply here."""
    topic = request.topic.name
    check_topic(topic)
    group = request.group.name
    check_group(group)
    invisible_ms = to_ms(request.invisible_duration)
    if not 0 <= invisible_ms <= limits.invisible_max_ms:
        _refuse_invisible(invisible_ms, 0, limits.invisible_max_ms)
    return ChangeTerms(topic, group, request.receipt_handle, invisible_ms)


_CONSUMERS: Final = frozenset(
    {
        definition.PUSH_CONSUMER,
        definition.SIMPLE_CONSUMER,
        definition.PULL_CONSUMER,
        definition.LITE_PUSH_CONSUMER,
        definition.LITE_SIMPLE_CONSUMER,
    }
)


def check_settings(settings: definition.Settings) -> None:
    """Raise Refused, or an illegal name's error, if no client may register with these settings.

    The topics and the group need not exist.
    """
    match settings.WhichOneof("pub_sub"):
        case "publishing":
            if settings.client_type != definition.PRODUCER:
                raise Refused(definition.BAD_REQUEST, "publishing settings of a client that is not a producer")
            check_count(settings.publishing.topics, "topics")
            for topic in settings.publishing.topics:
                check_topic(topic.name)
        case "subscription":
            if settings.client_type not in _CONSUMERS:
                raise Refused(definition.BAD_REQUEST, "subscription settings of a client that is not a consumer")
            check_group(settings.subscription.group.name)
            check_count(settings.subscription.subscriptions, "subscriptions")
            _check_expressions(settings.subscription.subscriptions)
            for entry in settings.subscription.subscriptions:
                check_topic(entry.topic.name)
                check_filter(entry.expression)
        case _:
            raise Refused(definition.BAD_REQUEST, "the settings are neither publishing nor subscription")
