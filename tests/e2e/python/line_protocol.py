"""The line protocol of the client programs (see `tests/e2e/README.md`), for the Python ones."""

from __future__ import annotations

import base64
import json
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

from rocketmq import ClientConfiguration, Credentials
from rocketmq.grpc_protocol import FilterType

Line = dict[str, Any]
FILTER_TYPES = {"tag": FilterType.TAG, "sql": FilterType.SQL}
TLS = os.environ.get("CLIENT_TLS") == "on"
_OUTPUT = threading.Lock()


def configuration(endpoint: str) -> ClientConfiguration:
    """Where to connect, and as whom."""
    credentials = Credentials(os.environ.get("CLIENT_USER", ""), os.environ.get("CLIENT_SECRET", ""))
    return ClientConfiguration(endpoint, credentials)


def wall_ms() -> int:
    return time.time_ns() // 1_000_000


def say(line: Line) -> None:
    """Write one line at once, from any thread."""
    with _OUTPUT:
        sys.stdout.write(json.dumps(line, ensure_ascii=False) + "\n")
        sys.stdout.flush()


def commands() -> Iterator[Line]:
    """The commands until `close` or the end of the input."""
    for text in sys.stdin:
        command = json.loads(text)
        if command["command"] == "close":
            return
        yield command


def describe(error: BaseException) -> Line:
    code = getattr(error, "code", None)  # a method in what grpcio raises
    return {"type": type(error).__name__, "text": str(error), "code": code if isinstance(code, int) else None}


def serve(answers: dict[str, Callable[[Line], Line]]) -> None:
    """Answer every command with one line; what the client library raises becomes the field `error`."""
    for command in commands():
        try:
            line = answers[command["command"]](command)
        except Exception as error:
            line = {"error": describe(error)}
        say(line)


def message_line(message: Any) -> Line:
    """A received message of the official client as the protocol shows it."""
    return {
        "message_id": message.message_id,
        "topic": message.topic,
        "body": base64.b64encode(message.body).decode(),
        "tag": message.tag,
        "keys": sorted(message.keys),
        "properties": dict(message.properties),
        "message_group": message.message_group or None,
        "lite_topic": message.lite_topic,
        "priority": message.priority,
        "attempt": message.delivery_attempt,
        "born_ms": message.born_timestamp,
        "corrupted": message.corrupted,
        "at_ms": wall_ms(),
    }
