"""Conversion between RocketMQ's rows and Quarry's, in both directions: topics, subscription groups, consumer offsets.

An invalid row of RocketMQ's is skipped with a warning: the rest of the store must still open (rmq#9705).

In rows that are written for RocketMQ, fields that RocketMQ keeps and Quarry does not are taken from RocketMQ's earlier
row, or have RocketMQ's default.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

from quarry_mq.protocol.names import (
    DEAD_LETTER_PREFIX,
    REPLY_TOPIC_SUFFIX,
    RETRY_PREFIX,
    is_light_queue,
    is_system_group,
    is_system_topic,
)
from quarry_mq.store.message import QUEUE_NUMBER_MAX, QueueId, QueueOffset
from quarry_mq.store.metadata import (
    Backoff,
    CustomizedBackoff,
    ExponentialBackoff,
    Group,
    IllegalGroupName,
    IllegalTopicName,
    Permission,
    Topic,
    TopicType,
    check_group_name,
)
from quarry_mq.store.metadata.groups import ATTEMPTS_MAX, backoff_fault
from quarry_mq.store.metadata.topics import SYSTEM_ATTRIBUTE, check_internal_topic_name
from quarry_mq.store.rocketmq.model import ConsumerOffset, Warnings
from quarry_mq.store.rocketmq.sources import Source

TYPE_ATTRIBUTE: Final = "message.type"
ORDER_ATTRIBUTE: Final = "order"
"""The attribute for the `order` flag of RocketMQ's topic, which has no field here."""

INHERIT_BIT: Final = 1
"""The permission bit of topics whose settings are inherited by others: the template, the cluster, the broker."""

READ_WRITE_BITS: Final = 6
OFFSET_MAX: Final = 2**63 - 1

_TYPES: Final = {each.value: each for each in TopicType} | {"unspecified": TopicType.MIXED}
_UNSUPPORTED_ATTRIBUTES: Final = (("queue.type", "BatchCQ"), ("cleanup.policy", "COMPACTION"))


class UnreadableRow(ValueError):
    """The row cannot be a row of its table; the message says why."""


def topics_of(source: Source, warnings: Warnings) -> Iterator[Topic]:
    """Yield the source's topics. The broker's own topics are kept and marked as such (`Topic.is_system`)."""
    templates = {
        name
        for name, row in source.rows.items()
        if isinstance(row, dict) and type(row.get("perm")) is int and row["perm"] & INHERIT_BIT
    }
    for name, row in source.rows.items():
        try:
            topic = topic_from(name, row, templates)
        except (UnreadableRow, IllegalTopicName) as cause:
            warnings.add(f"{source.name}: topic {name!r} was skipped: {cause}")
            continue
        if (row.get("attributes") or {}).get(TYPE_ATTRIBUTE, "NORMAL").lower() not in _TYPES:
            warnings.add(f"{source.name}: topic {name!r} has an unknown {TYPE_ATTRIBUTE} and now accepts all messages")
        if not (topic.is_for_clients or topic.is_system or name.startswith((RETRY_PREFIX, DEAD_LETTER_PREFIX))):
            warnings.add(
                f"{source.name}: topic {name!r} has a name that no client may use: send its messages to another topic"
            )
        for attribute, value in _UNSUPPORTED_ATTRIBUTES:
            if topic.attributes.get(attribute) == value:
                warnings.add(f"{source.name}: topic {name!r} has {attribute}={value}, which has no effect here")
        yield topic


def topic_from(name: str, row: object, templates: set[str]) -> Topic:
    """Convert a topic. Raises UnreadableRow or IllegalTopicName.

    A topic without `message.type` becomes MIXED: RocketMQ accepted every message for it.
    """
    fields = _fields(row)
    check_internal_topic_name(name)
    if is_light_queue(name):
        raise UnreadableRow("light queues are not topics")
    attributes = _texts(fields.get("attributes"))
    type_name = attributes.pop(TYPE_ATTRIBUTE, "").lower()
    if fields.get("order") is True:
        attributes[ORDER_ATTRIBUTE] = "true"
    own = name in templates or name.removesuffix(REPLY_TOPIC_SUFFIX) in templates
    if own and not is_system_topic(name):
        attributes[SYSTEM_ATTRIBUTE] = "true"
    return Topic(
        name,
        _TYPES.get(type_name, TopicType.MIXED),
        _integer(fields, "readQueueNums", 0, QUEUE_NUMBER_MAX),
        _integer(fields, "writeQueueNums", 0, QUEUE_NUMBER_MAX),
        Permission(_integer(fields, "perm", 0, QUEUE_NUMBER_MAX) & READ_WRITE_BITS),
        attributes,
    )


def groups_of(source: Source, warnings: Warnings) -> Iterator[Group]:
    """Yield the source's subscription groups, including RocketMQ's own."""
    for name, row in source.rows.items():
        try:
            group = group_from(name, row)
        except (UnreadableRow, IllegalGroupName) as cause:
            warnings.add(f"{source.name}: group {name!r} was skipped: {cause}")
            continue
        fault = backoff_fault(group.backoff)
        if fault is not None:
            warnings.add(
                f"{source.name}: group {name!r} gets the default delays because its own are out of range: {fault}"
            )
            group = Group(name, group.fifo, group.max_attempts, group.enabled, CustomizedBackoff(), group.attributes)
        yield group
    for name in source.forbidden:
        if source.forbidden[name]:
            warnings.add(f"{source.name}: group {name!r} is denied some topics, which has no effect here")


def group_from(name: str, row: object) -> Group:
    """Convert a group. Raises UnreadableRow or IllegalGroupName. `retryMaxTimes` counts the deliveries
    after the first.
    """
    fields = _fields(row)
    _check_group_name(name)
    retries = _integer(fields, "retryMaxTimes", -QUEUE_NUMBER_MAX, QUEUE_NUMBER_MAX)
    return Group(
        name,
        fifo=fields.get("consumeMessageOrderly") is True,
        max_attempts=min(max(retries, 0) + 1, ATTEMPTS_MAX),
        enabled=fields.get("consumeEnable") is not False,
        backoff=_backoff(fields.get("groupRetryPolicy")),
        attributes=_texts(fields.get("attributes")),
    )


def offsets_of(source: Source, warnings: Warnings) -> Iterator[ConsumerOffset]:
    """Yield the source's consumer offsets, from rows `topic@group` -> queue number -> next offset."""
    for key, row in source.rows.items():
        topic, separator, group = key.partition("@")
        if not (topic and separator and group) or "@" in group:
            warnings.add(f"{source.name}: offsets of {key!r} were skipped: not topic@group")
            continue
        if not isinstance(row, dict):
            warnings.add(f"{source.name}: offsets of {key!r} were skipped: not a map")
            continue
        try:
            _check_group_name(group)
        except IllegalGroupName as cause:
            warnings.add(f"{source.name}: offsets of {key!r} were skipped: {cause}")
            continue
        for number, offset in row.items():
            if not (number.isascii() and number.isdecimal() and int(number) <= QUEUE_NUMBER_MAX):
                warnings.add(f"{source.name}: offset of {key!r}, queue {number!r}: not a queue number")
            elif type(offset) is not int or not 0 <= offset <= OFFSET_MAX:
                warnings.add(f"{source.name}: offset of {key!r}, queue {number}: {offset!r} is not an offset")
            else:
                yield ConsumerOffset(group, QueueId(topic, int(number)), QueueOffset(offset))


def _backoff(policy: object) -> Backoff:
    """Return the policy as RocketMQ reads it: a policy without its own numbers is the default list."""
    if isinstance(policy, dict):
        exponential = policy.get("exponentialRetryPolicy")
        customized = policy.get("customizedRetryPolicy")
        if policy.get("type") == "EXPONENTIAL" and isinstance(exponential, dict):
            default = ExponentialBackoff()
            return ExponentialBackoff(
                _integer(exponential, "initial", 0, OFFSET_MAX, default.initial_ms),
                _integer(exponential, "max", 0, OFFSET_MAX, default.max_ms),
                float(_integer(exponential, "multiplier", 0, OFFSET_MAX, int(default.multiplier))),
            )
        if policy.get("type") != "EXPONENTIAL" and isinstance(customized, dict):
            delays = customized.get("next")
            if not isinstance(delays, list) or not all(type(each) is int for each in delays):
                raise UnreadableRow(f"customizedRetryPolicy.next is {delays!r}, not a list of integers")
            return CustomizedBackoff(tuple(delays))
    return CustomizedBackoff()


def _check_group_name(name: str) -> None:
    """Raise IllegalGroupName for a group that no client could use: RocketMQ 4 accepted names of up to
    255 characters.
    """
    if not is_system_group(name):
        check_group_name(name)


def _fields(row: object) -> dict[str, Any]:
    if not isinstance(row, dict):
        raise UnreadableRow("not an object")
    return row


def _integer(fields: dict[str, Any], name: str, least: int, most: int, default: int | None = None) -> int:
    value = fields.get(name, default)
    if type(value) is not int or not least <= value <= most:
        raise UnreadableRow(f"{name} is {value!r}, not an integer of {least} to {most}")
    return value


def _texts(value: object) -> dict[str, str]:
    if value is None:
        return {}
    if not isinstance(value, dict) or not all(isinstance(each, str) for each in value.values()):
        raise UnreadableRow(f"attributes is {value!r}, not a map of texts")
    return dict(value)


Row = dict[str, Any]

_TOPIC_DEFAULTS: Final[Row] = {"order": False, "topicFilterType": "SINGLE_TAG", "topicSysFlag": 0}
_GROUP_DEFAULTS: Final[Row] = {
    "brokerId": 0,
    "consumeBroadcastEnable": True,
    "consumeFromMinEnable": True,
    "consumeTimeoutMinute": 15,
    "groupSysFlag": 0,
    "notifyConsumerIdsChangedEnable": True,
    "retryQueueNums": 1,
    "whichBrokerWhenConsumeSlowly": 1,
}


def topic_row(topic: Topic, before: Mapping[str, Any]) -> Row:
    """Return the row of a topic, with members in the order of their names."""
    own = {key: value for key, value in topic.attributes.items() if key not in (ORDER_ATTRIBUTE, SYSTEM_ATTRIBUTE)}
    # RocketMQ accepts every message for a topic without a type, too
    if topic.type is not TopicType.MIXED or TYPE_ATTRIBUTE in (before.get("attributes") or {}):
        own[TYPE_ATTRIBUTE] = topic.type.value.upper()
    row = {
        **_TOPIC_DEFAULTS,
        **before,
        "attributes": dict(sorted(own.items())),
        "order": topic.attributes.get(ORDER_ATTRIBUTE) == "true",
        "perm": topic.permission.value,
        "readQueueNums": topic.read_queues,
        "topicName": topic.name,
        "writeQueueNums": topic.write_queues,
    }
    return dict(sorted(row.items()))


def group_row(group: Group, before: Mapping[str, Any]) -> Row:
    """Return the row of a group, as `topic_row` does. `retryMaxTimes` counts the deliveries after the first."""
    row = {
        **_GROUP_DEFAULTS,
        **before,
        "attributes": dict(sorted(group.attributes.items())),
        "consumeEnable": group.enabled,
        "consumeMessageOrderly": group.fifo,
        "groupName": group.name,
        "groupRetryPolicy": _policy(group.backoff),
        "retryMaxTimes": group.max_attempts - 1,
    }
    return dict(sorted(row.items()))


def offset_rows(offsets: Iterable[tuple[str, QueueId, QueueOffset]]) -> dict[str, dict[int, int]]:
    """Return the rows `topic@group` -> queue number -> next offset."""
    rows: dict[str, dict[int, int]] = {}
    for group, queue, offset in offsets:
        rows.setdefault(f"{queue.topic}@{group}", {})[queue.number] = offset
    return rows


def _policy(backoff: Backoff) -> Row:
    if backoff == CustomizedBackoff():
        return {"type": "CUSTOMIZED"}
    if isinstance(backoff, ExponentialBackoff):
        policy = {
            "initial": backoff.initial_ms,
            "max": backoff.max_ms,
            # RocketMQ has whole numbers only: longer delays are better than shorter ones
            "multiplier": math.ceil(backoff.multiplier),
        }
        return {"exponentialRetryPolicy": policy, "type": "EXPONENTIAL"}
    return {"customizedRetryPolicy": {"next": list(backoff.next_ms)}, "type": "CUSTOMIZED"}
