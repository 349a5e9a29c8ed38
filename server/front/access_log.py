"""One line for each call that has ended, for those who ask for it."""

from __future__ import annotations

import structlog

from server.front.caller import told_of
from server.front.contract import Call
from server.front.status import GrpcStatus

log = structlog.get_logger(__name__)


def log_call(call: Call, status: GrpcStatus, seconds: float) -> None:
    log.info("call", **told_of(call), status=status.name, seconds=round(seconds, 6))
