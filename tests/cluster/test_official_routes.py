"""Routes as RocketMQ's admin service tells them: all members that can be reached."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from quarry_mq.protocol.proto.apache.rocketmq.v2 import admin_pb2 as pb
from quarry_mq.server.admin_port.official.edge import Names
from quarry_mq.server.admin_port.official.service import TopicCalls
from quarry_mq.server.cluster.membership import MemberState
from quarry_mq.server.tasks import Pacing
from quarry_mq.store.metadata import Topic, TopicType
from tests.admin.broker import FACTS, AdminBench
from tests.cluster.test_routes import UNREACHABLE_S, Seen
from tests.rpc.broker import resource


def route(seen: Seen) -> Any:
    async def ask() -> str:
        bench = AdminBench()
        bench.topics.create(Topic("orders", TopicType.NORMAL, 2, 3))
        calls = TopicCalls(bench.administration, Names(bench.topics, bench.groups), seen.members, Pacing(seen.clock))
        answer = await calls.get_topic_route(pb.GetTopicRouteRequest(topic=resource("orders")))
        return answer.topic_route_data

    return json.loads(asyncio.run(ask()))


def test_a_route_has_all_members_and_what_they_allow() -> None:
    seen = Seen(FACTS.name, "broker-b")
    seen.add(seen.of("broker-c", MemberState.DRAINING))
    found = route(seen)
    assert [(each["brokerName"], each["brokerAddrs"]) for each in found["brokerDatas"]] == [
        ("broker-b", {"0": "broker-b:8081"}),
        ("broker-c", {"0": "broker-c:8081"}),
        (FACTS.name, {"0": FACTS.advertised_address}),
    ]
    assert [(each["perm"], each["readQueueNums"], each["writeQueueNums"]) for each in found["queueDatas"]] == [
        (6, 2, 3),
        (4, 2, 3),
        (6, 2, 3),
    ]
    seen.clock.advance(UNREACHABLE_S)
    assert [each["brokerName"] for each in route(seen)["brokerDatas"]] == [FACTS.name]
