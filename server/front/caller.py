"""Logging of calls: the fields of log lines about a call, and the access log with one line for each ended call."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import structlog

from quarry_mq.protocol.codes import GrpcStatus
from quarry_mq.server.front.contract import Call

LOGGED_HEADERS: Final[Mapping[str, str]] = {"client_id": "x-mq-client-id", "request_id": "x-mq-request-id"}
"""Keys of a log line, with the headers by which clients state their id and that of the request."""

VALUE_LENGTH_MAX: Final = 128
"""Characters of a logged header. Ids of clients have up to a hundred; requests are identified by UUIDs."""


def told_of(call: Call) -> dict[str, str]:
    """Return `path`, `peer`, and the ids of client and request if they were sent. Clients may state any id."""
    told = {"path": call.path, "peer": call.peer}
    for key, header in LOGGED_HEADERS.items():
        value = call.header(header)
        if value:
            told[key] = value[:VALUE_LENGTH_MAX]
    return told


log = structlog.get_logger(__name__)


def log_call(call: Call, status: GrpcStatus, seconds: float) -> None:
    log.info("call", **told_of(call), status=status.name, seconds=round(seconds, 6))
