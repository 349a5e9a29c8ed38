"""A client of the messaging port for asyncio."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from contextlib import suppress
from itertools import count
from typing import Final, Self, TypeVar

from google.protobuf.message import Message

from quarry_mq.client.channel import MESSAGING, call_metadata
from quarry_mq.client.endpoint import Endpoint
from quarry_mq.client.errors import BrokerUnreachable, CallRefused, require_ok
from quarry_mq.client.h2 import GOODBYE_TIMEOUT_S, OPEN_TIMEOUT_S, H2Connection, connect
from quarry_mq.client.messaging import CALL_TIMEOUT_S, POLLING_SLACK_S
from quarry_mq.client.requests import (
    HEARTBEAT_INTERVAL_S,
    OutgoingMessage,
    Requests,
    Sent,
    Subscription,
    received_of,
    sent_of,
)
from quarry_mq.protocol.clock import Clock, SystemClock
from quarry_mq.protocol.h2.header_blocks import encode_fields
from quarry_mq.protocol.proto.apache.rocketmq.v2 import definition_pb2 as definition
from quarry_mq.protocol.proto.apache.rocketmq.v2 import service_pb2 as service

RECONNECT_S: Final = 0.5
SIGNED_AGAIN_S: Final = 10.0
"""Seconds for which calls carry one signature: it proves a time, and brokers accept some minutes of difference."""

_REQUEST_ID: Final = encode_fields([(b"x-mq-request-id", b"")])[:-1] + b"\x20"
"""The request id's header field without its value, which has 32 bytes."""
_Answer = TypeVar("_Answer", bound=Message)


class AsyncMessagingClient:
    """A producer, or with a `subscription` a simple consumer. Use it as a context manager, in one event loop.

    Any number of calls may be under way. They raise CallRefused when the broker refuses, and BrokerUnreachable when the
    connection fails or no answer comes. The client reconnects by itself, and retries no call.
    """

    def __init__(
        self, endpoint: Endpoint, *, subscription: Subscription | None = None, clock: Clock | None = None
    ) -> None:
        self._endpoint = endpoint
        self._subscription = subscription
        self._clock = clock or SystemClock()
        self.requests = Requests(endpoint.address, self._clock)
        self._connection: H2Connection | None = None
        self._keeping: asyncio.Task[None] | None = None
        self._blocks: dict[str, bytes] = {}
        self._stale_at_s = 0.0
        self._numbers = count()

    async def __aenter__(self) -> Self:
        try:
            await self.open()
        except OSError as error:
            raise BrokerUnreachable(f"{self._endpoint.address}: {error}") from error
        self._keeping = asyncio.create_task(self.keep())
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._keeping is not None:
            self._keeping.cancel()
            await asyncio.gather(self._keeping, return_exceptions=True)
        await self.close()

    # -- messages

    async def send(self, *messages: OutgoingMessage) -> list[Sent]:
        """Send messages of one topic and type in one request: one queue gets all of them in their order, or none."""
        request = service.SendMessageRequest(messages=map(self.requests.message, messages))
        [answer] = await self._answers("SendMessage", request, service.SendMessageResponse)
        return sent_of(answer)

    async def receive(self, *, limit: int, invisible_s: int, wait_s: float) -> list[definition.Message]:
        """Receive at most `limit` messages, hidden from others for `invisible_s`; none if `wait_s` pass without any."""
        request = self.requests.receive(
            self._require_subscription(), limit=limit, invisible_s=invisible_s, wait_s=wait_s
        )
        timeout_s = wait_s + POLLING_SLACK_S
        answers = await self._answers("ReceiveMessage", request, service.ReceiveMessageResponse, timeout_s=timeout_s)
        return received_of(answers)

    async def acknowledge(self, message: definition.Message) -> None:
        """Acknowledge a received message: no consumer of the group gets it again."""
        request = self.requests.acknowledgement(self._require_subscription(), message)
        [answer] = await self._answers("AckMessage", request, service.AckMessageResponse)
        require_ok(answer.status)

    async def give_back(self, messages: Iterable[definition.Message]) -> None:
        """Return messages to the group, so that other consumers get them at once and not after their invisible time."""
        subscription = self._require_subscription()
        for message in messages:
            request = self.requests.return_of(subscription, message)
            [answer] = await self._answers("ChangeInvisibleDuration", request, service.ChangeInvisibleDurationResponse)
            require_ok(answer.status)

    async def _answers(
        self, method: str, request: Message, kind: type[_Answer], *, timeout_s: float = CALL_TIMEOUT_S
    ) -> list[_Answer]:
        """Make a call and return all messages of its answer. Raises BrokerUnreachable."""
        answers: list[_Answer] = []
        outcome: asyncio.Future[str | None] = asyncio.get_running_loop().create_future()

        def took(answer: bytes) -> None:
            answers.append(kind.FromString(answer))

        def ended(failure: str | None) -> None:
            if not outcome.done():
                outcome.set_result(failure)

        connection = self._connected
        # the broker ends a long poll in time for it
        block = self._block(method) + encode_fields([(b"grpc-timeout", b"%dm" % (timeout_s * 1000))])
        stream = connection.call(block, request.SerializeToString(), took, ended)
        try:
            async with asyncio.timeout(timeout_s):
                failure = await outcome
        except TimeoutError as error:
            raise BrokerUnreachable(f"{self._endpoint.address}: {method}: no answer in {timeout_s:g} s") from error
        finally:
            connection.cancel(stream)  # nothing happens if it has ended
        if failure is not None or not answers:
            raise BrokerUnreachable(f"{self._endpoint.address}: {method}: {failure or 'no answer'}")
        return answers

    def _require_subscription(self) -> Subscription:
        if self._subscription is None:
            raise TypeError("a client without a subscription cannot receive")
        return self._subscription

    # -- the connection

    async def open(self) -> None:
        """Connect, and introduce the client to the broker. Raises OSError, and CallRefused when the broker refuses."""
        connection = await connect(self._endpoint)
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
                request = self.requests.heartbeat(self._subscription).SerializeToString()
                self.call("Heartbeat", request, _nothing, _nothing)
                continue
            await asyncio.sleep(RECONNECT_S)
            with suppress(OSError, CallRefused):
                await self.open()

    def call(
        self, method: str, message: bytes, took: Callable[[bytes], None], ended: Callable[[str | None], None]
    ) -> None:
        """Begin a call with an encoded request. `took` gets each message of the answer, `ended` None or what failed."""
        self._connected.call(self._block(method), message, took, ended)

    async def close(self) -> None:
        """Close the connection, and let the broker drop the client now."""
        connection = self._connection
        if connection is None:
            return
        if not connection.lost.is_set():
            done = asyncio.Event()
            request = self.requests.goodbye(self._subscription).SerializeToString()
            self.call("NotifyClientTermination", request, _nothing, lambda _: done.set())
            with suppress(TimeoutError):
                await asyncio.wait_for(done.wait(), GOODBYE_TIMEOUT_S)
        await connection.close()

    @property
    def _connected(self) -> H2Connection:
        assert self._connection is not None, "not opened"
        return self._connection

    async def _introduce(self, connection: H2Connection) -> None:
        """Send the client's settings and await the answer: a broker serves a consumer only once it has its settings."""
        answered: asyncio.Future[definition.Status] = asyncio.get_running_loop().create_future()

        def took(message: bytes) -> None:
            command = service.TelemetryCommand.FromString(message)
            if not answered.done() and (command.HasField("settings") or command.HasField("status")):
                answered.set_result(command.status)

        def ended(outcome: str | None) -> None:
            if not answered.done():
                answered.set_exception(ConnectionError(f"the telemetry stream ended: {outcome or 'OK'}"))

        command = service.TelemetryCommand(settings=self.requests.settings(self._subscription))
        connection.call(self._block("Telemetry"), command.SerializeToString(), took, ended, stays_open=True)
        async with asyncio.timeout(OPEN_TIMEOUT_S):
            status = await answered
        require_ok(status)

    def _block(self, method: str) -> bytes:
        """Return the header fields of one call: those that all calls of the method share, and its number."""
        now_s = self._clock.monotonic_s()
        if now_s >= self._stale_at_s:
            self._blocks.clear()
            self._stale_at_s = now_s + SIGNED_AGAIN_S
        block = self._blocks.get(method)
        if block is None:
            block = self._blocks[method] = self._new_block(MESSAGING + method)
        return block + b"%032x" % next(self._numbers)

    def _new_block(self, path: str) -> bytes:
        fields = [
            (":method", "POST"),
            (":scheme", "https" if self._endpoint.tls else "http"),
            (":path", path),
            (":authority", self._endpoint.address),
            ("content-type", "application/grpc"),
            ("te", "trailers"),
            *(each for each in self.requests.metadata() if each[0] != "x-mq-request-id"),
            *call_metadata(self._endpoint, path, self._clock),
        ]
        return encode_fields((name.encode(), value.encode()) for name, value in fields) + _REQUEST_ID


def _nothing(_: object) -> None:
    pass
