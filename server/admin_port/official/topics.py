"""The official calls about topics: their properties, their routes, and resets of groups' offsets."""

from __future__ import annotations

import json
from typing import Final, NamedTuple

from quarry_mq.protocol.proto.apache.rocketmq.v2 import admin_pb2 as pb
from quarry_mq.protocol.proto.apache.rocketmq.v2 import definition_pb2 as definition
from quarry_mq.protocol.times import TIME_MS_MAX, to_ms
from quarry_mq.server.admin.administration import Administration
from quarry_mq.server.admin_port.official.edge import Names
from quarry_mq.server.cluster.membership.member import MemberState
from quarry_mq.server.cluster.membership.members import Members
from quarry_mq.server.delivery.model import StoredSince
from quarry_mq.server.tasks.time_slice import Pacing
from quarry_mq.server.wire.message_types import ACCEPTED_TYPES
from quarry_mq.server.wire.status import Refused
from quarry_mq.store.metadata import READ_WRITE, Permission

DESCRIPTION: Final = "description"
"""The attribute of a topic that is shown as its description."""


class _Place(NamedTuple):
    """A broker that has the topic, and the most that clients may do there whatever the topic allows."""

    name: str
    address: str
    limit: Permission


class TopicCalls:
    def __init__(self, administration: Administration, names: Names, members: Members | None, pacing: Pacing) -> None:
        """`members` are those of the cluster; None without one."""
        self._administration = administration
        self._names = names
        self._members = members
        self._pacing = pacing

    async def describe_topic_status(self, request: pb.DescribeTopicStatusRequest) -> pb.DescribeTopicStatusResponse:
        """Describe a topic. The protocol has no type for MIXED topics, and a topic's creation time is not stored."""
        topic = self._names.topic(request.topic)
        types = ACCEPTED_TYPES[topic.type]
        return pb.DescribeTopicStatusResponse(
            topic_message_type=types[0] if len(types) == 1 else definition.MESSAGE_TYPE_UNSPECIFIED,
            description=topic.attributes.get(DESCRIPTION),
            tags=topic.attributes,
        )

    async def get_topic_route(self, request: pb.GetTopicRouteRequest) -> pb.GetTopicRouteResponse:
        """Return a route as RocketMQ's name server writes it, in JSON. Only the request's topic matters."""
        topic = self._names.topic(request.topic)
        places = self._places()
        route = {
            "brokerDatas": [
                {"brokerAddrs": {"0": each.address}, "brokerName": each.name, "cluster": self._cluster}
                for each in places
            ],
            "filterServerTable": {},
            "queueDatas": [
                {
                    "brokerName": each.name,
                    "perm": (topic.permission & each.limit).value,
                    "readQueueNums": topic.read_queues,
                    "topicSysFlag": 0,
                    "writeQueueNums": topic.write_queues,
                }
                for each in places
            ],
        }
        return pb.GetTopicRouteResponse(topic_route_data=json.dumps(route, separators=(",", ":"), sort_keys=True))

    async def reset_group_offset(self, request: pb.ResetGroupOffsetRequest) -> pb.ResetGroupOffsetResponse:
        """Move a group to the first message of each queue that was stored at a time or later."""
        group, topic = self._names.group(request.group), self._names.topic(request.topic)
        if not request.HasField("reset_timestamp"):
            raise Refused(definition.BAD_REQUEST, "reset_timestamp: must be given")
        time_ms = to_ms(request.reset_timestamp)
        if not 0 <= time_ms <= TIME_MS_MAX:
            raise Refused(definition.BAD_REQUEST, f"reset_timestamp: {time_ms} ms is before 1970 or after 9999")
        async with self._pacing.turn() as time_slice:
            await self._administration.reset_offset(group.name, topic.name, StoredSince(time_ms), time_slice)
        return pb.ResetGroupOffsetResponse()

    @property
    def _cluster(self) -> str:
        return self._administration.facts.cluster

    def _places(self) -> list[_Place]:
        """Return the brokers by name. A member's address is the one without TLS, if it has one."""
        facts, members = self._administration.facts, self._members
        if members is None:
            return [_Place(facts.name, facts.advertised_address, READ_WRITE)]
        places = [_Place(facts.name, facts.advertised_address, Permission.READ if members.is_draining else READ_WRITE)]
        for member in members.routed():
            limit = Permission.READ if member.state is MemberState.DRAINING else READ_WRITE
            places.append(_Place(member.name, member.address or member.tls_address or "", limit))
        return sorted(places, key=lambda place: place.name)
