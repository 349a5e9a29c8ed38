"""The JSON of answers, as RocketMQ's tools read it.

RocketMQ writes maps whose keys are JSON objects, `{{"queueId":0,"topic":"T"}:VALUE}`, which is no JSON. Its tools read
nothing else there (`keyed`). Keys that are numbers are texts here: all clients read both.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

import orjson

from quarry_mq.server.remoting.fields import Json
from quarry_mq.store.message import QueueId
from quarry_mq.store.metadata import Group, Topic, TopicType

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


def topic_route(topic: Topic, permission: int, brokers: Mapping[str, tuple[str, str]]) -> bytes:
    """Return the route of a topic that exists on each of the brokers, which are clusters and addresses by name."""
    return orjson.dumps(
        {
            "brokerDatas": [_broker(name, cluster, address) for name, (cluster, address) in brokers.items()],
            "filterServerTable": {},
            "queueDatas": [
                {
                    "brokerName": name,
                    "perm": permission,
                    "readQueueNums": topic.read_queues,
                    "topicSysFlag": 0,
                    "writeQueueNums": topic.write_queues,
                }
                for name in brokers
            ],
        }
    )


def cluster_info(brokers: Mapping[str, tuple[str, str]]) -> bytes:
    """Return all brokers, with their clusters and addresses by name."""
    clusters: dict[str, list[str]] = {}
    for name, (cluster, _) in brokers.items():
        clusters.setdefault(cluster, []).append(name)
    return orjson.dumps(
        {
            "brokerAddrTable": {name: _broker(name, cluster, address) for name, (cluster, address) in brokers.items()},
            "clusterAddrTable": clusters,
        }
    )


def _broker(name: str, cluster: str, address: str) -> dict[str, Json]:
    return {"brokerAddrs": {"0": address}, "brokerName": name, "cluster": cluster, "enableActingMaster": False}


def default_topic(queues: int) -> Topic:
    """Return the topic that producers ask for when their own does not exist: it says how new topics are made."""
    return Topic("TBW102", TopicType.MIXED, queues, queues)
