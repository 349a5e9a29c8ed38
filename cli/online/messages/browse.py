"""`quarry browse` shows messages of a topic in stored order, from any position, or as they come."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import suppress
from itertools import islice
from typing import Annotated, Final

import typer

from quarry_mq.cli.online.connection.administration import service_port
from quarry_mq.cli.online.connection.arguments import ADMIN_DEFAULT, Admin, Json
from quarry_mq.cli.online.messages.consume import Topic, show, terminated_as_interrupted
from quarry_mq.cli.online.messages.message_query import CALL_TIMEOUT_S
from quarry_mq.cli.records import Record, decoded, message_of
from quarry_mq.cli.terminal.exit import Exit
from quarry_mq.cli.terminal.text import say, word
from quarry_mq.cli.terminal.times import DATE, past_ms
from quarry_mq.client.requests import body_of
from quarry_mq.protocol.proto.apache.rocketmq.v2 import definition_pb2 as definition
from quarry_mq.protocol.proto.quarry.admin.v1 import browsing_pb2 as pb
from quarry_mq.protocol.proto.quarry.admin.v1.browsing_pb2_grpc import BrowsingServiceStub

LATEST: Final = "latest"
EARLIEST: Final = "earliest"
PAGE_ROWS: Final = 500


Start = Annotated[
    str,
    typer.Option(
        "--from",
        metavar="latest|earliest|OFFSET|TIME",
        help="Where to start; an offset only with --queue or --lite-topic.",
    ),
]
Backwards = Annotated[bool, typer.Option("--backwards", help="Go from the start to older messages.")]
Queue = Annotated[
    int | None, typer.Option("--queue", metavar="N", min=0, help="Only messages of this queue.", show_default=False)
]
Lite = Annotated[
    str, typer.Option("--lite-topic", metavar="LITE", help="Only messages of this lite topic.", show_default=False)
]
Tags = Annotated[str, typer.Option("--tag", metavar="EXPRESSION", help="Tags such as `paid` or `paid || sent`.")]
Sql = Annotated[str, typer.Option("--sql", metavar="EXPRESSION", help="SQL filter over properties, as for consumers.")]
Contains = Annotated[
    str, typer.Option("--contains", metavar="TEXT", help="Only messages with this text in the decompressed body.")
]
Follow = Annotated[bool, typer.Option("--follow", help="Follow new messages, until Ctrl-C or SIGTERM.")]
Rate = Annotated[
    int,
    typer.Option("--rate", metavar="N", min=1, max=1000, help="With --follow: maximum number of messages per second."),
]
Limit = Annotated[
    int | None,
    typer.Option("--limit", "-n", metavar="N", min=1, help="Maximum number of messages; then end.", show_default=False),
]


def browse(
    topic: Topic,
    *,
    start: Start = LATEST,
    backwards: Backwards = False,
    queue: Queue = None,
    lite: Lite = "",
    tags: Tags = "",
    sql: Sql = "",
    contains: Contains = "",
    follow: Follow = False,
    rate: Rate = 50,
    limit: Limit = None,
    admin: Admin = ADMIN_DEFAULT,
    as_json: Json = False,
) -> None:
    """Show the messages of a topic, the newest first by default. No group is created, and no group is affected.

    Without --limit the first 50, with --follow any number. The broker filters. A damaged record is passed over, with a
    note on standard error that has the command with which a group goes on behind it. Exit status 1 when there are no
    messages, or when damaged records were passed over.
    """
    if sql and tags:
        raise typer.BadParameter("not allowed together with --tag", param_hint="--sql")
    chosen = pb.MessageFilter(expression=sql or tags, is_sql=bool(sql), body_contains=contains.encode())
    shown, damaged = 0, list[pb.DamagedMessage]()
    with suppress(KeyboardInterrupt), terminated_as_interrupted(), service_port(admin, BrowsingServiceStub) as broker:
        if follow:
            if start != LATEST or backwards:
                raise typer.BadParameter("only new messages can be followed", param_hint="--from")
            tail = pb.TailMessagesRequest(
                topic=topic, lite_topic=lite, queue=queue, filter=chosen, messages_per_second_max=rate
            )
            found = _followed(broker, tail, admin, damaged)
        else:
            page = pb.BrowseMessagesRequest(
                topic=topic, lite_topic=lite, queue=queue, filter=chosen, is_ascending=not backwards
            )
            limit = limit or 50
            _begin(page, start)
            page.limit = min(limit, PAGE_ROWS)
            found = _pages(broker, page, damaged)
        for each in islice(found, limit):
            shown += 1
            record = decoded(each.message, admin)
            show(_message(each.topic, record), record, as_json=as_json)
    if not shown and not follow and not as_json:
        say("no messages")
    raise typer.Exit(Exit.FINE if (shown or follow) and not damaged else Exit.FINDING)


def _begin(request: pb.BrowseMessagesRequest, start: str) -> None:
    """Set the start in the request. Raises typer.BadParameter for an invalid position."""
    if start == LATEST:
        request.is_ascending = False
    elif start == EARLIEST:
        request.is_ascending = True
    elif start.isascii() and start.isdecimal():
        request.offset = int(start)
    else:
        stored_ms = past_ms(start)
        if stored_ms is None:
            reason = f"{start!r} is neither latest, earliest, an offset, a date like {DATE}, nor an age such as 2h"
            raise typer.BadParameter(reason, param_hint="--from")
        request.stored_ms = stored_ms


def _pages(
    broker: BrowsingServiceStub, request: pb.BrowseMessagesRequest, damaged: list[pb.DamagedMessage]
) -> Iterator[pb.BrowsedMessage]:
    """Yield the messages page after page; damaged ones are told of on standard error and added to `damaged`."""
    while True:
        answer = broker.BrowseMessages(request, timeout=CALL_TIMEOUT_S)
        _tell_damaged(answer.damaged)
        damaged += answer.damaged
        yield from answer.messages
        if not answer.HasField("next"):
            return
        request.cursor = answer.next


def _tell_damaged(damaged: Iterable[pb.DamagedMessage]) -> None:
    for each in damaged:
        say(f"queue {each.queue}, offset {each.offset} is passed over: {word(each.reason, err=True)}", err=True)
        say(f"a group goes on behind it with: {word(each.command, err=True)}", err=True)


def _followed(
    broker: BrowsingServiceStub, request: pb.TailMessagesRequest, address: str, damaged: list[pb.DamagedMessage]
) -> Iterator[pb.BrowsedMessage]:
    """Yield the messages as they come; damaged ones and the number left out are told of on standard error."""
    for answer in broker.TailMessages(request):
        _tell_damaged(answer.damaged)
        damaged += answer.damaged
        yield from answer.messages
        if answer.left_out:
            say(f"{address}: {answer.left_out} messages were left out because they arrived too fast", err=True)


def _message(topic: str, record: Record) -> definition.Message:
    """Return the message as consumers get it, with its body uncompressed."""
    message = message_of(record, topic)
    plain = body_of(message)
    message.body = message.body if plain is None else plain
    return message
