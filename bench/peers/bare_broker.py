"""A broker with nothing behind its front: it reads each request and answers it, and keeps no message.

Its cost is that of the front and protobuf. `python -m bench.peers.bare_broker h2` serves until it is ended; its first
line of output is its address. It runs on uvloop, as brokers do.

Beside the calls of a producer it serves calls that take the front to its limits: a ReceiveMessage is kept open until it
is woken, and `STREAM_PATH` streams as fast as the front allows.
"""

from __future__ import annotations

import asyncio
import select
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from struct import Struct
from typing import Final

import uvloop
from google.protobuf.message import Message

from quarry_mq.protocol.proto.apache.rocketmq.v2 import definition_pb2 as definition
from quarry_mq.protocol.proto.apache.rocketmq.v2 import service_pb2 as service
from quarry_mq.server.front import Call, FrontKind, Method, Methods, make_front

SERVICE: Final = "/apache.rocketmq.v2.MessagingService/"
SEND_PATH: Final = SERVICE + "SendMessage"
RECEIVE_PATH: Final = SERVICE + "ReceiveMessage"
WAKE_PATH: Final = "/bench.Front/Wake"
STREAM_PATH: Final = "/bench.Front/Stream"

WAKE: Final = Struct(">II")
"""A request to wake kept calls: how many, and how many µs apart (0: all at once)."""

STAMP: Final = Struct(">Q")
"""The message of a woken call: nanoseconds of the monotonic clock, which all processes of a machine share."""

CHUNK_SIZE: Final = 16_000
QUEUES: Final = 8
START_TIMEOUT_S: Final = 60.0
PROJECT: Final = Path(__file__).parents[2]
_OK: Final = definition.Status(code=definition.OK, message="OK")


class BareBroker:
    """The program below in its own process, on a free loopback port. Raises RuntimeError when it does not start."""

    def __init__(self, front: FrontKind) -> None:
        self.front = front
        self._process = subprocess.Popen(
            [sys.executable, "-m", "bench.peers.bare_broker", front], cwd=PROJECT, stdout=subprocess.PIPE, text=True
        )
        output = self._process.stdout
        assert output is not None
        says_something, _, _ = select.select([output], [], [], START_TIMEOUT_S)
        self.endpoint = output.readline().strip() if says_something else ""
        if not self.endpoint:
            self.close()
            raise RuntimeError(f"the bare broker did not start on front {front}")

    @property
    def pid(self) -> int:
        return self._process.pid

    def close(self) -> None:
        self._process.kill()
        self._process.communicate()


# -- the program


class _Answers:
    """Answers the calls that official producers need, and those of the benchmarks."""

    def __init__(self) -> None:
        self._endpoints = definition.Endpoints()
        self._kept: dict[Call, None] = {}  # the oldest first
        self._chunk = bytes(CHUNK_SIZE)

    def listening_on(self, address: str) -> None:
        host, _, port = address.rpartition(":")
        self._endpoints.scheme = definition.IPv4
        self._endpoints.addresses.add(host=host, port=int(port))

    def methods(self) -> Methods:
        return {
            SEND_PATH: Method(_send),
            SERVICE + "QueryRoute": Method(self._route),
            SERVICE + "Telemetry": Method(_telemetry, streaming_in=True, streaming_out=True, on_half_close=_end),
            SERVICE + "Heartbeat": Method(_always(service.HeartbeatResponse(status=_OK))),
            SERVICE + "NotifyClientTermination": Method(_always(service.NotifyClientTerminationResponse(status=_OK))),
            RECEIVE_PATH: Method(self._receive, streaming_out=True),
            WAKE_PATH: Method(self._wake),
            STREAM_PATH: Method(self._stream, streaming_out=True),
        }

    def _route(self, call: Call, body: bytes) -> None:
        request = service.QueryRouteRequest.FromString(body)
        response = service.QueryRouteResponse(status=_OK)
        for number in range(QUEUES):
            response.message_queues.add(
                topic=request.topic,
                id=number,
                permission=definition.READ_WRITE,
                broker=definition.Broker(name="bare", endpoints=self._endpoints),
                accept_message_types=[definition.NORMAL],
            )
        call.reply(response.SerializeToString())

    def _receive(self, call: Call, _body: bytes) -> None:
        """Keep the call open, like a long poll of an empty queue."""
        kept = self._kept
        kept[call] = None
        call.on_close(lambda: kept.pop(call, None))

    def _wake(self, call: Call, body: bytes) -> None:
        count, interval_us = WAKE.unpack(body)
        loop = asyncio.get_running_loop()

        def wake_one() -> None:
            kept = next(iter(self._kept))
            del self._kept[kept]
            kept.send(STAMP.pack(time.monotonic_ns()))
            kept.finish()

        def wake_on(remaining: int) -> None:
            if remaining > 1:
                loop.call_later(interval_us / 1e6, wake_on, remaining - 1)
            wake_one()

        call.reply(b"")
        if interval_us:
            wake_on(count)
        else:
            for _ in range(count):
                wake_one()

    def _stream(self, call: Call, _body: bytes) -> None:
        def go_on() -> None:
            # a few at a time, so that one stream does not keep the loop from reading
            for _ in range(64):
                if not call.send(self._chunk):
                    call.on_drain(go_on)
                    return
            if not call.closed:
                asyncio.get_running_loop().call_soon(go_on)

        go_on()


def _send(call: Call, body: bytes) -> None:
    request = service.SendMessageRequest.FromString(body)
    response = service.SendMessageResponse(status=_OK)
    for message in request.messages:
        response.entries.add(status=_OK, message_id=message.system_properties.message_id)
    call.reply(response.SerializeToString())


def _telemetry(call: Call, body: bytes) -> None:
    command = service.TelemetryCommand.FromString(body)
    if command.WhichOneof("command") != "settings":
        return
    settings = command.settings
    backoff = settings.backoff_policy
    backoff.max_attempts = 3
    backoff.exponential_backoff.initial.seconds = 1
    backoff.exponential_backoff.max.seconds = 10
    backoff.exponential_backoff.multiplier = 2
    settings.publishing.max_body_size = 4 * 1024 * 1024
    call.send(service.TelemetryCommand(status=_OK, settings=settings).SerializeToString())


def _end(call: Call) -> None:
    call.finish()


def _always(response: Message) -> Callable[[Call, bytes], None]:
    body = response.SerializeToString()
    return lambda call, _request: call.reply(body)


async def _serve(kind: FrontKind) -> None:
    answers = _Answers()
    front = make_front(kind, answers.methods())
    address = await front.start("127.0.0.1:0")
    answers.listening_on(address)
    print(address, flush=True)
    await asyncio.Event().wait()


def main() -> None:
    kind: FrontKind = "h2" if sys.argv[1] == "h2" else "grpcio"
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_serve(kind))


if __name__ == "__main__":
    main()
