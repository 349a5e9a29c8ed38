"""Errors of the broker, by what the caller can do next. The gRPC edge maps them by class to codes.

BrokerError
├── Invalid               the request must change
│   ├── TopicNotFound
│   ├── GroupNotFound
│   ├── UserNotFound
│   ├── RuleNotFound
│   ├── AlreadyExists
│   ├── Forbidden         the topic's or group's permission does not allow it
│   ├── OffsetOutOfRange
│   └── MessageTooLarge
├── Unavailable           the same request may succeed later
│   ├── Busy              a limit of waiting or in-flight work is reached
│   └── DiskRefused       the disk gives no more space; nothing was written
├── StoreUnusable         an operator must act before this store opens
│   ├── NotAStore         the directory is no RocketMQ or Quarry store
│   ├── StoreLocked       another broker holds it
│   └── StoreDamaged      bytes that were promised are missing or wrong; names file, offset and reason
├── SecretsUnreadable     the secrets of users need a key that the broker does not have
├── MessageGivenUp        the message was damaged and an operator gave it up: pass over it
└── StorePoisoned         a flush failed: nothing more is accepted until a restart recovers
"""

from __future__ import annotations

from pathlib import Path
from typing import TypeVar

ErrorT = TypeVar("ErrorT", bound=BaseException)


class BrokerError(Exception):
    """Base of everything the broker raises on purpose."""


class Invalid(BrokerError):
    """The request must change before it can succeed."""


class TopicNotFound(Invalid):
    """No topic of that name, and it may not be made automatically."""


class GroupNotFound(Invalid):
    """No consumer group of that name, and it may not be made automatically."""


class UserNotFound(Invalid):
    """No user of that name."""


class RuleNotFound(Invalid):
    """The user has no such rule."""


class AlreadyExists(Invalid):
    """A topic, group or user of that name exists."""


class Forbidden(Invalid):
    """The permission of the topic or group does not allow this."""


class OffsetOutOfRange(Invalid):
    """The offset lies outside what the log or queue holds."""


class MessageTooLarge(Invalid):
    """The encoded record does not fit the configured maximum."""


class Unavailable(BrokerError):
    """The same request may succeed later."""


class Busy(Unavailable):
    """A limit of waiting or in-flight work is reached."""


class DiskRefused(Unavailable):
    """The disk gives no space for the next segment, or no access. Nothing was written; a later call may succeed."""


class StoreUnusable(BrokerError):
    """An operator must act before this store opens. `path` names the file or directory at fault."""

    def __init__(self, path: Path, reason: str) -> None:
        super().__init__(f"{path}: {reason}")
        self.path = path
        self.reason = reason


class NotAStore(StoreUnusable):
    """The directory holds something, but no store that Quarry can open."""


class StoreLocked(StoreUnusable):
    """Another broker holds the store's lock."""


class StoreDamaged(StoreUnusable):
    """Stored bytes are missing or wrong where they were promised whole."""


class SecretsUnreadable(BrokerError):
    """The secrets of users cannot be read, or none can be kept: there is no key, or another one sealed them."""


class MessageGivenUp(BrokerError):
    """An operator gave the damaged record up (`quarry recover --replace-damaged`): there is nothing to hand out."""


class StorePoisoned(BrokerError):
    """A flush failed. The page cache can no longer be trusted, so every later append raises this."""


def without_frames(error: ErrorT) -> ErrorT:
    """The same error, to be kept: else it refers to the frames that it and what caused it went through, and so to the
    requests and calls in them (`tests/house/test_kept_errors.py`).
    """
    error.__traceback__ = error.__context__ = error.__cause__ = None
    return error
