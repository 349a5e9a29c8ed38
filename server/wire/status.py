"""Conversion of errors to the protocol's in-band status. Only here does an error become a code.

Absolute paths are removed from answers. The paths of files on this machine are for its operators, who read the log;
answers name a file within the store.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

from google.protobuf.message import DecodeError

from quarry_mq.kv import EngineCorrupt, EngineFull
from quarry_mq.protocol.proto.apache.rocketmq.v2 import definition_pb2 as definition
from quarry_mq.server.errors import (
    InvalidReceiptHandle,
    InvalidTransactionId,
    LiteQuotaExceeded,
    LiteTopicsFull,
    NoIndex,
    OwnerAway,
    PermissionDenied,
    Unauthenticated,
)
from quarry_mq.server.filters import IllegalExpression
from quarry_mq.store import errors
from quarry_mq.store.metadata import IllegalGroupName, IllegalTopicName

_STORES: Final[dict[str, re.Pattern[str]]] = {}
"""Patterns by the absolute path of a store: they match that path as a whole name, with a separator after it."""

_PATH: Final = re.compile(r"(?<![\w./:-])/(?:[^\s/:;,'\"()\[\]]+/)+([^\s/:;,'\"()\[\]]*)")
"""An absolute path below at least one folder. Its last name is kept, with that of the folder it lies in."""


def is_store(directory: Path) -> None:
    """Register a store's folder: from now on its path is removed from texts, whatever its name looks like."""
    for place in {directory.absolute(), directory.resolve()}:
        _STORES[str(place)] = re.compile(rf"{re.escape(str(place))}(?:/(?=[^/])|(?![\w./-]))")


def without_places(text: str) -> str:
    """Return the text with absolute paths cut to the last folder and the name, or to the path within a store."""
    if "/" not in text:
        return text
    for pattern in _STORES.values():
        text = pattern.sub(lambda found: "" if found.group().endswith("/") else "the store", text)
    return _PATH.sub(lambda found: "/".join(found.group().rsplit("/", 2)[1:]), text)


def optional_without_places(text: str | None) -> str | None:
    """Return `without_places(text)`, or None for None."""
    return None if text is None else without_places(text)


INTERNAL_TEXT: Final = "internal error; see the broker's log"


class Refused(errors.Invalid):
    """A request breaks a rule of the protocol; `code` is the protocol's code for it."""

    def __init__(self, code: definition.Code, message: str) -> None:
        super().__init__(message)
        self.code = code


CODES: Final[dict[type[Exception], definition.Code]] = {
    IllegalTopicName: definition.ILLEGAL_TOPIC,
    IllegalGroupName: definition.ILLEGAL_CONSUMER_GROUP,
    IllegalExpression: definition.ILLEGAL_FILTER_EXPRESSION,
    InvalidTransactionId: definition.INVALID_TRANSACTION_ID,
    LiteTopicsFull: definition.LITE_TOPIC_QUOTA_EXCEEDED,
    InvalidReceiptHandle: definition.INVALID_RECEIPT_HANDLE,
    Unauthenticated: definition.UNAUTHORIZED,
    PermissionDenied: definition.UNAUTHORIZED,  # not FORBIDDEN: that is for topics that no client may write
    LiteQuotaExceeded: definition.LITE_SUBSCRIPTION_QUOTA_EXCEEDED,
    errors.TopicNotFound: definition.TOPIC_NOT_FOUND,
    errors.GroupNotFound: definition.CONSUMER_GROUP_NOT_FOUND,
    errors.Forbidden: definition.FORBIDDEN,
    errors.OffsetOutOfRange: definition.ILLEGAL_OFFSET,
    NoIndex: definition.PRECONDITION_FAILED,
    errors.MessageTooLarge: definition.PAYLOAD_TOO_LARGE,
    errors.Invalid: definition.BAD_REQUEST,
    # only on this code clients wait before they try again; on others they repeat at once
    errors.Unavailable: definition.TOO_MANY_REQUESTS,
    EngineFull: definition.TOO_MANY_REQUESTS,
    # the broker has waited: the client for Python never repeats after the code above
    OwnerAway: definition.PROXY_TIMEOUT,
    errors.BrokerError: definition.INTERNAL_SERVER_ERROR,
    # not as a gRPC error: the client would take it for a fault of the network and send the same bytes again
    DecodeError: definition.BAD_REQUEST,
}
"""The code of each error class; a subclass without a row of its own gets the code of its nearest base class."""


def code_of(error: Exception) -> definition.Code:
    """Return the code that a client gets for the error; INTERNAL_SERVER_ERROR for an unexpected one."""
    if isinstance(error, Refused):
        return error.code
    return next((CODES[base] for base in type(error).__mro__ if base in CODES), definition.INTERNAL_SERVER_ERROR)


def is_expected(error: Exception) -> bool:
    """Return whether the error is part of normal service, so that it is not logged."""
    return code_of(error) != definition.INTERNAL_SERVER_ERROR


def status_of(error: Exception) -> definition.Status:
    """Return the status to answer with. The text of an unexpected error stays in the broker's log.

    Where RocketMQ has a text for the same error, the message contains it: programs look for it
    (tests/conformance/test_texts.py).
    """
    if isinstance(error, PermissionDenied):
        return definition.Status(code=code_of(error), message=f"{error} (has no permission to access)")
    if isinstance(error, errors.BrokerError | EngineFull | EngineCorrupt):
        return definition.Status(code=code_of(error), message=without_places(str(error)))
    if isinstance(error, DecodeError):
        return definition.Status(code=code_of(error), message="the request is not a valid protobuf message")
    return definition.Status(code=code_of(error), message=INTERNAL_TEXT)


def fill_ok(status: definition.Status) -> None:
    status.code = definition.OK
    status.message = "OK"


def fill_status(status: definition.Status, error: Exception | None) -> None:
    """Write the outcome into a response's status: OK when there is no error."""
    if error is None:
        fill_ok(status)
    else:
        status.CopyFrom(status_of(error))


def fill_overall(status: definition.Status, errors_by_entry: list[Exception | None]) -> None:
    """Fill in the status of several entries: the one they share, or MULTIPLE_RESULTS if they differ."""
    codes = {definition.OK if error is None else code_of(error) for error in errors_by_entry}
    if len(codes) > 1:
        status.code = definition.MULTIPLE_RESULTS
        status.message = "MULTIPLE_RESULTS: the entries have different results"
    else:
        fill_status(status, errors_by_entry[0] if errors_by_entry else None)
