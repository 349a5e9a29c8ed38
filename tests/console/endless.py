"""A console in this process before an admin port that answers for as long as somebody listens."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from threading import Event, Semaphore
from typing import Any, Final

import grpc

from quarry_mq.protocol.clock import SystemClock
from quarry_mq.protocol.proto.quarry.admin.v1 import admin_pb2, browsing_pb2
from quarry_mq.protocol.proto.quarry.admin.v1.admin_pb2_grpc import (
    AdminServiceServicer,
    add_AdminServiceServicer_to_server,
)
from quarry_mq.protocol.proto.quarry.admin.v1.browsing_pb2_grpc import (
    BrowsingServiceServicer,
    add_BrowsingServiceServicer_to_server,
)
from quarry_mq.server.admin_port.console import AdminCalls, plain_channel
from quarry_mq.server.console.calls import ConsoleParts, Rules
from quarry_mq.server.console.thread import ConsoleThread
from quarry_mq.server.front import LiveTls
from tests.console.browser import Browser

TAIL: Final = "BrowsingService/TailMessages"
LARGE: Final = "x" * 100_000
_Context = grpc.ServicerContext


class AdminOfTest(AdminServiceServicer, BrowsingServiceServicer):
    """`ended` counts calls that are over; calls to GetTopic are answered when `hold` is set. `held` counts them."""

    def __init__(self) -> None:
        self.ended = Semaphore(0)
        self.hold = Event()
        self.started = Semaphore(0)

    def GetBroker(self, _request: admin_pb2.GetBrokerRequest, _context: _Context) -> admin_pb2.Broker:
        return admin_pb2.Broker(name="quarry", cluster="test")

    def GetTopic(self, request: admin_pb2.GetTopicRequest, context: _Context) -> admin_pb2.Topic:
        gone = self._until_gone(context)
        self.started.release()
        while not gone.wait(0.02) and not self.hold.is_set():
            pass
        return admin_pb2.Topic(name=request.name)

    def TailMessages(
        self, request: browsing_pb2.TailMessagesRequest, context: _Context
    ) -> Iterator[browsing_pb2.TailMessagesResponse]:
        """Of the topic `fast` as much as can be taken; else one answer, and then nothing."""
        gone = self._until_gone(context)
        yield browsing_pb2.TailMessagesResponse(left_out=1)
        while not gone.is_set():
            if request.topic == "fast":
                message = browsing_pb2.BrowsedMessage(topic=LARGE)
                yield browsing_pb2.TailMessagesResponse(messages=[message])
            else:
                gone.wait(0.05)

    def _until_gone(self, context: _Context) -> Event:
        gone = Event()

        def end() -> None:
            gone.set()
            self.ended.release()

        context.add_callback(end)
        return gone


@contextmanager
def endless_admin() -> Iterator[tuple[AdminOfTest, str]]:
    """It, and its address."""
    service = AdminOfTest()
    server = grpc.server(ThreadPoolExecutor(32))
    adding: list[Any] = [add_AdminServiceServicer_to_server, add_BrowsingServiceServicer_to_server]
    for add in adding:
        add(service, server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        yield service, f"127.0.0.1:{port}"
    finally:
        service.hold.set()
        server.stop(0).wait()


@contextmanager
def console_before(
    admin: str, rules: Rules | None = None, *, needs_login: bool | None = False, tls: LiveTls | None = None
) -> Iterator[Browser]:
    parts = ConsoleParts(
        port=lambda: AdminCalls(plain_channel(admin), clock=SystemClock(), needs_login=needs_login),
        rules=rules or Rules(),
        version="0",
        clock=SystemClock(),
        tls=tls,
    )
    thread = ConsoleThread("127.0.0.1:0", parts)
    thread.start()
    try:
        yield Browser(thread.url.partition("://")[2].rstrip("/"))
    finally:
        thread.stop()
