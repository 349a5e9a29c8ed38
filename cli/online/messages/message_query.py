"""`quarry message query` lists messages of a topic by key or by time, a row for each.

Messages that a broker found are fetched page by page and decoded, and it is shown which queues they went to.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import Annotated, Any, Final, NamedTuple

import typer

from quarry_mq.cli.offline.arguments import Topic
from quarry_mq.cli.online.connection.administration import known, known_time, official_port, service_port
from quarry_mq.cli.online.connection.arguments import ADMIN_DEFAULT, Admin, Json
from quarry_mq.cli.online.messages.consume import message_fields
from quarry_mq.cli.records import Record, decoded, message_of
from quarry_mq.cli.terminal.exit import Exit
from quarry_mq.cli.terminal.output import print_rows
from quarry_mq.cli.terminal.text import say, time_text, word
from quarry_mq.cli.terminal.times import Since, Until, option_ms
from quarry_mq.client.requests import body_of
from quarry_mq.protocol.messages.bodies import body_text
from quarry_mq.protocol.proto.apache.rocketmq.v2 import admin_pb2 as official
from quarry_mq.protocol.proto.apache.rocketmq.v2 import definition_pb2 as definition
from quarry_mq.protocol.proto.quarry.admin.v1 import query_pb2 as pb
from quarry_mq.protocol.proto.quarry.admin.v1.query_pb2_grpc import QueryServiceStub
from quarry_mq.protocol.times import to_ms


def body_fields(body: bytes) -> dict[str, object]:
    """Return the JSON field of a body: `body` if it is text, else `bodyBase64`."""
    text = body_text(body)
    return {"bodyBase64": base64.b64encode(body).decode()} if text is None else {"body": text}


CALL_TIMEOUT_S: Final = 60.0
STATES: Final = {
    pb.MESSAGE_STATE_WAITING: "waiting",
    pb.MESSAGE_STATE_IN_FLIGHT: "in flight",
    pb.MESSAGE_STATE_RETRYING: "retrying",
    pb.MESSAGE_STATE_DONE: "done",
    pb.MESSAGE_STATE_DEAD_LETTERED: "dead-lettered",
    pb.MESSAGE_STATE_DONE_OR_DEAD_LETTERED: "done or dead-lettered",
}
TRACE_COLUMNS: Final = ("queueOf", "queue", "offset", "isThere", "group", "state", "attempts", "visibleAt", "clientId")


def found_pages(call: Callable[..., Any], request: pb.QueryMessagesRequest, address: str) -> Iterator[Any]:
    """Yield the answers to QueryMessages or TraceMessages until the request is complete.

    A warning on standard error says if messages may be missing.
    """
    is_first = True
    while True:
        answer = call(request, timeout=CALL_TIMEOUT_S)
        if is_first:
            tell_unread(answer.unread, address)
        yield answer
        if not answer.has_more:
            return
        is_first = False
        request.skip += len(answer.messages)
        request.limit -= len(answer.messages)


def tell_unread(files: Iterable[pb.UnreadFile], address: str) -> None:
    for each in files:
        say(
            f"{address}: messages may be missing, {each.name} could not be read: {word(each.reason, err=True)}",
            err=True,
        )


def trace_rows(traced: pb.MessageTrace) -> Iterator[dict[str, object]]:
    """Yield a row for each queue and group, and one for a queue that no group has read."""
    for queue in traced.queues:
        place = queue_fields(queue)
        for group in queue.groups:
            yield {**place, **group_fields(group)}
        if not queue.groups:
            yield {**dict.fromkeys((*TRACE_COLUMNS, "deadLetterOffset")), **place}


def queue_fields(queue: pb.QueueTrace) -> dict[str, object]:
    return {"queueOf": queue.topic, "queue": queue.queue, "offset": queue.offset, "isThere": queue.is_there}


def group_fields(group: pb.GroupTrace) -> dict[str, object]:
    return {
        "group": group.group,
        "state": STATES.get(group.state, "unknown"),
        "attempts": known(group, "attempts"),
        "visibleAt": known_time(group, "visible_at_ms"),
        "clientId": known(group, "client_id"),
        "deadLetterOffset": known(group, "dead_letter_offset"),
    }


def print_trace(rows: Iterable[dict[str, object]], columns: Sequence[str], *, as_json: bool) -> None:
    """Print rows of traces. People read "not kept" where the broker forgot how often it delivered a message."""
    shown = rows if as_json else map(_told, rows)
    print_rows(shown, columns, as_json=as_json, kind="messages")


def _told(row: dict[str, object]) -> dict[str, object]:
    is_forgotten = row["group"] is not None and row["attempts"] is None
    return {**row, "attempts": "not kept"} if is_forgotten else row


COLUMNS: Final = ("messageId", "storedAt", "queue", "offset", "tag", "keys", "size")
PAGE_ROWS: Final = 256
KEYED_MAX: Final = 1_000
"""Messages with one key that the broker looks at, at most."""


class Wanted(NamedTuple):
    """The conditions of a query. `begin_ms` and `end_ms` are store times, both included; None: now."""

    topic: str
    key: str | None
    lite: str | None
    queue: int | None
    begin_ms: int
    end_ms: int | None


class _Found(NamedTuple):
    """A message as clients get it, and its record if the broker sent it."""

    message: definition.Message
    record: Record | None


def query(
    *,
    topic: Topic,
    key: Annotated[
        str | None,
        typer.Option(
            "--key",
            metavar="KEY",
            help="A key that the sender gave, or the message's id: the newest first. Needs an index.",
            show_default=False,
        ),
    ] = None,
    since: Since = None,
    until: Until = None,
    queue: Annotated[
        int | None, typer.Option("--queue", metavar="N", min=0, help="Only messages of this queue.", show_default=False)
    ] = None,
    lite: Annotated[
        str | None,
        typer.Option("--lite-topic", metavar="LITE", help="Only messages of this lite topic.", show_default=False),
    ] = None,
    limit: Annotated[int, typer.Option("--limit", "-n", metavar="N", min=1, help="Maximum number of rows.")] = 100,
    admin: Admin = ADMIN_DEFAULT,
    as_json: Json = False,
) -> None:
    """List the messages of a topic in the order in which they were stored, or those with a key.

    With a key the newest 1,000 messages are searched; use --until for older ones. Exit status 1 when there are none.
    """
    wanted = Wanted(topic, key, lite, queue, option_ms(since, "--since") or 0, option_ms(until, "--until"))
    shown = 0

    def rows(messages: Iterable[_Found]) -> Iterator[dict[str, object]]:
        nonlocal shown
        for each in islice(messages, limit):
            shown += 1
            yield _row(*each)

    found = _by_time(wanted, limit, admin) if key is None else _by_key(wanted, limit, admin)
    print_rows(rows(found), COLUMNS, as_json=as_json, kind="messages")
    raise typer.Exit(Exit.FINE if shown else Exit.FINDING)


def _by_time(wanted: Wanted, limit: int, address: str) -> Iterator[_Found]:
    request = official.ListMessageRequest(
        topic=definition.Resource(name=wanted.topic), lite_topic=wanted.lite, queue_id=wanted.queue
    )
    request.begin_timestamp.FromMilliseconds(wanted.begin_ms)
    if wanted.end_ms is not None:
        request.end_timestamp.FromMilliseconds(wanted.end_ms)
    request.page_size = min(limit, PAGE_ROWS)
    with official_port(address) as broker:
        while True:
            answer = broker.call("QueryMessage", request, timeout_s=CALL_TIMEOUT_S)
            yield from (_Found(each, None) for each in answer.messages if _is_wanted(each, wanted))
            if not answer.scroll_id:
                return
            request.scroll_id = answer.scroll_id


def _by_key(wanted: Wanted, limit: int, address: str) -> Iterator[_Found]:
    is_filtered = wanted.queue is not None or wanted.lite is not None
    request = pb.QueryMessagesRequest(
        topic=wanted.topic,
        key=wanted.key,
        from_ms=wanted.begin_ms,
        to_ms=wanted.end_ms,
        limit=KEYED_MAX if is_filtered else min(limit, KEYED_MAX),
    )
    seen = set[int]()
    with service_port(address, QueryServiceStub) as broker:
        for page in found_pages(broker.QueryMessages, request, address):
            for each in page.messages:
                # messages that come meanwhile push the others to the next page
                if each.physical_offset in seen:
                    continue
                seen.add(each.physical_offset)
                record = decoded(each, address)
                message = message_of(record, wanted.topic)
                if _is_wanted(message, wanted):
                    yield _Found(message, record)


def _is_wanted(message: definition.Message, wanted: Wanted) -> bool:
    properties = message.system_properties
    return wanted.queue in (None, properties.queue_id) and wanted.lite in (None, properties.lite_topic)


def _row(message: definition.Message, record: Record | None) -> dict[str, object]:
    properties = message.system_properties
    row = message_fields(message, record)
    for name in ("queueId", "queueOffset", "deliveryAttempt", "body", "bodyBase64"):
        row.pop(name, None)
    plain = body_of(message)
    return {
        **row,
        "queue": properties.queue_id,
        "offset": properties.queue_offset,
        "storedAt": time_text(to_ms(properties.store_timestamp) if record is None else record.store_timestamp_ms),
        "messageGroup": properties.message_group or None,
        "liteTopic": properties.lite_topic or None,
        "size": len(message.body),
        **body_fields(message.body if plain is None else plain),
    }
