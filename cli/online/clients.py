"""`quarry client`: who is connected to a live broker."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Any, Final

import typer

from cli.online.arguments import ADMIN_DEFAULT, Admin, Json
from cli.online.official import official_port
from cli.online.output import print_rows, time_text
from server._generated.apache.rocketmq.v2 import admin_pb2 as pb
from server._generated.apache.rocketmq.v2 import definition_pb2 as definition

commands: Final = typer.Typer(name="client", help="Clients of a live broker.", no_args_is_help=True)

CALL_TIMEOUT_S: Final = 60.0
COLUMNS: Final = ("clientId", "group", "language", "version", "address", "topics")


@commands.callback()
def client() -> None:
    """Clients of a live broker."""


@commands.command(name="list")
def list_clients(
    *,
    group: Annotated[
        str | None, typer.Option("--group", metavar="GROUP", help="Only those of this group.", show_default=False)
    ] = None,
    topic: Annotated[
        str | None,
        typer.Option("--topic", metavar="TOPIC", help="Only those subscribed to this topic.", show_default=False),
    ] = None,
    admin: Admin = ADMIN_DEFAULT,
    as_json: Json = False,
) -> None:
    """List the consumers that are connected."""
    request = pb.DescribeSubscriptionRequest(
        group=None if group is None else definition.Resource(name=group),
        topic=None if topic is None else definition.Resource(name=topic),
    )
    with official_port(admin) as broker:
        answer = broker.call("DescribeSubscription", request, timeout_s=CALL_TIMEOUT_S)
    print_rows(client_rows(answer.client_subscription_info), COLUMNS, as_json=as_json)


def client_rows(subscriptions: Iterable[Any]) -> Iterable[dict[str, object]]:
    """One for each client, in the order in which they come."""
    rows: dict[str, dict[str, Any]] = {}
    for each in subscriptions:
        info, subscription = each.client_info, each.subscription_info
        row = rows.setdefault(
            info.client_id,
            {
                "clientId": info.client_id,
                "group": subscription.group.name,
                "language": info.language,
                "version": info.version,
                "hostname": info.hostname,
                "address": info.egress_ip,
                "isLite": info.message_model == pb.LITE_SELECTIVE,
                "settingsAt": time_text(subscription.last_update_timestamp.ToMilliseconds()),
                "topics": [],
            },
        )
        if subscription.HasField("topic"):
            row["topics"].append(subscription.topic.name)
    return rows.values()
