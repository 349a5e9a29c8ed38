"""The console's view of the admin port, free of gRPC, and its calls from the console's event loop.

Calls run on threads, bounded, and are ended when the browser leaves. The rules of who may use the console are here,
too.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final, NamedTuple, Protocol, TypeVar

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

    @property
    def answers_size_max(self) -> int:
        """Return the bytes of JSON that all answers may have when they are asked for as one."""

    def next_answer(self) -> bytes | None:
        """Return an answer in JSON without line ends; None when there are no more. Blocks. Raises CallFailed."""

    def cancel(self) -> None:
        """End the call, from any thread: a thread that waits for an answer gets CallFailed. No effect when over."""


class AdminPort(Protocol):
    """Make calls of one broker's admin port. All methods but `open_call` block, and may be called on any thread."""

    def open_call(self, method: str, request: bytes, caller: Caller, members: Sequence[str] | None = None) -> OpenCall:
        """Open a call. `method` is `Service/Method`, `request` JSON. Raises CallFailed when there is no such method.

        With `members` the call is made on them: on one, or on all without names. Answers of all say whose they are.
        """

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


CALL_THREADS: Final = 8
CALLS_MAX: Final = 64
"""Calls that may run or wait for a thread; beyond them new ones are refused."""

LOGIN_THREADS: Final = 2
LOGINS_MAX: Final = 16
LOGINS_PER_ADDRESS_MAX: Final = 4
"""Bounds of calls by callers that are not logged in. They have their own threads: other calls do not wait for them."""

STREAMS_MAX: Final = 16
STREAMS_PER_SESSION_MAX: Final = 6
"""Bounds of streams, which hold a thread each. A browser opens six connections to one host."""

ANSWERS_SIZE_MAX: Final = 4 * 1024 * 1024
MEMBERS_SIZE_MAX: Final = 8 * ANSWERS_SIZE_MAX
"""Bytes of JSON that the answers of a stream, and those of all members of a cluster, may have together when a browser
asks for them as one answer.
"""

_Result = TypeVar("_Result")


class Threads:
    """Run blocking calls on thread pools."""

    def __init__(self) -> None:
        self._calls = ThreadPoolExecutor(CALL_THREADS, thread_name_prefix="console call")
        self._logins = ThreadPoolExecutor(LOGIN_THREADS, thread_name_prefix="console login")
        self._streams = ThreadPoolExecutor(STREAMS_MAX, thread_name_prefix="console stream")
        self._open_calls = 0
        self._open_streams = 0
        self._open_logins: Counter[str] = Counter()

    async def run(self, work: Callable[[], _Result], cancel: Callable[[], None] | None = None) -> _Result:
        """Return the result of `work`; `cancel` is called if the caller stops waiting for it. Raises CallFailed."""
        if self._open_calls >= CALLS_MAX:
            raise CallFailed("UNAVAILABLE", f"the console already has {CALLS_MAX} open calls")
        self._open_calls += 1
        running = asyncio.get_running_loop().run_in_executor(self._calls, work)
        running.add_done_callback(self._call_over)
        return await _cancelling(running, cancel)

    async def run_login(self, work: Callable[[], _Result], address: str) -> _Result:
        """Return the result of `work` for a caller that is not logged in. Raises CallFailed."""
        open_logins = self._open_logins
        if open_logins[address] >= LOGINS_PER_ADDRESS_MAX or open_logins.total() >= LOGINS_MAX:
            raise CallFailed("UNAVAILABLE", "too many logins at once: try again in a moment")
        open_logins[address] += 1

        def over(running: asyncio.Future[_Result]) -> None:
            open_logins[address] -= 1
            if not open_logins[address]:
                del open_logins[address]
            if not running.cancelled():
                running.exception()

        running = asyncio.get_running_loop().run_in_executor(self._logins, work)
        running.add_done_callback(over)
        return await _cancelling(running, None)

    def _call_over(self, running: asyncio.Future[_Result]) -> None:
        self._open_calls -= 1
        if not running.cancelled():
            running.exception()  # the caller may have gone

    @contextmanager
    def stream(self, open_in_session: int) -> Iterator[None]:
        """Reserve room for one stream. Raises CallFailed."""
        if open_in_session >= STREAMS_PER_SESSION_MAX or self._open_streams >= STREAMS_MAX:
            raise CallFailed("RESOURCE_EXHAUSTED", "too many streams are open: close another page of the console")
        self._open_streams += 1
        try:
            yield
        finally:
            self._open_streams -= 1

    async def next_of(self, call: OpenCall) -> bytes | None:
        """Return the next answer of a stream, None after the last. Raises CallFailed."""
        return await _cancelling(
            asyncio.get_running_loop().run_in_executor(self._streams, call.next_answer), call.cancel
        )

    def close(self) -> None:
        """Shut the thread pools down without waiting for calls."""
        for pool in (self._calls, self._logins, self._streams):
            pool.shutdown(wait=False, cancel_futures=True)


async def _cancelling(running: asyncio.Future[_Result], cancel: Callable[[], None] | None) -> _Result:
    try:
        return await asyncio.shield(running)
    except asyncio.CancelledError:
        if cancel is not None:
            cancel()
        running.add_done_callback(lambda done: None if done.cancelled() else done.exception() and None)
        raise


def whole(call: OpenCall) -> bytes:
    """Return the answer of a call; for a stream, `{"answers": […]}`. Blocks. Raises CallFailed."""
    if not call.is_streaming:
        answer = call.next_answer()
        return b"{}" if answer is None else answer
    answers, size = [], 0
    while (answer := call.next_answer()) is not None:
        size += len(answer) + 1
        if size > call.answers_size_max:
            call.cancel()
            raise CallFailed(
                "OUT_OF_RANGE", f"all answers together are larger than {call.answers_size_max >> 20} MiB: request fewer"
            )
        answers.append(answer)
    return b'{"answers":[' + b",".join(answers) + b"]}"
