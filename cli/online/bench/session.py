"""Behave as one client of the load, with connection, settings and heartbeats like those of the official clients."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable
from contextlib import suppress
from itertools import count
from typing import Final

from quarry_mq.cli.context_file import Context
from quarry_mq.cli.online.bench.connection import GOODBYE_TIMEOUT_S, Connection
from quarry_mq.cli.online.connection.channel import call_metadata
from quarry_mq.cli.online.connection.client import HEARTBEAT_INTERVAL_S, CallRefused, Reader, Requests
from quarry_mq.protocol.clock import Clock
from quarry_mq.protocol.h2.header_blocks import encode_fields
from quarry_mq.protocol.proto.apache.rocketmq.v2 import definition_pb2 as definition
from quarry_mq.protocol.proto.apache.rocketmq.v2 import service_pb2 as service

SERVICE: Final = "/apache.rocketmq.v2.MessagingService/"
OPEN_TIMEOUT_S: Final = 10.0
RECONNECT_S: Final = 0.5
SIGNED_ANEW_S: Final = 10.0
"""Seconds for which calls carry one signature: it proves a time, and brokers accept some minutes of difference."""

_REQUEST_ID: Final = encode_fields([(b"x-mq-request-id", b"")])[:-1] + b"\x20"
"""The request id's header field without its value, which has 32 bytes."""


class Dial:
    """The address of the broker, and its TLS files."""

    def __init__(self, endpoint: str, context: Context | None) -> None:
        """Parse the address. Raises ValueError for an invalid one."""
        host, _, port = endpoint.rpartition(":")
        self.endpoint = endpoint
        self.context = context
        self.host = host.strip("[]")
        self.port = int(port)
        self.tls = _tls(context) if context is not None and context.tls else None

    async def connection(self) -> Connection:
        """Open a connection that is ready for calls. Raises OSError."""
        loop = asyncio.get_running_loop()
        async with asyncio.timeout(OPEN_TIMEOUT_S):  # its TimeoutError is an OSError
            _, connection = await loop.create_connection(Connection, self.host, self.port, ssl=self.tls)
            try:
                await connection.greeted
            except BaseException:
                await connection.close()
                raise
        return connection


class Session:
    """A producer, or with a `reader` a simple consumer. It reconnects when its connection is lost."""

    def __init__(self, dial: Dial, reader: Reader | None, clock: Clock) -> None:
        self.requests = Requests(dial.endpoint, clock)
        self.reader = reader
        self._dial = dial
        self._clock = clock
        self._connection: Connection | None = None
        self._blocks: dict[str, bytes] = {}
        self._stale_at_s = 0.0
        self._numbers = count()

    async def open(self) -> None:
        """Connect, and introduce the client to the broker. Raises OSError, and CallRefused when the broker refuses."""
        connection = await self._dial.connection()
        try:
            await self._introduce(connection)
        except BaseException:
            await connection.close()
            raise
        self._connection = connection

    async def keep(self) -> None:
        """Send heartbeats, and reconnect when the connection is lost, forever."""
        while True:
            lost = self._connected.lost
            with suppress(TimeoutError):
                await asyncio.wait_for(lost.wait(), HEARTBEAT_INTERVAL_S)
            if not lost.is_set():
                request = self.requests.heartbeat(self.reader).SerializeToString()
                self.call("Heartbeat", request, _nothing, _nothing)
                continue
            await asyncio.sleep(RECONNECT_S)
            with suppress(OSError, CallRefused):
                await self.open()

    def call(
        self, method: str, message: bytes, took: Callable[[bytes], None], ended: Callable[[str | None], None]
    ) -> None:
        self._connected.call(self._block(method), message, took, ended)

    async def close(self) -> None:
        """Close the connection, and let the broker drop the client now."""
        connection = self._connection
        if connection is None:
            return
        if not connection.lost.is_set():
            done = asyncio.Event()
            request = self.requests.goodbye(self.reader).SerializeToString()
            self.call("NotifyClientTermination", request, _nothing, lambda _: done.set())
            with suppress(TimeoutError):
                await asyncio.wait_for(done.wait(), GOODBYE_TIMEOUT_S)
        await connection.close()

    @property
    def _connected(self) -> Connection:
        assert self._connection is not None, "not opened"
        return self._connection

    async def _introduce(self, connection: Connection) -> None:
        """Send the client's settings and await the answer: a broker serves a consumer only once it has its settings."""
        answered: asyncio.Future[definition.Status] = asyncio.get_running_loop().create_future()

        def took(message: bytes) -> None:
            command = service.TelemetryCommand.FromString(message)
            if not answered.done() and (command.HasField("settings") or command.HasField("status")):
                answered.set_result(command.status)

        def ended(outcome: str | None) -> None:
            if not answered.done():
                answered.set_exception(ConnectionError(f"the telemetry stream ended: {outcome or 'OK'}"))

        command = service.TelemetryCommand(settings=self.requests.settings(self.reader))
        connection.call(self._block("Telemetry"), command.SerializeToString(), took, ended, stays_open=True)
        async with asyncio.timeout(OPEN_TIMEOUT_S):
            status = await answered
        if status.code != definition.OK:
            raise CallRefused(status)

    def _block(self, method: str) -> bytes:
        """Return the header fields of one call: those that all calls of the method share, and its number."""
        now_s = self._clock.monotonic_s()
        if now_s >= self._stale_at_s:
            self._blocks.clear()
            self._stale_at_s = now_s + SIGNED_ANEW_S
        block = self._blocks.get(method)
        if block is None:
            block = self._blocks[method] = self._new_block(SERVICE + method)
        return block + b"%032x" % next(self._numbers)

    def _new_block(self, path: str) -> bytes:
        signed = () if self._dial.context is None else call_metadata(self._dial.context, path, self._clock)
        fields = [
            (":method", "POST"),
            (":scheme", "http" if self._dial.tls is None else "https"),
            (":path", path),
            (":authority", self._dial.endpoint),
            ("content-type", "application/grpc"),
            ("te", "trailers"),
            *(each for each in self.requests.metadata() if each[0] != "x-mq-request-id"),
            *signed,
        ]
        return encode_fields((name.encode(), value.encode()) for name, value in fields) + _REQUEST_ID


def _tls(context: Context) -> ssl.SSLContext:
    made = ssl.create_default_context(cafile=context.tls_ca)
    made.set_alpn_protocols(["h2"])
    if context.tls_certificate is not None and context.tls_key is not None:
        made.load_cert_chain(context.tls_certificate, context.tls_key)
    return made


def _nothing(_: object) -> None:
    pass
