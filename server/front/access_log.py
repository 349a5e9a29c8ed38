"""One line for each call that has ended, for those who ask for it."""

from __future__ import annotations

import structlog

from server.front.contract import Call
from server.front.status import GrpcStatus

log = structlog.get_logger(__name__)


def log_call(call: Call, status: GrpcStatus, seconds: float) -> None:
    log.info("call", path=call.path, peer=call.peer, status=status.name, seconds=round(seconds, 6))
