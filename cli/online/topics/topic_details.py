"""`quarry topic route` and `status` show a topic as RocketMQ's dashboards see it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, Final

from quarry_mq.cli.online.connection.arguments import ADMIN_DEFAULT, Admin, Json, Name
from quarry_mq.cli.online.connection.known import known
from quarry_mq.cli.online.connection.official import official_port
from quarry_mq.cli.terminal.output import print_object, print_rows
from quarry_mq.protocol.proto.apache.rocketmq.v2 import admin_pb2 as pb
from quarry_mq.protocol.proto.apache.rocketmq.v2 import definition_pb2 as definition

CALL_TIMEOUT_S: Final = 10.0
ROUTE_COLUMNS: Final = ("broker", "address", "readQueues", "writeQueues", "permission")
PERMISSIONS: Final = {0: "none", 2: "write", 4: "read", 6: "read-write"}


def route(name: Name, *, admin: Admin = ADMIN_DEFAULT, as_json: Json = False) -> None:
    """Show which brokers have a topic, and what clients may do there."""
    request = pb.GetTopicRouteRequest(topic=definition.Resource(name=name))
    with official_port(admin) as broker:
        answer = broker.call("GetTopicRoute", request, timeout_s=CALL_TIMEOUT_S)
    print_rows(_route_rows(json.loads(answer.topic_route_data)), ROUTE_COLUMNS, as_json=as_json)


def status(name: Name, *, admin: Admin = ADMIN_DEFAULT, as_json: Json = False) -> None:
    """Show a topic's type in the words of the protocol, its description and its attributes."""
    request = pb.DescribeTopicStatusRequest(topic=definition.Resource(name=name))
    with official_port(admin) as broker:
        answer = broker.call("DescribeTopicStatus", request, timeout_s=CALL_TIMEOUT_S)
    # the protocol has no type for topics that take several types
    has_type = answer.topic_message_type != definition.MESSAGE_TYPE_UNSPECIFIED
    fields = {
        "name": name,
        "messageType": definition.MessageType.Name(answer.topic_message_type) if has_type else None,
        "description": known(answer, "description"),
        "attributes": dict(answer.tags),
    }
    print_object(fields, as_json=as_json)


def _route_rows(found: dict[str, Any]) -> Iterator[dict[str, object]]:
    queues = {each["brokerName"]: each for each in found["queueDatas"]}
    for broker in found["brokerDatas"]:
        its = queues[broker["brokerName"]]
        yield {
            "broker": broker["brokerName"],
            "cluster": broker["cluster"],
            "address": broker["brokerAddrs"]["0"],
            "readQueues": its["readQueueNums"],
            "writeQueues": its["writeQueueNums"],
            "permission": PERMISSIONS[its["perm"]],
        }
