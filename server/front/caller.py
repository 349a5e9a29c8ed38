"""Log lines tell of a call what is told here; a call that has ended has a line of its own where that is set."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import structlog

from quarry_mq.server.front.contract import Call
from quarry_mq.server.front.status import GrpcStatus

LOGGED_HEADERS: Final[Mapping[str, str]] = {"client_id": "x-mq-client-id", "request_id": "x-mq-request-id"}
"""Key of a log line to the header by which clients tell who they are, and which of their requests this is."""

VALUE_LENGTH_MAX: Final = 128
"""Characters. Ids of clients have up to a hundred; requests are numbered by UUIDs."""


def told_of(call: Call) -> dict[str, str]:
    """`path`, `peer`, and the client's and the request's ids where it sent them. They are what anybody may claim."""
    told = {"path": call.path, "peer": call.peer}
    for key, header in LOGGED_HEADERS.items():
        value = call.header(header)
        if value:
            told[key] = value[:VALUE_LENGTH_MAX]
    return told


log = structlog.get_logger(__name__)


def log_call(call: Call, status: GrpcStatus, seconds: float) -> None:
    log.info("call", **told_of(call), status=status.name, seconds=round(seconds, 6))
