"""`quarry lite` shows and deletes the lite topics of a topic."""

from __future__ import annotations

from functools import partial
from typing import Annotated, Final

import typer

from quarry_mq.cli.online.connection.administration import known, known_time, listed, service_port
from quarry_mq.cli.online.connection.arguments import ADMIN_DEFAULT, Admin, DryRun, Json, Prefix
from quarry_mq.cli.online.connection.dry_runs import lite_topic_deletion
from quarry_mq.cli.terminal.confirmation import Yes, confirm
from quarry_mq.cli.terminal.output import print_object, print_rows
from quarry_mq.cli.terminal.text import say
from quarry_mq.protocol.proto.quarry.admin.v1 import lite_topics_pb2 as pb
from quarry_mq.protocol.proto.quarry.admin.v1.lite_topics_pb2_grpc import LiteTopicServiceStub

commands: Final = typer.Typer(no_args_is_help=True)

CALL_TIMEOUT_S: Final = 60.0
COLUMNS: Final = ("name", "minOffset", "maxOffset", "lastStoredAt", "subscribers")
BACKLOG_COLUMNS: Final = ("name", "ready", "oldestStoredAt")
CLIENT_COLUMNS: Final = ("clientId", "ready", "subscriptions", "wantsAll")
PAGE_ROWS: Final = 500

Parent = Annotated[str, typer.Argument(metavar="PARENT", help="Topic that has the lite topics.", show_default=False)]
Lite = Annotated[str, typer.Argument(metavar="LITE", help="Name of the lite topic.", show_default=False)]


@commands.command(name="list")
def list_lite_topics(
    parent: Parent,
    *,
    prefix: Prefix = "",
    limit: Annotated[int, typer.Option("--limit", "-n", metavar="N", min=1, help="Maximum number of rows.")] = 100,
    admin: Admin = ADMIN_DEFAULT,
    as_json: Json = False,
) -> None:
    """List the lite topics of a topic: shorter names first, then by name."""
    request = pb.ListLiteTopicsRequest(topic=parent, prefix=prefix)
    with service_port(admin, LiteTopicServiceStub) as broker:
        ask = partial(broker.ListLiteTopics, timeout=CALL_TIMEOUT_S)
        found = listed(ask, request, "lite_topics", lambda each: each.name, limit=limit, page_rows=PAGE_ROWS)
        print_rows(map(_fields, found), COLUMNS, as_json=as_json, kind="lite topics")


@commands.command()
def show(parent: Parent, lite: Lite, *, admin: Admin = ADMIN_DEFAULT, as_json: Json = False) -> None:
    """Show a lite topic."""
    with service_port(admin, LiteTopicServiceStub) as broker:
        found = broker.GetLiteTopic(pb.GetLiteTopicRequest(topic=parent, lite_topic=lite), timeout=CALL_TIMEOUT_S)
    print_object(_fields(found), as_json=as_json)


@commands.command()
def delete(
    parent: Parent,
    lite: Lite,
    *,
    dry_run: DryRun = False,
    yes: Yes = False,
    admin: Admin = ADMIN_DEFAULT,
    as_json: Json = False,
) -> None:
    """Delete a lite topic with the progress of all groups in it.

    A later message creates it again, with higher offsets.
    """
    if dry_run:
        print_object(lite_topic_deletion(admin, parent, lite), as_json=as_json)
        return
    confirm(f"delete the lite topic {lite} of {parent}", yes=yes, told=lambda: lite_topic_deletion(admin, parent, lite))
    with service_port(admin, LiteTopicServiceStub) as broker:
        broker.DeleteLiteTopic(pb.DeleteLiteTopicRequest(topic=parent, lite_topic=lite), timeout=CALL_TIMEOUT_S)
    print_object({"deleted": lite, "topic": parent}, as_json=as_json)


@commands.command()
def stats(parent: Parent, *, admin: Admin = ADMIN_DEFAULT, as_json: Json = False) -> None:
    """Show how many lite topics a topic has, how many it may have, and how long they stay.

    `-` for the number: they are still being counted after a start of the broker. `-` for the maximum: any number is
    allowed. `-` for the time: they are kept forever.
    """
    with service_port(admin, LiteTopicServiceStub) as broker:
        request = pb.GetLiteTopicStatisticsRequest(topic=parent)
        found = broker.GetLiteTopicStatistics(request, timeout=CALL_TIMEOUT_S)
    print_object(
        {
            "topic": parent,
            "liteTopics": known(found, "lite_topics"),
            "liteTopicsMax": known(found, "lite_topics_max"),
            "ttlMinutes": found.ttl_ms // 60_000 if found.HasField("ttl_ms") else None,
        },
        as_json=as_json,
    )


@commands.command()
def backlog(
    parent: Parent,
    *,
    group: Annotated[str, typer.Option("--group", "-g", metavar="GROUP", help="Group that reads the lite topics.")],
    clients: Annotated[
        bool,
        typer.Option(
            "--clients",
            help="One row per client of the group instead, with the number of lite topics that are ready for it.",
        ),
    ] = False,
    limit: Annotated[
        int, typer.Option("--limit", "-n", metavar="N", min=1, max=200, help="Maximum number of rows.")
    ] = 20,
    admin: Admin = ADMIN_DEFAULT,
    as_json: Json = False,
) -> None:
    """List the lite topics in which a group has the most ready messages.

    At most 10,000 lite topics are examined; a warning says if there are more. Clients that have not received recently
    are not known.
    """
    request = pb.ListLiteBacklogRequest(topic=parent, group=group, limit=limit)
    with service_port(admin, LiteTopicServiceStub) as broker:
        found = broker.ListLiteBacklog(request, timeout=CALL_TIMEOUT_S)
    if clients:
        print_rows(map(_client_fields, found.clients), CLIENT_COLUMNS, as_json=as_json, kind="clients")
    else:
        print_rows(
            map(_backlog_fields, found.lite_topics),
            BACKLOG_COLUMNS,
            as_json=as_json,
            kind="lite topics with ready messages",
        )
        if not found.is_complete:
            say(f"{admin}: there are more lite topics; {found.looked_at} were checked", err=True)


def _backlog_fields(each: pb.LiteBacklog) -> dict[str, object]:
    return {"name": each.lite_topic, "ready": each.ready, "oldestStoredAt": known_time(each, "oldest_stored_at_ms")}


def _client_fields(each: pb.LiteClientDepth) -> dict[str, object]:
    return {
        "clientId": each.client_id,
        "ready": each.lite_topics_ready,
        "subscriptions": each.subscriptions,
        "wantsAll": each.wants_all,
    }


def _fields(each: pb.LiteTopic) -> dict[str, object]:
    return {
        "name": each.name,
        "minOffset": each.minimum_offset,
        "maxOffset": each.maximum_offset,
        "lastStoredAt": known_time(each, "last_stored_at_ms"),
        "subscribers": each.subscribers,
    }
