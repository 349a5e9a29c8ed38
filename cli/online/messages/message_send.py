"""`quarry message send` sends a message through the admin port."""

from __future__ import annotations

import sys
from typing import Annotated, Final

import typer

from quarry_mq.cli.online.connection.arguments import ADMIN_DEFAULT, Admin, Body, Json, Keys, Properties, Tag, pairs
from quarry_mq.cli.online.connection.official import official_port
from quarry_mq.cli.terminal.output import print_object
from quarry_mq.protocol.proto.apache.rocketmq.v2 import admin_pb2 as pb
from quarry_mq.protocol.proto.apache.rocketmq.v2 import definition_pb2 as definition

CALL_TIMEOUT_S: Final = 60.0


def send(
    topic: Annotated[str, typer.Argument(metavar="TOPIC", show_default=False)],
    body: Body = "-",
    *,
    tag: Tag = None,
    key: Keys = None,
    message_group: Annotated[
        str | None,
        typer.Option("--message-group", metavar="GROUP", help="Message group, for a FIFO topic.", show_default=False),
    ] = None,
    properties: Properties = None,
    admin: Admin = ADMIN_DEFAULT,
    as_json: Json = False,
) -> None:
    """Send a message through the admin port, for use where the messaging port cannot be reached. The topic must exist.

    The message may have 1 MiB. `quarry produce` creates topics, and sends larger messages, and many.
    """
    request = pb.AdminSendMessageRequest(
        topic=definition.Resource(name=topic),
        body=sys.stdin.buffer.read() if body == "-" else body.encode(),
        user_properties=pairs(properties, "--property"),
        system_properties=definition.SystemProperties(tag=tag, keys=key or (), message_group=message_group),
    )
    with official_port(admin) as broker:
        answer = broker.call("AdminSendMessage", request, timeout_s=CALL_TIMEOUT_S)
    print_object({"topic": topic, "messageId": answer.message_id}, as_json=as_json)
