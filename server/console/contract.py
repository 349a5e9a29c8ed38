"""What the console wants of the admin port, without a word of gRPC, and what it is told of who may ask."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from quarry_mq.server.front import LiveTls
from quarry_mq.store.clock import Clock


@dataclass(frozen=True, slots=True)
class Caller:
    """Who makes a call: a user with its secret, or whoever the connection shows; and the browser's `ip:port`."""

    user: str | None
    secret: str | None = field(repr=False)
    peer: str


class CallFailed(Exception):
    """A call that was not answered. `code` is gRPC's name of it, or that of the status of RocketMQ's answer."""

    def __init__(self, code: str, message: str, *, status: int | None = None) -> None:
        """`status`: of HTTP, where the code does not tell it."""
        super().__init__(message)
        self.code = code
        self.message = message
        self.status = status


class Identity(NamedTuple):
    """Which broker it is; None for what the caller may not know."""

    broker: str | None
    cluster: str | None


class OpenCall(Protocol):
    """One call, which begins with the first `next_answer`."""

    @property
    def is_streaming(self) -> bool:
        """Whether there may be any number of answers."""

    def next_answer(self) -> bytes | None:
        """An answer in JSON without line ends; None when there are no more. Blocks. Raises CallFailed."""

    def cancel(self) -> None:
        """End it, from any thread: whoever waits for an answer gets CallFailed. Of no effect when it is over."""


class AdminPort(Protocol):
    """The admin port of one broker. All of it but `open_call` blocks, and may be called on any thread."""

    def open_call(self, method: str, request: bytes, caller: Caller) -> OpenCall:
        """`method` is `Service/Method`, `request` JSON. Raises CallFailed when there is no such method."""

    def needs_login(self) -> bool:
        """Whether calls must be made by a user. Raises CallFailed when nobody answers."""

    def log_in(self, caller: Caller) -> None:
        """Prove who calls with a call that every user may make. Raises CallFailed."""

    def identity(self, caller: Caller) -> Identity:
        """Raises CallFailed when nobody answers."""

    def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Entry:
    """A link that lets in whoever has it, as this user: `/enter?key=…`."""

    key: str = field(repr=False)
    user: str
    secret: str = field(repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """`names`: hosts by which the console may be asked for. They matter where nobody has to log in, and where
    `is_always_own` says so.
    """

    names: Collection[str] = ()
    is_always_own: bool = False
    entry: Entry | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class ConsoleParts:
    """What a console is made of. `port` is called on its thread, when there is somebody to make calls for."""

    port: Callable[[], AdminPort]
    rules: Rules
    version: str
    clock: Clock
    tls: LiveTls | None = None
