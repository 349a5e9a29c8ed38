"""What log lines say of the call that they are about."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from server.front.contract import Call

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
