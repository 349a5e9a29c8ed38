"""Counts what a deletion would remove: the dry runs of commands whose calls have none.

Each asks the broker as the command would, and ends as it would if the thing does not exist. Nothing is changed.
Messages that come between a dry run and the command itself are not counted.
"""

from __future__ import annotations

from typing import Final

from quarry_mq.cli.online.connection.administration import admin_port, official_port, service_port
from quarry_mq.protocol.proto.apache.rocketmq.v2 import admin_pb2 as official
from quarry_mq.protocol.proto.apache.rocketmq.v2 import definition_pb2 as definition
from quarry_mq.protocol.proto.quarry.admin.v1 import admin_pb2, lite_topics_pb2
from quarry_mq.protocol.proto.quarry.admin.v1.lite_topics_pb2_grpc import LiteTopicServiceStub

CALL_TIMEOUT_S: Final = 60.0

Fields = dict[str, object]


def topic_deletion(admin: str, name: str) -> Fields:
    with admin_port(admin) as broker:
        broker.GetTopic(admin_pb2.GetTopicRequest(name=name), timeout=CALL_TIMEOUT_S)
        queues = broker.ListQueues(admin_pb2.ListQueuesRequest(topic=name), timeout=CALL_TIMEOUT_S).queues
    readers = _subscriptions(admin, topic=name)
    return {
        "dryRun": True,
        "topic": name,
        "queues": len(queues),
        "messages": sum(each.maximum_offset - each.minimum_offset for each in queues),
        "groups": sorted({each.group.name for each in readers}),
        "groupsOnline": sum(each.online for each in readers),
    }


def group_deletion(admin: str, name: str, topic: str | None = None) -> Fields:
    """Count what the group has in all topics, or in one topic."""
    with admin_port(admin) as broker:
        broker.GetGroup(admin_pb2.GetGroupRequest(name=name), timeout=CALL_TIMEOUT_S)
    read = _subscriptions(admin, group=name, topic=topic)
    waiting = in_flight = 0
    if read:
        topics = [definition.Resource(name=each.topic.name) for each in read]
        request = official.DescribeGroupAccumulationRequest(group=definition.Resource(name=name), topics=topics)
        with official_port(admin) as port:
            counted = port.call("DescribeGroupAccumulation", request, timeout_s=CALL_TIMEOUT_S).accumulation
        waiting, in_flight = counted.accumulation, counted.inflight_messages
    return {
        "dryRun": True,
        "group": name,
        "topics": sorted({each.topic.name for each in read}),
        "topicsOnline": sum(each.online for each in read),
        "waiting": waiting,
        "inFlight": in_flight,
    }


def lite_topic_deletion(admin: str, parent: str, lite: str) -> Fields:
    with service_port(admin, LiteTopicServiceStub) as broker:
        request = lite_topics_pb2.GetLiteTopicRequest(topic=parent, lite_topic=lite)
        found = broker.GetLiteTopic(request, timeout=CALL_TIMEOUT_S)
    messages = found.maximum_offset - found.minimum_offset
    return {"dryRun": True, "topic": parent, "liteTopic": lite, "messages": messages, "subscribers": found.subscribers}


def _subscriptions(
    admin: str, *, group: str | None = None, topic: str | None = None
) -> list[official.SubscriptionInfo]:
    request = official.ListSubscriptionRequest(
        group=None if group is None else definition.Resource(name=group),
        topic=None if topic is None else definition.Resource(name=topic),
    )
    with official_port(admin) as port:
        return list(port.call("ListSubscription", request, timeout_s=CALL_TIMEOUT_S).subscription_info)
