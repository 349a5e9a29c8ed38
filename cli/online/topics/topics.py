"""`quarry topic` makes, changes, deletes and shows topics.

`quarry topic route` and `status` show a topic as RocketMQ's dashboards see it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from enum import Enum
from typing import Annotated, Any, Final

import typer

from quarry_mq.cli.online.connection.administration import admin_port, known, official_port
from quarry_mq.cli.online.connection.arguments import (
    ADMIN_DEFAULT,
    Admin,
    Attributes,
    DryRun,
    Json,
    Name,
    Prefix,
    pairs,
    with_options,
)
from quarry_mq.cli.online.connection.dry_runs import topic_deletion
from quarry_mq.cli.terminal.confirmation import Yes, confirm
from quarry_mq.cli.terminal.output import print_object, print_rows
from quarry_mq.cli.terminal.text import say
from quarry_mq.protocol.lite_attributes import EXPIRATION, EXPIRATION_MAX_MINUTES
from quarry_mq.protocol.proto.apache.rocketmq.v2 import admin_pb2 as official_pb
from quarry_mq.protocol.proto.apache.rocketmq.v2 import definition_pb2 as definition
from quarry_mq.protocol.proto.quarry.admin.v1 import admin_pb2 as pb

commands: Final = typer.Typer(no_args_is_help=True)

CALL_TIMEOUT_S: Final = 10.0
COLUMNS: Final = ("name", "type", "readQueues", "writeQueues", "permission")


class TopicTypeName(Enum):
    NORMAL = "normal"
    FIFO = "fifo"
    DELAY = "delay"
    TRANSACTION = "transaction"
    PRIORITY = "priority"
    LITE = "lite"
    MIXED = "mixed"


class PermissionName(Enum):
    READ_WRITE = "read-write"
    READ = "read"
    WRITE = "write"
    NONE = "none"


Type = Annotated[
    TopicTypeName | None,
    typer.Option(
        "--type",
        metavar="normal|fifo|delay|transaction|priority|lite|mixed",
        help="Type of messages. Default for a new topic: normal.",
        show_default=False,
    ),
]
Queues = Annotated[
    int | None,
    typer.Option(
        "--queues",
        metavar="N",
        min=1,
        help="Number of queues. Default for a new topic: topics.default_queues of the broker.",
        show_default=False,
    ),
]
PermissionOption = Annotated[
    PermissionName | None,
    typer.Option(
        "--permission",
        metavar="read-write|read|write|none",
        help="What clients may do. Default for a new topic: read-write.",
        show_default=False,
    ),
]
LiteTtl = Annotated[
    int | None,
    typer.Option(
        "--lite-topic-ttl-minutes",
        metavar="N",
        min=-1,
        max=EXPIRATION_MAX_MINUTES,
        help="How long a lite topic is kept after its last message, at least 15; 0 or -1: forever. Attribute "
        f"`{EXPIRATION}`.",
        show_default=False,
    ),
]


@commands.command()
def create(
    name: Name,
    *,
    type: Type = None,  # noqa: A002 - the name of the option
    queues: Queues = None,
    permission: PermissionOption = None,
    lite_ttl_minutes: LiteTtl = None,
    attribute: Attributes = None,
    admin: Admin = ADMIN_DEFAULT,
    as_json: Json = False,
) -> None:
    """Create a topic."""
    request = pb.CreateTopicRequest(
        name=name,
        type=_type(type),
        read_queues=queues,
        write_queues=queues,
        permission=_permission(permission),
        attributes=_attributes(attribute, lite_ttl_minutes),
    )
    with admin_port(admin) as broker:
        topic = broker.CreateTopic(request, timeout=CALL_TIMEOUT_S)
    print_object(topic_fields(topic), as_json=as_json)


@commands.command()
def update(
    name: Name,
    *,
    type: Type = None,  # noqa: A002 - the name of the option
    queues: Queues = None,
    permission: PermissionOption = None,
    lite_ttl_minutes: LiteTtl = None,
    attribute: Attributes = None,
    break_order: Annotated[
        bool,
        typer.Option(
            "--break-order",
            help="Change the number of queues even if messages of message groups are unread; these messages lose "
            "their order.",
        ),
    ] = False,
    admin: Admin = ADMIN_DEFAULT,
    as_json: Json = False,
) -> None:
    """Change the given options, and leave the rest of the topic as it is."""
    request = pb.UpdateTopicRequest(
        name=name,
        type=_type(type),
        read_queues=queues,
        write_queues=queues,
        permission=_permission(permission),
        attributes=_attributes(attribute, lite_ttl_minutes),
        break_order=break_order,
    )
    with admin_port(admin) as broker:
        topic = broker.UpdateTopic(request, timeout=CALL_TIMEOUT_S)
    print_object(topic_fields(topic), as_json=as_json)


@commands.command()
def delete(
    name: Name, *, dry_run: DryRun = False, yes: Yes = False, admin: Admin = ADMIN_DEFAULT, as_json: Json = False
) -> None:
    """Delete a topic with its queues and the progress of all groups in it."""
    if dry_run:
        print_object(topic_deletion(admin, name), as_json=as_json)
        return
    confirm(f"delete the topic {name}", yes=yes, told=lambda: topic_deletion(admin, name))
    with admin_port(admin) as broker:
        broker.DeleteTopic(pb.DeleteTopicRequest(name=name), timeout=CALL_TIMEOUT_S)
    print_object({"deleted": name}, as_json=as_json)


@commands.command(name="list")
def list_topics(
    *,
    prefix: Prefix = "",
    system: Annotated[bool, typer.Option("--system", help="Include the broker's internal topics.")] = False,
    admin: Admin = ADMIN_DEFAULT,
    as_json: Json = False,
) -> None:
    """List topics by name."""
    with admin_port(admin) as broker:
        answer = broker.ListTopics(pb.ListTopicsRequest(prefix=prefix, include_system=system))
        print_rows(
            (topic_fields(topic) for page in answer for topic in page.topics), COLUMNS, as_json=as_json, kind="topics"
        )


@commands.command()
def show(name: Name, *, admin: Admin = ADMIN_DEFAULT, as_json: Json = False) -> None:
    """Show a topic and the offsets of its queues."""
    with admin_port(admin) as broker:
        topic = broker.GetTopic(pb.GetTopicRequest(name=name), timeout=CALL_TIMEOUT_S)
        queues = broker.ListQueues(pb.ListQueuesRequest(topic=name), timeout=CALL_TIMEOUT_S).queues
    rows = [
        {"queueId": queue.queue, "minOffset": queue.minimum_offset, "maxOffset": queue.maximum_offset}
        for queue in queues
    ]
    if as_json:
        print_object({**topic_fields(topic), "queues": rows}, as_json=True)
        return
    print_object(topic_fields(topic), as_json=False)
    say()
    print_rows(rows, ("queueId", "minOffset", "maxOffset"), as_json=False, kind="queues")


def topic_fields(topic: pb.Topic) -> dict[str, object]:
    return {
        "name": topic.name,
        "type": pb.TopicType.Name(topic.type).removeprefix("TOPIC_TYPE_").lower(),
        "readQueues": topic.read_queues,
        "writeQueues": topic.write_queues,
        "permission": pb.Permission.Name(topic.permission).removeprefix("PERMISSION_").lower().replace("_", "-"),
        "attributes": dict(topic.attributes),
    }


def _attributes(texts: list[str] | None, lite_ttl_minutes: int | None) -> dict[str, str]:
    return with_options(pairs(texts, "--attribute"), {EXPIRATION: ("--lite-topic-ttl-minutes", lite_ttl_minutes)})


def _type(name: TopicTypeName | None) -> str:
    return f"TOPIC_TYPE_{name.name if name else 'UNSPECIFIED'}"


def _permission(name: PermissionName | None) -> str:
    return f"PERMISSION_{name.name if name else 'UNSPECIFIED'}"


ROUTE_COLUMNS: Final = ("broker", "address", "readQueues", "writeQueues", "permission")
PERMISSIONS: Final = {0: "none", 2: "write", 4: "read", 6: "read-write"}


def route(name: Name, *, admin: Admin = ADMIN_DEFAULT, as_json: Json = False) -> None:
    """Show which brokers have a topic, and what clients may do there."""
    request = official_pb.GetTopicRouteRequest(topic=definition.Resource(name=name))
    with official_port(admin) as broker:
        answer = broker.call("GetTopicRoute", request, timeout_s=CALL_TIMEOUT_S)
    print_rows(_route_rows(json.loads(answer.topic_route_data)), ROUTE_COLUMNS, as_json=as_json, kind="queues")


def status(name: Name, *, admin: Admin = ADMIN_DEFAULT, as_json: Json = False) -> None:
    """Show a topic's type in the words of the protocol, its description and its attributes."""
    request = official_pb.DescribeTopicStatusRequest(topic=definition.Resource(name=name))
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
