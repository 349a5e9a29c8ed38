"""A real client against a front under test; shared by the contract suites of `server/front`."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Coroutine
from contextlib import asynccontextmanager
from contextvars import ContextVar
from typing import Any, TypeVar, get_args

import grpc
import grpc.aio
import uvloop

from quarry_mq.server.front import Call, Front, FrontKind, FrontLimits, Method, Methods, make_front
from tests.certificates import Tls

KINDS = get_args(FrontKind)

T = TypeVar("T")

UNARY = "/test.Service/Unary"
STREAM = "/test.Service/Stream"
BIDI = "/test.Service/Bidi"
PATIENCE_S = 30.0
"""The time that a test waits for something that must happen. Only a failing test waits this long."""


def run(test: Coroutine[Any, Any, None]) -> None:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:  # what a broker runs on
        runner.run(asyncio.wait_for(test, PATIENCE_S * 3))


async def soon(awaitable: Awaitable[T]) -> T:
    return await asyncio.wait_for(awaitable, PATIENCE_S)


@asynccontextmanager
async def serving(
    kind: FrontKind, methods: Methods, limits: FrontLimits | None = None
) -> AsyncIterator[tuple[Front, Any]]:
    front = make_front(kind, methods, limits=limits)
    tls = TLS.get()
    address = await front.start("127.0.0.1:0", None if tls is None else tls.live())
    try:
        async with open_channel(address, tls) as channel:
            yield front, channel
    finally:
        await front.stop(0)


TLS: ContextVar[Tls | None] = ContextVar("TLS", default=None)
"""Set by a test's fixture to have `serving` speak TLS."""


def open_channel(address: str, tls: Tls | None = None) -> Any:
    """A grpc.aio channel without limits of its own, so that every refusal seen comes from the front."""
    options = [("grpc.max_receive_message_length", -1), ("grpc.max_metadata_size", 1 << 20)]
    if tls is None:
        return grpc.aio.insecure_channel(address, options=options)
    certificate, key = tls.client or (None, None)
    credentials = grpc.ssl_channel_credentials(tls.authority, key, certificate)
    return grpc.aio.secure_channel(address, credentials, options=options)


async def status_of(call: Awaitable[object]) -> tuple[grpc.StatusCode, str]:
    try:
        await soon(call)
    except grpc.aio.AioRpcError as error:
        return error.code(), error.details() or ""
    return grpc.StatusCode.OK, ""


class Kept:
    """A handler that keeps its calls and remembers what happened to them."""

    def __init__(self) -> None:
        self.calls: list[Call] = []
        self.closed: list[Call] = []
        self.arrived = asyncio.Event()
        self.ended = asyncio.Event()

    def __call__(self, call: Call, body: bytes) -> None:
        self.open(call)

    def open(self, call: Call) -> None:
        self.calls.append(call)
        call.on_close(lambda: self._close(call))
        self.arrived.set()

    def _close(self, call: Call) -> None:
        assert call.closed
        self.closed.append(call)
        self.ended.set()


def echo(call: Call, body: bytes) -> None:
    call.reply(body)


def keep_open(kept: Kept, path: str) -> Method:
    if path == BIDI:
        return Method(lambda call, body: None, streaming_in=True, streaming_out=True, on_open=kept.open)
    return Method(kept, streaming_out=path == STREAM)


def start_call(channel: Any, path: str, timeout: float | None = None) -> Any:
    if path == BIDI:
        return channel.stream_stream(BIDI)(timeout=timeout)
    if path == STREAM:
        return channel.unary_stream(STREAM)(b"", timeout=timeout)
    return channel.unary_unary(UNARY)(b"", timeout=timeout)
