"""`quarry message`: where messages went."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Final

import typer

from cli.exit import Exit
from cli.offline.arguments import Topic
from cli.online.administration import service_port
from cli.online.arguments import ADMIN_DEFAULT, Admin, Json
from cli.online.output import print_rows, time_text
from server._generated.quarry.admin.v1 import query_pb2 as pb
from server._generated.quarry.admin.v1.query_pb2_grpc import QueryServiceStub
from store.offsets import PhysicalOffset
from store.record import StoredMessage, decode_record, offset_message_id
from store.record.properties import UNIQUE_KEY

CALL_TIMEOUT_S: Final = 60.0
COLUMNS: Final = (
    "messageId",
    "storedAt",
    "queueOf",
    "queue",
    "offset",
    "isThere",
    "group",
    "state",
    "attempts",
    "visibleAt",
    "clientId",
)

commands: Final = typer.Typer(name="message", help="Single messages.", no_args_is_help=True)


@commands.callback()
def _group() -> None:
    """A group, also while it has one command."""


@commands.command()
def trace(
    *,
    topic: Topic,
    key: Annotated[str, typer.Option("--key", help="A key that the sender gave, or the message's id.")],
    limit: Annotated[int, typer.Option("--limit", min=1, max=100, help="At most so many, the newest.")] = 10,
    admin: Admin = ADMIN_DEFAULT,
    as_json: Json = False,
) -> None:
    """Show where messages went: in which queues they are, and what has become of them for each group.

    The broker has to keep an index (index.tiered or index.hash_files). A group is shown that has read the queue. Done
    is what was acknowledged, passed over by the group's filter, or is among its dead letters. Exit code 1 when there is
    no such message.
    """
    with service_port(admin, QueryServiceStub) as broker:
        answer = broker.TraceMessages(
            pb.QueryMessagesRequest(topic=topic, key=key, limit=limit), timeout=CALL_TIMEOUT_S
        )
    for each in answer.unread:
        typer.echo(f"{admin}: messages may be missing, {each.name} could not be read: {each.reason}", err=True)
    print_rows(_rows(answer), COLUMNS, as_json=as_json)
    raise typer.Exit(Exit.FINE if answer.messages else Exit.FINDING)


def _rows(answer: pb.TraceMessagesResponse) -> Iterator[dict[str, object]]:
    for message in answer.messages:
        record = decode_record(memoryview(message.record), 0, PhysicalOffset(message.physical_offset), check_crc=True)
        assert isinstance(record, StoredMessage)
        own = {
            "messageId": record.properties.get(UNIQUE_KEY)
            or offset_message_id(record.store_host, record.physical_offset),
            "storedAt": time_text(record.store_timestamp_ms),
        }
        for queue in message.queues:
            place = {"queueOf": queue.topic, "queue": queue.queue, "offset": queue.offset, "isThere": queue.is_there}
            for group in queue.groups:
                yield {**own, **place, **_group_fields(group)}
            if not queue.groups:
                yield {**own, **place, **dict.fromkeys(COLUMNS[6:])}


def _group_fields(group: pb.GroupTrace) -> dict[str, object]:
    return {
        "group": group.group,
        "state": pb.MessageState.Name(group.state).removeprefix("MESSAGE_STATE_").lower().replace("_", " "),
        "attempts": group.attempts,
        "visibleAt": time_text(group.visible_at_ms) if group.HasField("visible_at_ms") else None,
        "clientId": group.client_id if group.HasField("client_id") else None,
    }
