"""`quarry message show` shows everything about one message."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Annotated, Final

import typer

from quarry_mq.cli.offline.record_text import exact_time_text, record_fields
from quarry_mq.cli.online.connection.administration import service_port
from quarry_mq.cli.online.connection.arguments import ADMIN_DEFAULT, Admin, Json
from quarry_mq.cli.online.messages.message_query import (
    CALL_TIMEOUT_S,
    TRACE_COLUMNS,
    body_fields,
    group_fields,
    print_trace,
    queue_fields,
    tell_unread,
    trace_rows,
)
from quarry_mq.cli.records import Record, born_host_of, decoded, message_id_of, offset_id_of, store_host_of
from quarry_mq.cli.terminal.exit import Exit, end
from quarry_mq.cli.terminal.output import print_object
from quarry_mq.cli.terminal.text import one_line, say
from quarry_mq.protocol.messages.bodies import body_text, plain_body
from quarry_mq.protocol.messages.property_names import KEYS, TAGS
from quarry_mq.protocol.proto.quarry.admin.v1 import query_pb2 as pb
from quarry_mq.protocol.proto.quarry.admin.v1.query_pb2_grpc import QueryServiceStub

BODY_SHOWN_MAX: Final = 4096
"""Bytes of a body that are shown to people; `--json` and `--output` give all."""


def show(
    message_id: Annotated[
        str | None, typer.Argument(metavar="[ID]", help="The message's id, or its offset id.", show_default=False)
    ] = None,
    *,
    topic: Annotated[
        str | None, typer.Option("--topic", "-t", metavar="TOPIC", help="Name of the topic.", show_default=False)
    ] = None,
    queue: Annotated[
        int | None, typer.Option("--queue", metavar="N", min=0, help="Number of the queue.", show_default=False)
    ] = None,
    offset: Annotated[
        int | None, typer.Option("--offset", metavar="OFFSET", min=0, help="Offset in the queue.", show_default=False)
    ] = None,
    output: Annotated[
        str | None,
        typer.Option(
            "--output",
            "-o",
            metavar="FILE",
            help="Write the decompressed body to this file; -: only the body, to standard output.",
            show_default=False,
        ),
    ] = None,
    admin: Admin = ADMIN_DEFAULT,
    as_json: Json = False,
) -> None:
    """Show one message: its properties, times, body, position, and state for each group.

    The message is found by its id, which needs --topic and an index (index.tiered or index.hash_files); by its offset
    id, 32 or 56 hex digits that name a broker and an offset of its log; or by --topic, --queue and --offset. If several
    messages have the same id, the newest is shown. Exit status 1 when the body cannot be uncompressed, 2 when there is
    no such message.
    """
    request = _request(message_id, topic, queue, offset)
    with service_port(admin, QueryServiceStub) as broker:
        answer = broker.GetMessage(request, timeout=CALL_TIMEOUT_S)
    tell_unread(answer.unread, admin)
    record = decoded(answer.message, admin)
    if answer.same_id > 1:
        say(f"{answer.same_id} messages have this id; this is the newest", err=True)
    stored = bytes(record.body)
    plain = plain_body(record.system_flag, stored)
    if plain is None:
        say("the body cannot be decompressed and is shown as stored", err=True)
    content = stored if plain is None else plain
    if output is not None:
        _write(output, content)
    if output != "-" and as_json:
        print_object(_all_fields(record, answer.message, content), as_json=True)
    elif output != "-":
        _print(record, answer.message, content, is_body_shown=output is None)
    raise typer.Exit(Exit.FINE if plain is not None else Exit.FINDING)


def _request(message_id: str | None, topic: str | None, queue: int | None, offset: int | None) -> pb.GetMessageRequest:
    """Return the request. Raises typer.BadParameter if the options do not identify a message."""
    if message_id is not None:
        if queue is not None or offset is not None:
            raise typer.BadParameter("not allowed together with ID", param_hint="--queue, --offset")
        return pb.GetMessageRequest(topic=topic or "", id=message_id)
    if topic is None or queue is None or offset is None:
        raise typer.BadParameter("ID is needed, or --topic, --queue and --offset together", param_hint="ID")
    return pb.GetMessageRequest(topic=topic, place=pb.QueuePlace(queue=queue, offset=offset))


def _write(target: str, content: bytes) -> None:
    if target == "-":
        say(content, nl=False)
        return
    try:
        Path(target).write_bytes(content)
    except OSError as error:
        end(Exit.COULD_NOT_RUN, f"{target}: {error.strerror}")


def _all_fields(record: Record, traced: pb.MessageTrace, body: bytes) -> dict[str, object]:
    return {
        **record_fields(record),
        "messageId": message_id_of(record),
        **body_fields(body),
        "queues": [{**queue_fields(each), "groups": list(map(group_fields, each.groups))} for each in traced.queues],
    }


def _print(record: Record, traced: pb.MessageTrace, body: bytes, *, is_body_shown: bool) -> None:
    properties = record.properties
    fields = {
        "messageId": message_id_of(record),
        "offsetId": offset_id_of(record),
        "topic": record.topic,
        "queue": record.queue_number,
        "offset": record.queue_offset,
        "storedAt": exact_time_text(record.store_timestamp_ms),
        "bornAt": exact_time_text(record.born_timestamp_ms),
        "bornHost": born_host_of(record),
        "storeHost": store_host_of(record),
        "logOffset": record.physical_offset,
        "size": record.size,
        "tag": properties.get(TAGS),
        "keys": properties.get(KEYS),
        "redelivered": record.reconsume_times,
        "flags": f"{record.system_flag:#x}",
        "bodyLength": len(body),
    }
    print_object(fields, as_json=False)
    say("\nproperties")
    for name, value in sorted(properties.items()):
        say(f"  {one_line(name)}={one_line(value)}")
    if is_body_shown:
        _print_body(body)
    say()
    print_trace(trace_rows(traced), TRACE_COLUMNS, as_json=False)


def _print_body(body: bytes) -> None:
    text = body_text(body)
    if text is None:
        say("\nbody, base64")
        say(base64.b64encode(body[:BODY_SHOWN_MAX]).decode())
    else:
        say("\nbody")
        say(body[:BODY_SHOWN_MAX].decode(errors="ignore"))
    if len(body) > BODY_SHOWN_MAX:
        say(f"… of {len(body)} bytes the first {BODY_SHOWN_MAX}; --output writes all")
