"""`quarry consume` and `tail` receive messages from a live broker."""

from __future__ import annotations

import base64
import signal
import uuid
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import Annotated, Final, NoReturn

import grpc
import typer

from quarry_mq.cli.online.connection.administration import admin_port, known
from quarry_mq.cli.online.connection.arguments import (
    ADMIN_DEFAULT,
    ENDPOINT_DEFAULT,
    Admin,
    AdminOfEndpoint,
    Endpoint,
    Json,
)
from quarry_mq.cli.online.connection.messaging import messaging_port
from quarry_mq.cli.online.groups.groups import CALL_TIMEOUT_S, RESET_TIMEOUT_S, reset_request
from quarry_mq.cli.records import Record
from quarry_mq.cli.terminal.output import json_line
from quarry_mq.cli.terminal.text import say, time_text, word
from quarry_mq.client.errors import CallRefused
from quarry_mq.client.messaging import MessagingClient
from quarry_mq.client.requests import Subscription, body_of
from quarry_mq.protocol.proto.apache.rocketmq.v2 import definition_pb2 as definition
from quarry_mq.protocol.proto.quarry.admin.v1 import admin_pb2 as pb
from quarry_mq.protocol.times import to_ms

BATCH_MAX: Final = 32
TAIL_WAIT_S: Final = 15.0
TAIL_INVISIBLE_S: Final = 60

Topic = Annotated[str, typer.Argument(metavar="TOPIC", help="Name of the topic.", show_default=False)]
Expression = Annotated[str, typer.Option("--tag", metavar="EXPRESSION", help="Tags such as `paid` or `paid || sent`.")]


def consume(
    topic: Topic,
    *,
    group: Annotated[
        str, typer.Option("--group", "-g", metavar="GROUP", help="The consumer group to read as.")
    ] = "quarry-cli",
    tag: Expression = "*",
    limit: Annotated[
        int | None,
        typer.Option(
            "--limit", "-n", metavar="N", min=1, help="Maximum number of messages; then end.", show_default=False
        ),
    ] = None,
    timeout: Annotated[
        float,
        typer.Option(
            "--timeout", metavar="SECONDS", min=0.0, help="How long to wait for the next message before the end."
        ),
    ] = 5.0,
    no_ack: Annotated[
        bool, typer.Option("--no-ack", help="Do not acknowledge: the messages come again after --invisible.")
    ] = False,
    invisible: Annotated[
        int,
        typer.Option(
            "--invisible",
            metavar="SECONDS",
            min=1,
            help="Seconds for which a received message is hidden from other consumers.",
        ),
    ] = 30,
    endpoint: Endpoint = ENDPOINT_DEFAULT,
    _admin: AdminOfEndpoint = None,
    as_json: Json = False,
) -> None:
    """Receive, show and acknowledge messages.

    Messages that were received but not shown at Ctrl-C, SIGTERM or the end of a pipe are given back at once.
    """
    shown = 0
    subscription = Subscription(group=group, topic=topic, expression=tag)
    with terminated_as_interrupted(), messaging_port(endpoint, subscription=subscription) as client:
        client.require_topic(topic)
        while limit is None or shown < limit:
            size = BATCH_MAX if limit is None else min(BATCH_MAX, limit - shown)
            received = client.receive(limit=size, invisible_s=invisible, wait_s=timeout)
            with returned_unless_shown(client, received) as left:
                while left:
                    show(left[0], as_json=as_json)
                    message = left.popleft()
                    if not no_ack:
                        client.acknowledge(message)
            shown += len(received)
            if not received:
                break


def tail(
    topic: Topic,
    *,
    tag: Expression = "*",
    start: Annotated[
        str, typer.Option("--from", metavar="latest|earliest|OFFSET|TIME", help="Where to start.")
    ] = "latest",
    limit: Annotated[
        int | None,
        typer.Option(
            "--limit", "-n", metavar="N", min=1, help="Maximum number of messages; then end.", show_default=False
        ),
    ] = None,
    endpoint: Endpoint = ENDPOINT_DEFAULT,
    admin: Admin = ADMIN_DEFAULT,
    as_json: Json = False,
) -> None:
    """Show messages as they arrive, until Ctrl-C or SIGTERM. Other groups are not affected.

    Reads as a group of its own, which is deleted at the end.
    """
    shown = 0
    with (
        suppress(KeyboardInterrupt),
        terminated_as_interrupted(),
        temporary_group(topic, start, admin) as group,
        messaging_port(endpoint, subscription=Subscription(group=group, topic=topic, expression=tag)) as client,
    ):
        while limit is None or shown < limit:
            size = BATCH_MAX if limit is None else min(BATCH_MAX, limit - shown)
            received = client.receive(limit=size, invisible_s=TAIL_INVISIBLE_S, wait_s=TAIL_WAIT_S)
            for message in received:
                show(message, as_json=as_json)
                client.acknowledge(message)
            shown += len(received)


@contextmanager
def returned_unless_shown(
    client: MessagingClient, received: Iterable[definition.Message]
) -> Iterator[deque[definition.Message]]:
    """Give back the messages that the block leaves, so that they are visible again at once."""
    left = deque(received)
    try:
        yield left
    finally:
        with suppress(CallRefused, grpc.RpcError):
            client.give_back(left)


@contextmanager
def terminated_as_interrupted() -> Iterator[None]:
    """Handle SIGTERM like Ctrl-C while the block runs, so that a command cleans up.

    A second SIGTERM ends it at once.
    """

    def interrupt(_number: int, _frame: object) -> NoReturn:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@contextmanager
def temporary_group(topic: str, start: str, admin: str) -> Iterator[str]:
    """Create a group that reads `topic` from `start`, and delete it at the end."""
    name = f"quarry-tail-{uuid.uuid4().hex[:12]}"
    reset = reset_request(name, topic, start)
    with admin_port(admin) as broker:
        broker.GetTopic(pb.GetTopicRequest(name=topic), timeout=CALL_TIMEOUT_S)
        broker.CreateGroup(pb.CreateGroupRequest(name=name), timeout=CALL_TIMEOUT_S)
        try:
            broker.ResetOffset(reset, timeout=RESET_TIMEOUT_S)
            yield name
        finally:
            broker.DeleteGroup(pb.DeleteGroupRequest(name=name), timeout=CALL_TIMEOUT_S)


def show(message: definition.Message, record: Record | None = None, *, as_json: bool) -> None:
    fields = message_fields(message, record)
    if as_json:
        say(json_line(fields))
        return
    stored_ms = to_ms(message.system_properties.store_timestamp) if record is None else record.store_timestamp_ms
    stored = time_text(stored_ms).replace("T", " ").removesuffix("Z")
    labels = [word(str(fields["messageId"])), f"{word(message.topic.name)}/{fields['queueId']}@{fields['queueOffset']}"]
    labels += [f"tag={word(str(fields['tag']))}"] if fields["tag"] else []
    labels += [f"keys={','.join(map(word, message.system_properties.keys))}"] if message.system_properties.keys else []
    labels += [f"{word(name)}={word(value)}" for name, value in sorted(message.user_properties.items())]
    say(f"{stored}  {'  '.join(labels)}")
    say(str(fields.get("body") or f"<{len(message.body)} bytes>"))


def message_fields(message: definition.Message, record: Record | None = None) -> dict[str, object]:
    """Return the JSON fields of a message: `body` if it is text, else `bodyBase64`, uncompressed.

    A body that cannot be uncompressed has `bodyEncoding`. Times are taken from the record if it is given: messages have
    none after the year 9999.
    """
    properties = message.system_properties
    fields: dict[str, object] = {
        "topic": message.topic.name,
        "queueId": properties.queue_id,
        "queueOffset": properties.queue_offset,
        "messageId": properties.message_id,
        "tag": properties.tag or None,
        "keys": list(properties.keys),
        "properties": dict(message.user_properties),
        "bornTimestamp": to_ms(properties.born_timestamp) if record is None else record.born_timestamp_ms,
        "storeTimestamp": to_ms(properties.store_timestamp) if record is None else record.store_timestamp_ms,
        "deliveryAttempt": properties.delivery_attempt,
        "messageGroup": properties.message_group or None,
        "priority": known(properties, "priority"),
        "liteTopic": properties.lite_topic or None,
    }
    body = body_of(message)
    if body is None:
        fields["bodyEncoding"], body = "gzip", message.body
    try:
        fields["body"] = body.decode()
    except UnicodeDecodeError:
        fields["bodyBase64"] = base64.b64encode(body).decode()
    return fields
