"""`quarry message` shows messages of a live broker, traces them, and sends them again."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Final

import typer

from quarry_mq.cli.offline.arguments import Topic
from quarry_mq.cli.online.connection.administration import service_port
from quarry_mq.cli.online.connection.arguments import ADMIN_DEFAULT, Admin, Json
from quarry_mq.cli.online.messages.message_query import TRACE_COLUMNS, found_pages, print_trace, query, trace_rows
from quarry_mq.cli.online.messages.message_show import show
from quarry_mq.cli.online.messages.resend import resend
from quarry_mq.cli.records import decoded, message_id_of
from quarry_mq.cli.terminal.exit import Exit
from quarry_mq.cli.terminal.text import time_text
from quarry_mq.protocol.proto.quarry.admin.v1 import query_pb2 as pb
from quarry_mq.protocol.proto.quarry.admin.v1.query_pb2_grpc import QueryServiceStub

COLUMNS: Final = ("messageId", "storedAt", *TRACE_COLUMNS)

commands: Final = typer.Typer(no_args_is_help=True)
commands.command()(show)
commands.command()(query)
commands.command()(resend)


@commands.command()
def trace(
    *,
    topic: Topic,
    key: Annotated[str, typer.Option("--key", metavar="KEY", help="A key that the sender gave, or the message's id.")],
    limit: Annotated[
        int,
        typer.Option(
            "--limit", "-n", metavar="N", min=1, max=100, help="Maximum number of messages; the newest are shown."
        ),
    ] = 10,
    admin: Admin = ADMIN_DEFAULT,
    as_json: Json = False,
) -> None:
    """Show in which queues messages are, and their state for each group.

    The broker has to keep an index (index.tiered or index.hash_files). A group is shown if it has read the queue. For
    the group a message is "waiting" (never delivered), "in flight" (a client has it), "retrying" (it was not
    acknowledged, the next receive gets it), "dead-lettered", or "done" (acknowledged, or skipped by a filter or a new
    position). Attempts of a message that is done are not kept; with --json they are null. Exit status 1 when there is
    no such message.
    """
    request = pb.QueryMessagesRequest(topic=topic, key=key, limit=limit)
    with service_port(admin, QueryServiceStub) as broker:
        rows = [row for page in found_pages(broker.TraceMessages, request, admin) for row in _rows(page, admin)]
    print_trace(rows, COLUMNS, as_json=as_json)
    raise typer.Exit(Exit.FINE if rows else Exit.FINDING)


def _rows(answer: pb.TraceMessagesResponse, address: str) -> Iterator[dict[str, object]]:
    for message in answer.messages:
        record = decoded(message, address)
        own = {"messageId": message_id_of(record), "storedAt": time_text(record.store_timestamp_ms)}
        yield from ({**own, **row} for row in trace_rows(message))
