"""Codes of failed calls as statuses of HTTP."""

from __future__ import annotations

from http import HTTPStatus
from typing import Final

from server.console.contract import CallFailed

UNAUTHENTICATED: Final = "UNAUTHENTICATED"

STATUSES: Final = {
    "INVALID_ARGUMENT": HTTPStatus.BAD_REQUEST,
    UNAUTHENTICATED: HTTPStatus.UNAUTHORIZED,
    "PERMISSION_DENIED": HTTPStatus.FORBIDDEN,
    "NOT_FOUND": HTTPStatus.NOT_FOUND,
    "ALREADY_EXISTS": HTTPStatus.CONFLICT,
    "ABORTED": HTTPStatus.CONFLICT,
    "FAILED_PRECONDITION": HTTPStatus.PRECONDITION_FAILED,
    "OUT_OF_RANGE": HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
    "RESOURCE_EXHAUSTED": HTTPStatus.TOO_MANY_REQUESTS,
    "UNIMPLEMENTED": HTTPStatus.NOT_IMPLEMENTED,
    "UNAVAILABLE": HTTPStatus.SERVICE_UNAVAILABLE,
    "DEADLINE_EXCEEDED": HTTPStatus.SERVICE_UNAVAILABLE,
    "CANCELLED": HTTPStatus.SERVICE_UNAVAILABLE,
}
"""Any other code is the broker's fault."""


def http_status(failure: CallFailed) -> int:
    if failure.status is not None:
        return failure.status
    return STATUSES.get(failure.code, HTTPStatus.INTERNAL_SERVER_ERROR)
