"""Call the admin port: one channel, a signature per call, blocking calls that can be ended from outside.

This is gRPC's blocking client, not the one for asyncio: two event loops with gRPC's asyncio in one process disturb
each other.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator
from threading import Lock
from typing import Any, Final, cast

import grpc
from google.protobuf.descriptor import MethodDescriptor

from quarry_mq.protocol.admin_methods import methods_by_short_name, path_of, stub_of
from quarry_mq.protocol.clock import Clock
from quarry_mq.protocol.proto.quarry.admin.v1 import admin_pb2
from quarry_mq.protocol.proto.quarry.admin.v1.admin_pb2_grpc import AdminServiceStub
from quarry_mq.protocol.signature import signed_admin_headers
from quarry_mq.server.admin_port.calls.caller import BROWSER
from quarry_mq.server.admin_port.console.translation import answer_text, request_from
from quarry_mq.server.console.contract import AdminPort, Caller, CallFailed, Identity

CALL_TIMEOUT_S: Final = 120.0
"""Seconds that a call with one answer may take; streams may go on as long as they are read."""

QUICK_TIMEOUT_S: Final = 10.0
"""Seconds that the calls at the beginning of a session may take."""

ANSWER_SIZE_MAX: Final = 16 * 1024 * 1024
"""Bytes of one answer: four times the limit of a message."""

NONCE_BYTES: Final = 16
REFLECTION: Final = "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo"
"""The call that every user may make, whatever the rules say."""

LIST_SERVICES: Final = b"\x3a\x01*"
"""The serialized request `ServerReflectionRequest(list_services="*")`."""

OPTIONS: Final = (
    ("grpc.enable_http_proxy", 0),
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.max_receive_message_length", ANSWER_SIZE_MAX),
)

TRANSLATING: Final = Lock()
"""A lock for one translation at a time: each computing thread makes the broker's loop wait for Python's lock."""

Metadata = tuple[tuple[str, str], ...]


def plain_channel(address: str) -> grpc.Channel:
    """Open a channel to `unix:path` or `host:port`, without TLS."""
    return grpc.insecure_channel(address, options=OPTIONS)


class AdminCalls:
    """The admin port behind a channel. Implements server.console.contract.AdminPort."""

    def __init__(
        self, channel: grpc.Channel, *, clock: Clock, needs_login: bool | None = None, tells_browser: bool = False
    ) -> None:
        """`needs_login` None: the broker is asked. `tells_browser`: report the browser's address.

        Brokers believe that address only on the socket of their own console.
        """
        self._channel = channel
        self._clock = clock
        self._needs_login = needs_login
        self._tells_browser = tells_browser
        self._methods = methods_by_short_name()

    def open_call(self, method: str, request: bytes, caller: Caller) -> Call:
        """Prepare a call. Raises CallFailed."""
        found = self._methods.get(method)
        if found is None:
            raise CallFailed("NOT_FOUND", f"no call {method!r:.200}; docs/admin-calls.md lists all calls")
        return Call(self._channel, found, request, lambda: self._metadata(path_of(found), caller))

    def needs_login(self) -> bool:
        """Return whether the broker requires a user. Raises CallFailed."""
        if self._needs_login is not None:
            return self._needs_login
        try:
            self.log_in(Caller(None, None, ""))
        except CallFailed as failure:
            if failure.code != grpc.StatusCode.UNAUTHENTICATED.name:
                raise
            return True
        return False

    def log_in(self, caller: Caller) -> None:
        """Check the caller's user and secret with a call. Raises CallFailed."""
        begin: Any = self._channel.stream_stream(REFLECTION)
        call = begin(iter((LIST_SERVICES,)), timeout=QUICK_TIMEOUT_S, metadata=self._metadata(REFLECTION, caller))
        try:
            for _ in call:
                pass
        except grpc.RpcError as error:
            raise _failure(error) from None

    def identity(self, caller: Caller) -> Identity:
        """Return the names of broker and cluster, None for both without the right to see them. Raises CallFailed."""
        stub: Any = AdminServiceStub(self._channel)
        path = "/quarry.admin.v1.AdminService/GetBroker"
        metadata = self._metadata(path, caller)
        try:
            broker = stub.GetBroker(admin_pb2.GetBrokerRequest(), timeout=QUICK_TIMEOUT_S, metadata=metadata)
        except grpc.RpcError as error:
            if _failure(error).code == grpc.StatusCode.PERMISSION_DENIED.name:
                return Identity(None, None)
            raise _failure(error) from None
        return Identity(broker.name, broker.cluster)

    def close(self) -> None:
        """Close the channel, which ends open calls."""
        self._channel.close()

    def _metadata(self, path: str, caller: Caller) -> Metadata:
        browser = ((BROWSER, caller.peer),) if self._tells_browser and caller.peer else ()
        if caller.user is None or caller.secret is None:
            return browser
        nonce = secrets.token_hex(NONCE_BYTES)
        return (
            *browser,
            *signed_admin_headers(caller.user, caller.secret, path, now_ms=self._clock.wall_ms(), nonce=nonce),
        )


class Call:
    """A call of the admin port. Implements server.console.contract.OpenCall."""

    def __init__(
        self, channel: grpc.Channel, method: MethodDescriptor, request: bytes, metadata: Callable[[], Metadata]
    ) -> None:
        self._channel = channel
        self._method = method
        self._request = request
        self._metadata = metadata
        self._lock = Lock()
        self._answers: Iterator[Any] | None = None
        self._call: Any = None  # guarded by _lock
        self._is_cancelled = False  # guarded by _lock

    @property
    def is_streaming(self) -> bool:
        return self._method.server_streaming

    def next_answer(self) -> bytes | None:
        """Return the next answer in JSON; None after the last. Raises CallFailed."""
        try:
            if self._answers is None:
                self._answers = self._begin()
            answer = next(self._answers, None)
        except grpc.RpcError as error:
            raise _failure(error) from None
        if answer is None:
            return None
        with TRANSLATING:
            return answer_text(answer)

    def cancel(self) -> None:
        with self._lock:
            self._is_cancelled = True
            if self._call is not None:
                self._call.cancel()

    def _begin(self) -> Iterator[Any]:
        request = request_from(self._method, self._request)
        stub = stub_of(self._channel, self._method)
        with self._lock:
            if self._is_cancelled:
                raise CallFailed(grpc.StatusCode.CANCELLED.name, "the caller does not wait for the answer any more")
            if self.is_streaming:
                self._call = stub(request, metadata=self._metadata())
            else:
                self._call = stub.future(request, metadata=self._metadata(), timeout=CALL_TIMEOUT_S)
        return iter(self._call) if self.is_streaming else _one(self._call)


def _one(future: Any) -> Iterator[Any]:
    try:
        yield future.result()
    except grpc.FutureCancelledError:
        raise CallFailed(grpc.StatusCode.CANCELLED.name, "the caller does not wait for the answer any more") from None


def _failure(error: grpc.RpcError) -> CallFailed:
    # every error of a call is also that call; the type does not say so
    call = cast("grpc.Call", error)
    code = call.code()
    details = call.details() or ""
    if code is grpc.StatusCode.UNAVAILABLE and not details:
        details = "no answer from the broker"
    return CallFailed(code.name, details or code.name.lower().replace("_", " "))


def _conforms(calls: AdminCalls) -> AdminPort:
    """Let the type checker prove that `AdminCalls` is an `AdminPort`."""
    return calls
