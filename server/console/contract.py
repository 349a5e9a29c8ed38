"""Define, free of gRPC, what the console needs of the admin port, and the rules of who may use the console."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from quarry_mq.protocol.clock import Clock
from quarry_mq.server.front import LiveTls


@dataclass(frozen=True, slots=True)
class Caller:
    """Identify a caller: a user with its secret, None for the connection's user. `peer` is the browser's `ip:port`."""

    user: str | None
    secret: str | None = field(repr=False)
    peer: str


class CallFailed(Exception):
    """A call was not answered. `code` is the name of gRPC's code, or of the status in RocketMQ's answer."""

    def __init__(self, code: str, message: str, *, status: int | None = None) -> None:
        """`status` is the HTTP status, if the code does not determine it."""
        super().__init__(message)
        self.code = code
        self.message = message
        self.status = status


class Identity(NamedTuple):
    """Name the broker and its cluster; None for what the caller may not know."""

    broker: str | None
    cluster: str | None


class OpenCall(Protocol):
    """A call that is open; it is made with the first `next_answer`."""

    @property
    def is_streaming(self) -> bool:
        """Return whether there may be any number of answers."""

    def next_answer(self) -> bytes | None:
        """Return an answer in JSON without line ends; None when there are no more. Blocks. Raises CallFailed."""

    def cancel(self) -> None:
        """End the call, from any thread: a thread that waits for an answer gets CallFailed. No effect when over."""


class AdminPort(Protocol):
    """Make calls of one broker's admin port. All methods but `open_call` block, and may be called on any thread."""

    def open_call(self, method: str, request: bytes, caller: Caller) -> OpenCall:
        """Open a call. `method` is `Service/Method`, `request` JSON. Raises CallFailed when there is no such method."""

    def needs_login(self) -> bool:
        """Return whether calls must be made by a user. Raises CallFailed when the broker does not answer."""

    def log_in(self, caller: Caller) -> None:
        """Prove who calls with a call that every user may make. Raises CallFailed."""

    def identity(self, caller: Caller) -> Identity:
        """Return the names of broker and cluster. Raises CallFailed when the broker does not answer."""

    def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Entry:
    """An entry link lets in anyone who has it, as this user: `/enter?key=…`."""

    key: str = field(repr=False)
    user: str
    secret: str = field(repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """Rules of who may use the console. `names` are hosts by which browsers may address it. They are checked if nobody
    has to log in, or if `is_always_own` is set.
    """

    names: Collection[str] = ()
    is_always_own: bool = False
    entry: Entry | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class ConsoleParts:
    """A console is made of these parts. `port` is called on the console's thread, when the first browser connects."""

    port: Callable[[], AdminPort]
    rules: Rules
    version: str
    clock: Clock
    tls: LiveTls | None = None
