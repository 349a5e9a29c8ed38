"""The errors of the broker form a tree by what the caller can do next. The gRPC edge maps them by class to codes.

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
    """Every error that the broker raises on purpose is a BrokerError."""


class Invalid(BrokerError):
    """The request must change before it can succeed."""


class TopicNotFound(Invalid):
    """No topic has this name, and it may not be created automatically."""


class GroupNotFound(Invalid):
    """No consumer group has this name, and it may not be created automatically."""


class UserNotFound(Invalid):
    """No user has this name."""


class RuleNotFound(Invalid):
    """The user has no such rule."""


class AlreadyExists(Invalid):
    """The name is taken: a topic, group or user has it."""


class Forbidden(Invalid):
    """The permission of the topic or group does not allow this."""


class OffsetOutOfRange(Invalid):
    """The offset lies outside what the log or queue holds."""


class MessageTooLarge(Invalid):
    """The encoded record does not fit the configured maximum."""


class Unavailable(BrokerError):
    """Retrying the same request later may succeed."""


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
    """The directory is not empty, but holds no store that Quarry can open."""


class StoreLocked(StoreUnusable):
    """Another broker holds the store's lock."""


class StoreServed(StoreUnusable):
    """A broker has served this store, so the store cannot follow another broker any more."""


class StoreDamaged(StoreUnusable):
    """Stored bytes are missing or wrong where they were promised whole.

    `record_at` is the log offset of a damaged record; None for other damage. `remedy` is added to the text by whoever
    knows how to go on, and is no part of `place`, which is the same for all who meet the damage.
    """

    def __init__(self, path: Path, reason: str, *, record_at: int | None = None) -> None:
        super().__init__(path, reason)
        self.record_at = record_at
        self.remedy = ""

    @property
    def place(self) -> str:
        """Return what is damaged."""
        return f"{self.path}: {self.reason}"

    def __str__(self) -> str:
        return f"{self.place}; {self.remedy}" if self.remedy else self.place


class SecretsUnreadable(BrokerError):
    """The secrets of users cannot be read or stored: there is no key, or another key sealed them."""


class MessageGivenUp(BrokerError):
    """An operator gave the damaged record up (`quarry recover --replace-damaged`): no message can be returned."""


class StorePoisoned(BrokerError):
    """A flush failed. The page cache can no longer be trusted, so every later append raises this."""


def without_frames(error: ErrorT) -> ErrorT:
    """Return the same error without its frames, so that it can be kept.

    Otherwise it refers to the frames that it and its cause went through, and so to the requests and calls in them
    (`tests/house/test_kept_errors.py`).
    """
    error.__traceback__ = error.__context__ = error.__cause__ = None
    return error
