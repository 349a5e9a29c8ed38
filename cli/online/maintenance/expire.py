"""`quarry expire` deletes old files of a live broker's commit log now."""

from __future__ import annotations

from typing import Annotated, Final

import typer

from quarry_mq.cli.online.connection.administration import admin_port, known_time
from quarry_mq.cli.online.connection.arguments import ADMIN_DEFAULT, Admin, Json
from quarry_mq.cli.terminal.confirmation import Yes, confirm
from quarry_mq.cli.terminal.output import json_line, print_rows
from quarry_mq.cli.terminal.text import say
from quarry_mq.protocol.proto.quarry.admin.v1 import admin_pb2 as pb

CALL_TIMEOUT_S: Final = 300.0
"""Seconds for the call: to tell what groups lose, the broker looks at every offset of every group."""

SEGMENT_COLUMNS: Final = ("segment", "bytes", "newestMessage", "cause")
UNREAD_COLUMNS: Final = ("group", "unreadMessages")


def expire(
    *,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show what would be deleted.")] = False,
    rewrite_queues: Annotated[
        bool,
        typer.Option(
            "--rewrite-queues",
            help="Then rewrite RocksDB's tables of queue entries, even if only few entries were removed.",
        ),
    ] = False,
    yes: Yes = False,
    admin: Admin = ADMIN_DEFAULT,
    as_json: Json = False,
) -> None:
    """Delete expired messages from a live broker's commit log now, regardless of the configured hours.

    Lists the files, and the groups that have not read all messages in them. Above expiry.force_percent of the disk
    younger files go, too. Entries of their messages leave the consume queues in the background.
    """
    confirm("delete the expired messages", yes=yes or dry_run)
    request = pb.ExpireSegmentsRequest(dry_run=dry_run, rewrite_queues=rewrite_queues)
    with admin_port(admin) as broker:
        answer = broker.ExpireSegments(request, timeout=CALL_TIMEOUT_S)
    segments = [
        {
            "segment": each.name,
            "bytes": each.size,
            "newestMessage": known_time(each, "newest_at_ms"),
            "cause": each.cause,
        }
        for each in answer.segments
    ]
    unread = [{"group": each.group, "unreadMessages": each.messages} for each in answer.unread]
    print_rows(segments, SEGMENT_COLUMNS, as_json=as_json, kind="expired files")
    if as_json:
        for row in unread:
            say(json_line(row))
    elif unread:
        say()
        print_rows(unread, UNREAD_COLUMNS, as_json=False)
    if not answer.unread_complete:
        say("not all groups were checked", err=True)
