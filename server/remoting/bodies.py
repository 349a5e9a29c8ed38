"""The JSON of answers, as RocketMQ's tools read it.

RocketMQ writes maps whose keys are JSON objects, `{{"queueId":0,"topic":"T"}:VALUE}`, which is no JSON. Its tools read
nothing else there (`keyed`). Keys that are numbers are texts here: all clients read both.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

import orjson

from quarry_mq.server.remoting.fields import Json
from quarry_mq.store.message import QueueId
from quarry_mq.store.metadata import READ_WRITE, Group, Permission, Topic, TopicType

INHERIT: Final = 1
"""The permission bit of the topic that RocketMQ copies new topics from."""


def keyed(pairs: Iterable[tuple[Json, Json]]) -> bytes:
    """Return a map whose keys are objects."""
    return b"{" + b",".join([orjson.dumps(key) + b":" + orjson.dumps(value) for key, value in pairs]) + b"}"


def queue_of(broker: str, queue: QueueId) -> dict[str, Json]:
    """Return a queue as RocketMQ writes it."""
    return {"brokerName": broker, "queueId": queue.number, "topic": queue.topic}


def topic_config(topic: Topic) -> dict[str, Json]:
    """Return a topic's settings as RocketMQ writes them."""
    return {
        "attributes": {"message.type": topic.type.name},
        "order": False,
        "perm": topic.permission.value,
        "readQueueNums": topic.read_queues,
        "topicFilterType": "SINGLE_TAG",
        "topicName": topic.name,
        "topicSysFlag": 0,
        "writeQueueNums": topic.write_queues,
    }


def group_config(group: Group) -> dict[str, Json]:
    """Return a group's settings as RocketMQ writes them."""
    return {
        "attributes": {},
        "brokerId": 0,
        "consumeBroadcastEnable": True,
        "consumeEnable": group.enabled,
        "consumeFromMinEnable": True,
        "consumeMessageOrderly": group.fifo,
        "consumeTimeoutMinute": 15,
        "groupName": group.name,
        "groupSysFlag": 0,
        "notifyConsumerIdsChangedEnable": True,
        "retryMaxTimes": group.max_attempts - 1,
        "retryQueueNums": 1,
        "whichBrokerWhenConsumeSlowly": 1,
    }


class RoutedBroker(NamedTuple):
    """A routed broker is one that clients are sent to. `limit` is the most that they may do there."""

    name: str
    cluster: str
    address: str
    limit: Permission = READ_WRITE


def topic_route(topic: Topic, brokers: Sequence[RoutedBroker], *, extra_permission: int = 0) -> bytes:
    """Return the route of a topic that exists on each of the brokers."""
    return orjson.dumps(
        {
            "brokerDatas": [_broker(each) for each in brokers],
            "filterServerTable": {},
            "queueDatas": [
                {
                    "brokerName": each.name,
                    "perm": (topic.permission & each.limit).value | extra_permission,
                    "readQueueNums": topic.read_queues,
                    "topicSysFlag": 0,
                    "writeQueueNums": topic.write_queues,
                }
                for each in brokers
            ],
        }
    )


def cluster_info(brokers: Sequence[RoutedBroker]) -> bytes:
    """Return all brokers, with their clusters and addresses."""
    clusters: dict[str, list[str]] = {}
    for each in brokers:
        clusters.setdefault(each.cluster, []).append(each.name)
    return orjson.dumps(
        {"brokerAddrTable": {each.name: _broker(each) for each in brokers}, "clusterAddrTable": clusters}
    )


def _broker(broker: RoutedBroker) -> dict[str, Json]:
    return {
        "brokerAddrs": {"0": broker.address},
        "brokerName": broker.name,
        "cluster": broker.cluster,
        "enableActingMaster": False,
    }


def default_topic(queues: int) -> Topic:
    """Return the topic that producers ask for when their own does not exist: it says how new topics are made."""
    return Topic("TBW102", TopicType.MIXED, queues, queues)
