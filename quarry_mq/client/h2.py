"""Makes gRPC calls over one HTTP/2 connection, cheaply enough for one process to load a broker.

`H2Connection` is the counterpart of the broker's own front (docs/front.md). It encodes frames by hand, header blocks
without a table, and hands answers on as they come. A call costs a fraction of a call through gRPC's library.
"""

from __future__ import annotations

import asyncio
import ssl
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from functools import lru_cache
from typing import Any, Final, cast

import grpc

from quarry_mq.client.endpoint import Endpoint
from quarry_mq.protocol.h2 import frames
from quarry_mq.protocol.h2.frames import Flag, FrameType, PeerError, Setting
from quarry_mq.protocol.h2.grpc_messages import MESSAGE_PREFIX, MESSAGE_PREFIX_SIZE, with_prefix
from quarry_mq.protocol.h2.header_blocks import split_block, text_of

LOST: Final = "CONNECTION_LOST"
"""Outcome of calls whose connection was lost."""

OPEN_TIMEOUT_S: Final = 10.0
GOODBYE_TIMEOUT_S: Final = 2.0

STATUS_NAMES: Final = {cast("Any", each.value)[0]: each.name for each in grpc.StatusCode}
BLOCK_SIZE_MAX: Final = 64 * 1024
RENEWED_SIZE: Final = 1 << 29
"""Received bytes after which the window is made as wide again as it was."""

GREETING: Final = (
    frames.PREFACE
    + frames.settings(
        {Setting.HEADER_TABLE_SIZE: 0, Setting.ENABLE_PUSH: 0, Setting.INITIAL_WINDOW_SIZE: frames.WINDOW_MAX}
    )
    + frames.window_update(0, frames.WINDOW_MAX - frames.WINDOW_DEFAULT)
)
_TABLE_SIZE_0: Final = b"\x20"
_DATA: Final = int(FrameType.DATA)
_HEADERS: Final = int(FrameType.HEADERS)

Took = Callable[[bytes], None]
"""Called with each message of an answer."""

Ended = Callable[[str | None], None]
"""Called when a call ends: with None if it succeeded, else with the name of the error."""


class _Call:
    __slots__ = ("ended", "part", "took", "window")

    def __init__(self, took: Took, ended: Ended, window: int) -> None:
        self.took = took
        self.ended = ended
        self.part = b""
        self.window = window


class H2Connection(asyncio.Protocol):
    """Holds a connection to a messaging port. Frames are collected and written once per loop iteration."""

    def __init__(self) -> None:
        loop = asyncio.get_running_loop()
        self.greeted: asyncio.Future[None] = loop.create_future()
        """Done once calls may be made; raises ConnectionError if no connection comes about."""
        self.lost = asyncio.Event()
        self._loop = loop
        self._transport: asyncio.Transport | None = None
        self._calls: dict[int, _Call] = {}
        self._next_stream = 1
        self._unparsed = b""
        self._unwritten: list[bytes] = []
        self._is_flush_due = False
        self._window = frames.WINDOW_DEFAULT
        self._window_of_streams = frames.WINDOW_DEFAULT
        self._unsent: deque[tuple[int, memoryview, bool]] = deque()
        """Bodies that wait for the broker's windows: stream, rest of the message, whether the stream ends with it."""
        self._taken_size = 0

    @property
    def open_calls(self) -> int:
        return len(self._calls)

    def call(self, block: bytes, message: bytes, took: Took, ended: Ended, *, stays_open: bool = False) -> int:
        """Start a call with these encoded header fields, and return the number of its stream.

        With `stays_open` the client's side of the stream does not end.
        """
        stream = self._next_stream
        if self.lost.is_set():
            self._loop.call_soon(ended, LOST)
            return stream
        if stream == 1:
            block = _TABLE_SIZE_0 + block
        self._next_stream += 2
        self._calls[stream] = _Call(took, ended, self._window_of_streams)
        self._write(frames.frame(FrameType.HEADERS, Flag.END_HEADERS, stream, block))
        self._unsent.append((stream, memoryview(with_prefix(message)), not stays_open))
        self._send_bodies()
        return stream

    def cancel(self, stream: int) -> None:
        """End a call without its answer: its callbacks are not called any more."""
        if self._calls.pop(stream, None) is not None:
            self._write(frames.reset(stream, frames.ErrorCode.CANCEL))

    async def close(self) -> None:
        """Close the connection, cleanly if the broker answers in time. Open calls are dropped without a callback."""
        self._calls.clear()
        if self._transport is None:
            return
        self._flush()
        self._transport.close()
        with suppress(TimeoutError):
            await asyncio.wait_for(self.lost.wait(), GOODBYE_TIMEOUT_S)
        if not self.lost.is_set():  # with TLS both sides say goodbye, and the broker has not
            self._transport.abort()
            await self.lost.wait()

    # -- of asyncio

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        transport.write(GREETING)

    def connection_lost(self, error: Exception | None) -> None:
        self.lost.set()
        if not self.greeted.done():
            self.greeted.set_exception(ConnectionError(str(error or "the connection was closed")))
        calls, self._calls = list(self._calls.values()), {}
        for call in calls:
            call.ended(LOST)

    def data_received(self, data: bytes) -> None:
        if self._unparsed:
            data = self._unparsed + data
        unpack, head_size = frames.FRAME_HEAD.unpack_from, frames.FRAME_HEAD_SIZE
        position, end = 0, len(data)
        try:
            while end - position >= head_size:
                high, low, kind, flags, stream = unpack(data, position)
                start = position + head_size
                after = start + (high << 16 | low)
                if after > end:
                    break
                position = after
                if kind == _DATA:
                    self._data(stream, flags, data[start:after])
                elif kind == _HEADERS:
                    self._headers(stream, flags, data[start:after])
                else:
                    self._control(kind, flags, stream, data[start:after])
        except PeerError:
            self._abort()
        self._unparsed = data[position:]
        self._flush()

    # -- frames from the broker

    def _data(self, stream: int, flags: int, payload: bytes) -> None:
        self._taken_size += len(payload)
        if self._taken_size >= RENEWED_SIZE:
            self._write(frames.window_update(0, self._taken_size))
            self._taken_size = 0
        call = self._calls.get(stream)
        if call is None:
            return
        if flags & Flag.PADDED:
            payload = payload[1 : len(payload) - payload[0]]
        payload = call.part + payload if call.part else payload
        at, size = 0, len(payload)
        while size - at >= MESSAGE_PREFIX_SIZE:
            start = at + MESSAGE_PREFIX_SIZE
            after = start + MESSAGE_PREFIX.unpack_from(payload, at)[1]
            if after > size:
                break
            call.took(payload[start:after])
            at = after
        call.part = payload[at:] if at < size else b""
        if flags & Flag.END_STREAM:
            self._end(stream, None)

    def _headers(self, stream: int, flags: int, payload: bytes) -> None:
        if not flags & Flag.END_STREAM:
            return  # the head of an answer; the status comes after it
        if flags & Flag.PADDED:
            payload = payload[1 : len(payload) - payload[0]]
        if flags & Flag.PRIORITY:
            payload = payload[5:]
        self._end(stream, _outcome(payload))

    def _control(self, kind: int, flags: int, stream: int, payload: bytes) -> None:
        if kind == FrameType.SETTINGS and not flags & Flag.ACK:
            self._settings(payload)
        elif kind == FrameType.PING and not flags & Flag.ACK:
            self._write(frames.ping(payload, ack=True))
        elif kind == FrameType.WINDOW_UPDATE:
            self._widen(stream, frames.U32.unpack(payload)[0] & frames.WINDOW_MAX)
        elif kind == FrameType.RST_STREAM:
            self._end(stream, f"RST_STREAM {_error_name(frames.U32.unpack(payload)[0])}")
        elif kind == FrameType.GOAWAY:
            self._abort()

    def _settings(self, payload: bytes) -> None:
        for at in range(0, len(payload), frames.SETTING.size):
            setting, value = frames.SETTING.unpack_from(payload, at)
            if setting == Setting.INITIAL_WINDOW_SIZE:
                for call in self._calls.values():
                    call.window += value - self._window_of_streams
                self._window_of_streams = value
        self._write(frames.SETTINGS_ACK)
        if not self.greeted.done():
            self.greeted.set_result(None)
        self._send_bodies()

    def _widen(self, stream: int, increment: int) -> None:
        if stream == 0:
            self._window += increment
        elif (call := self._calls.get(stream)) is not None:
            call.window += increment
        self._send_bodies()

    def _end(self, stream: int, outcome: str | None) -> None:
        call = self._calls.pop(stream, None)
        if call is not None:
            call.ended(outcome)

    def _abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    # -- frames to the broker

    def _send_bodies(self) -> None:
        """Send waiting bodies in order, as far as the broker's windows allow."""
        waiting = self._unsent
        while waiting:
            stream, rest, is_end = waiting[0]
            call = self._calls.get(stream)
            if call is None:  # its stream has ended before all was sent
                waiting.popleft()
                continue
            while rest:
                size = min(len(rest), self._window, call.window, frames.FRAME_SIZE_MAX)
                if size <= 0:
                    waiting[0] = (stream, rest, is_end)
                    return
                self._window -= size
                call.window -= size
                flags = Flag.END_STREAM if is_end and size == len(rest) else 0
                self._write(frames.frame(FrameType.DATA, flags, stream, bytes(rest[:size])))
                rest = rest[size:]
            waiting.popleft()

    def _write(self, frame: bytes) -> None:
        self._unwritten.append(frame)
        if not self._is_flush_due:
            self._is_flush_due = True
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._is_flush_due = False
        if self._unwritten and self._transport is not None and not self._transport.is_closing():
            self._transport.write(b"".join(self._unwritten))
        self._unwritten.clear()


async def connect(endpoint: Endpoint) -> H2Connection:
    """Open a connection that is ready for calls. Raises OSError, and ValueError for an address without a port."""
    loop = asyncio.get_running_loop()
    tls = _tls(endpoint) if endpoint.tls else None
    async with asyncio.timeout(OPEN_TIMEOUT_S):  # its TimeoutError is an OSError
        _, connection = await loop.create_connection(H2Connection, endpoint.host, endpoint.port, ssl=tls)
        try:
            await connection.greeted
        except BaseException:
            await connection.close()
            raise
    return connection


def _tls(endpoint: Endpoint) -> ssl.SSLContext:
    made = ssl.create_default_context(cafile=endpoint.ca)
    made.set_alpn_protocols(["h2"])
    if endpoint.certificate is not None and endpoint.key is not None:
        made.load_cert_chain(endpoint.certificate, endpoint.key)
    return made


@lru_cache(maxsize=64)
def _outcome(block: bytes) -> str | None:
    """Return the outcome that an answer's last header fields state.

    It is cached, being the same for nearly all calls.
    """
    for field in split_block(block, BLOCK_SIZE_MAX):
        if field.name == b"grpc-status":
            number = int(text_of(field.value) or "2")
            return None if number == 0 else STATUS_NAMES.get(number, str(number))
    return STATUS_NAMES[2]


def _error_name(code: int) -> str:
    try:
        return frames.ErrorCode(code).name
    except ValueError:
        return str(code)
