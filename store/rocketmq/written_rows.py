"""The module converts topics, groups and offsets to RocketMQ's rows: the reverse of `store.rocketmq.rows`.

Fields that RocketMQ keeps and Quarry does not are taken from RocketMQ's earlier row, or have RocketMQ's default.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any, Final

from quarry_mq.store.metadata import Backoff, CustomizedBackoff, ExponentialBackoff, Group, Topic, TopicType
from quarry_mq.store.metadata.topics import SYSTEM_ATTRIBUTE
from quarry_mq.store.offsets import QueueId, QueueOffset
from quarry_mq.store.rocketmq.rows import ORDER_ATTRIBUTE, TYPE_ATTRIBUTE

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
