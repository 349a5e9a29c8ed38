"""The JSON of answers, as RocketMQ's tools read it.

RocketMQ writes keys that are numbers without quotes, which is no JSON. They are texts here: all clients read both.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import orjson

from quarry_mq.server.remoting.fields import Json
from quarry_mq.store.metadata import Topic, TopicType

INHERIT: Final = 1
"""The permission bit of the topic that RocketMQ copies new topics from."""


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
