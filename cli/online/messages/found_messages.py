"""Fetches messages that a broker found page by page, decodes them, and shows which queues they went to."""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final

from quarry_mq.cli.online.connection.known import known, known_time
from quarry_mq.cli.terminal.text import say, word
from quarry_mq.protocol.messages.bodies import body_text
from quarry_mq.protocol.proto.quarry.admin.v1 import query_pb2 as pb


def body_fields(body: bytes) -> dict[str, object]:
    """Return the JSON field of a body: `body` if it is text, else `bodyBase64`."""
    text = body_text(body)
    return {"bodyBase64": base64.b64encode(body).decode()} if text is None else {"body": text}


CALL_TIMEOUT_S: Final = 60.0
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
            yield {**dict.fromkeys(TRACE_COLUMNS), **place}


def queue_fields(queue: pb.QueueTrace) -> dict[str, object]:
    return {"queueOf": queue.topic, "queue": queue.queue, "offset": queue.offset, "isThere": queue.is_there}


def group_fields(group: pb.GroupTrace) -> dict[str, object]:
    return {
        "group": group.group,
        "state": pb.MessageState.Name(group.state).removeprefix("MESSAGE_STATE_").lower().replace("_", " "),
        "attempts": group.attempts,
        "visibleAt": known_time(group, "visible_at_ms"),
        "clientId": known(group, "client_id"),
    }
