"""`quarry produce` and `quarry message send` send messages to a live broker.

`quarry produce` sends one message, or one for each line. `quarry message send` sends one through the admin port.
"""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from itertools import groupby
from pathlib import Path
from typing import Annotated, BinaryIO, Final, NamedTuple

import grpc
import typer

from quarry_mq.cli.online.connection.administration import official_port
from quarry_mq.cli.online.connection.arguments import (
    ADMIN_DEFAULT,
    ENDPOINT_DEFAULT,
    Admin,
    AdminOfEndpoint,
    Body,
    Endpoint,
    Json,
    Keys,
    Properties,
    Tag,
    pairs,
)
from quarry_mq.cli.online.connection.messaging import messaging_port
from quarry_mq.cli.online.messages.message_lines import Line, LineInvalid, lines_as_they_come, message_of_json
from quarry_mq.cli.terminal.exit import Exit, end
from quarry_mq.cli.terminal.output import json_line, print_object
from quarry_mq.cli.terminal.progress import shown_progress
from quarry_mq.cli.terminal.text import say, word
from quarry_mq.cli.terminal.times import option_ms
from quarry_mq.client.errors import CallRefused
from quarry_mq.client.messaging import MessagingClient
from quarry_mq.client.requests import OutgoingMessage, Sent
from quarry_mq.protocol.clock import Progress, ReportProgress
from quarry_mq.protocol.proto.apache.rocketmq.v2 import admin_pb2 as pb
from quarry_mq.protocol.proto.apache.rocketmq.v2 import definition_pb2 as definition

BATCH_MESSAGES: Final = 32
BATCH_BYTES: Final = 1024 * 1024
ABOUT_THE_MESSAGE: Final = frozenset(
    {
        definition.BAD_REQUEST,
        definition.PAYLOAD_TOO_LARGE,
        definition.ILLEGAL_MESSAGE_TAG,
        definition.ILLEGAL_MESSAGE_KEY,
        definition.ILLEGAL_MESSAGE_GROUP,
        definition.ILLEGAL_MESSAGE_PROPERTY_KEY,
        definition.ILLEGAL_DELIVERY_TIME,
        definition.ILLEGAL_LITE_TOPIC,
        definition.MESSAGE_PROPERTIES_TOO_LARGE,
        definition.MESSAGE_BODY_TOO_LARGE,
        definition.MESSAGE_BODY_EMPTY,
        definition.MESSAGE_CORRUPTED,
        definition.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE,
    }
)
"""Codes after which the next line may succeed. After any other code no further line is sent."""

Topic = Annotated[str, typer.Argument(metavar="TOPIC", help="Name of the topic.", show_default=False)]
DeliverAt = Annotated[
    str | None,
    typer.Option(
        "--deliver-at",
        metavar="TIME",
        help="Delivery time: a date, 2h (from now), or ms since 1970.",
        show_default=False,
    ),
]


def produce(
    topic: Topic,
    body: Body = "-",
    *,
    lines: Annotated[
        str | None,
        typer.Option(
            "--file",
            metavar="FILE",
            help="Send each line of this file, instead of BODY; - reads standard input.",
            show_default=False,
        ),
    ] = None,
    json_lines: Annotated[
        bool, typer.Option("--json-lines", help="Lines are JSON objects, as `quarry consume --json` writes them.")
    ] = False,
    tag: Tag = None,
    key: Keys = None,
    properties: Properties = None,
    message_group: Annotated[
        str | None,
        typer.Option("--message-group", metavar="GROUP", help="Message group, for a FIFO topic.", show_default=False),
    ] = None,
    deliver_at: DeliverAt = None,
    count: Annotated[
        int, typer.Option("--count", "-n", metavar="N", min=1, help="Number of times to send the message.")
    ] = 1,
    endpoint: Endpoint = ENDPOINT_DEFAULT,
    _admin: AdminOfEndpoint = None,
    as_json: Json = False,
) -> None:
    """Send a message, or one for each line of a file, and show its id and where it is stored.

    Lines are sent in their order, as soon as they arrive; empty lines are skipped. Exit status 1: some lines were not
    valid or were refused; each is reported with its number, and all others were sent.
    """
    if message_group is not None and deliver_at is not None:
        raise typer.BadParameter("--message-group and --deliver-at are not allowed together")
    given = OutgoingMessage(
        topic=topic,
        body=b"",
        tag=tag,
        keys=key or (),
        properties=pairs(properties, "--property"),
        message_group=message_group,
        deliver_at_ms=option_ms(deliver_at, "--deliver-at", is_future=True),
    )
    if lines is not None:
        if body != "-" or count != 1:
            raise typer.BadParameter("not allowed together with BODY or --count", param_hint="--file")
        _produce_lines(lines, given, is_json=json_lines, endpoint=endpoint, as_json=as_json)
        return
    if json_lines:
        raise typer.BadParameter("needs --file", param_hint="--json-lines")
    message = replace(given, body=sys.stdin.buffer.read() if body == "-" else body.encode())
    with messaging_port(endpoint) as client:
        for _ in range(count):
            (sent,) = client.send(message)
            fields = {"topic": topic, "messageId": sent.message_id, "queueOffset": sent.queue_offset}
            say(json_line(fields) if as_json else f"{word(sent.message_id)}  offset {sent.queue_offset}")


class _Numbered(NamedTuple):
    number: int
    message: OutgoingMessage


def _produce_lines(name: str, given: OutgoingMessage, *, is_json: bool, endpoint: str, as_json: bool) -> None:
    with _opened(name) as stream, messaging_port(endpoint) as client, shown_progress() as report:
        sending = _Sending(client, given, is_json=is_json, as_json=as_json)
        try:
            sending.send_all(stream, report)
        except (CallRefused, grpc.RpcError, KeyboardInterrupt):
            say(sending.state(), err=True)
            raise
    if not as_json:
        say(f"{sending.sent:,} messages sent" + (f", {sending.failed:,} lines not" if sending.failed else ""))
    raise typer.Exit(Exit.FINDING if sending.failed else Exit.FINE)


class _Sending:
    """Sends the lines of a stream."""

    def __init__(self, client: MessagingClient, given: OutgoingMessage, *, is_json: bool, as_json: bool) -> None:
        self._client = client
        self._given = given
        self._is_json = is_json
        self._as_json = as_json
        self._under_way: Sequence[_Numbered] = ()
        self._last_sent = 0
        self.sent = 0
        self.failed = 0

    def send_all(self, stream: BinaryIO, report: ReportProgress) -> None:
        size = _size(stream)
        for lines in lines_as_they_come(stream):
            for batch in _batches(self._messages(lines)):
                self._send(batch)
            if size is not None:
                report(Progress("sending", min(lines[-1].position, size), size, f"{self.sent:,} messages"))

    def state(self) -> str:
        """Return the state as text, so that the user can go on after the last line that was sent."""
        text = f"{self.sent:,} messages sent" + (f", the last of line {self._last_sent}" if self.sent else "")
        if not self._under_way:
            return text
        first, last = self._under_way[0].number, self._under_way[-1].number
        return f"{text}; unknown for " + (f"line {first}" if first == last else f"lines {first} to {last}")

    def _messages(self, lines: Iterable[Line]) -> Iterator[_Numbered]:
        for line in lines:
            if line.text is None:
                self._fail(line.number, "is too long")
            elif self._is_json and line.text.strip():
                try:
                    yield _Numbered(line.number, message_of_json(line.text, self._given))
                except LineInvalid as error:
                    self._fail(line.number, str(error))
            elif line.text.strip():
                yield _Numbered(line.number, replace(self._given, body=line.text))

    def _send(self, batch: Sequence[_Numbered]) -> None:
        self._under_way = batch
        try:
            found = self._client.send(*(each.message for each in batch))
        except CallRefused as error:  # then none of them is stored
            self._under_way = ()
            if error.code not in ABOUT_THE_MESSAGE:
                raise
            if len(batch) == 1:
                self._fail(batch[0].number, str(error))
            else:
                for each in batch:
                    self._send([each])
            return
        self._under_way = ()
        for each, sent in zip(batch, found, strict=True):
            self._tell(each.number, sent)

    def _tell(self, number: int, sent: Sent) -> None:
        self.sent += 1
        self._last_sent = number
        if self._as_json:
            fields = {"topic": self._given.topic, "messageId": sent.message_id, "queueOffset": sent.queue_offset}
            say(json_line({**fields, "line": number}))

    def _fail(self, number: int, reason: str) -> None:
        self.failed += 1
        say(f"line {number}: {word(reason, err=True)}", err=True)


def _batches(messages: Iterable[_Numbered]) -> Iterator[Sequence[_Numbered]]:
    """Group consecutive messages that may go to the same queue, since a request goes to one queue."""
    for _, alike in groupby(messages, key=lambda each: _place(each.message)):
        batch: list[_Numbered] = []
        size = 0
        for each in alike:
            if batch and (len(batch) == BATCH_MESSAGES or size + len(each.message.body) > BATCH_BYTES):
                yield batch
                batch, size = [], 0
            batch.append(each)
            size += len(each.message.body)
        yield batch


def _place(message: OutgoingMessage) -> tuple[object, ...]:
    return (message.type, message.message_group, message.lite_topic, message.priority)


def _opened(name: str) -> AbstractContextManager[BinaryIO]:
    if name == "-":
        return nullcontext(sys.stdin.buffer)
    try:
        return Path(name).open("rb")
    except OSError as error:
        end(Exit.COULD_NOT_RUN, f"{name}: {error.strerror}")


def _size(stream: BinaryIO) -> int | None:
    """Return the size of a file in bytes; None for a stream whose end is not known."""
    try:
        status = os.fstat(stream.fileno())
    except OSError:
        return None
    return status.st_size if stat.S_ISREG(status.st_mode) else None


CALL_TIMEOUT_S: Final = 60.0


def send(
    topic: Annotated[str, typer.Argument(metavar="TOPIC", help="Name of the topic.", show_default=False)],
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
