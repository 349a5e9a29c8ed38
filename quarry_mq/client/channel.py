"""Opens gRPC channels to a port of a broker, whose calls are signed if the endpoint has a user."""

from __future__ import annotations

import secrets
from collections import namedtuple
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import grpc

from quarry_mq.client.endpoint import Endpoint
from quarry_mq.protocol.clock import Clock, SystemClock
from quarry_mq.protocol.signature import signed_admin_headers, signed_messaging_headers

CHANNEL_OPTIONS: Final = (
    ("grpc.enable_http_proxy", 0),
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_reconnect_backoff_ms", 10_000),
)
"""Options of all channels: HTTP proxies in the environment are not for brokers, answers may have any size, and a broker
that was away for long is found again within seconds. gRPC's own limit is two minutes.
"""

MESSAGING: Final = "/apache.rocketmq.v2.MessagingService/"
NONCE_BYTES: Final = 16

Metadata = tuple[tuple[str, str], ...]
Options = tuple[tuple[str, int], ...]


def open_channel(endpoint: Endpoint, *, clock: Clock | None = None, options: Options = ()) -> grpc.Channel:
    """Open a channel to a messaging or admin port. `options` are passed to gRPC with `CHANNEL_OPTIONS`.

    Raises OSError for a file that cannot be read.
    """
    channel = unsigned_channel(endpoint, options)
    if endpoint.user is None:
        return channel
    signing = _Signing(lambda method: call_metadata(endpoint, method, clock or SystemClock()))
    return grpc.intercept_channel(channel, signing)


def call_metadata(endpoint: Endpoint, method: str, clock: Clock) -> Metadata:
    """Return the metadata that signs a call (`/package.Service/Method`) as the endpoint's user, in its port's form."""
    if endpoint.user is None or endpoint.secret is None:
        return ()
    now_ms = clock.wall_ms()
    if method.startswith(MESSAGING):
        return signed_messaging_headers(endpoint.user, endpoint.secret, now_ms=now_ms)
    nonce = secrets.token_hex(NONCE_BYTES)
    return signed_admin_headers(endpoint.user, endpoint.secret, method, now_ms=now_ms, nonce=nonce)


def unsigned_channel(endpoint: Endpoint, options: Options = ()) -> grpc.Channel:
    """Open a channel like `open_channel`, but without signing its calls."""
    options = (*CHANNEL_OPTIONS, *options)
    if not endpoint.tls:
        return grpc.insecure_channel(endpoint.address, options=options)
    return grpc.secure_channel(endpoint.address, _credentials(endpoint), options=options)


def aio_channel(endpoint: Endpoint) -> grpc.aio.Channel:
    """Open a channel for asyncio, without signing its calls. Raises OSError for a file that cannot be read."""
    if not endpoint.tls:
        return grpc.aio.insecure_channel(endpoint.address, options=CHANNEL_OPTIONS)
    return grpc.aio.secure_channel(endpoint.address, _credentials(endpoint), options=CHANNEL_OPTIONS)


def _credentials(endpoint: Endpoint) -> grpc.ChannelCredentials:
    return grpc.ssl_channel_credentials(_bytes(endpoint.ca), _bytes(endpoint.key), _bytes(endpoint.certificate))


def _bytes(path: Path | None) -> bytes | None:
    return None if path is None else path.read_bytes()


class _Details(
    namedtuple("_Details", ["method", "timeout", "metadata", "credentials", "wait_for_ready", "compression"]),
    grpc.ClientCallDetails,
):
    """The call details that gRPC hands to interceptors, with other metadata."""


class _Signing(
    grpc.UnaryUnaryClientInterceptor,
    grpc.UnaryStreamClientInterceptor,
    grpc.StreamUnaryClientInterceptor,
    grpc.StreamStreamClientInterceptor,
):
    """Signs every call."""

    def __init__(self, metadata_of: Callable[[str], Metadata]) -> None:
        self._metadata_of = metadata_of

    def _intercept(self, continuation: Any, details: Any, request: Any) -> Any:
        metadata = (*(details.metadata or ()), *self._metadata_of(details.method))
        signed = _Details(
            details.method,
            details.timeout,
            metadata,
            details.credentials,
            getattr(details, "wait_for_ready", None),
            getattr(details, "compression", None),
        )
        return continuation(signed, request)

    # gRPC's types distinguish four kinds of calls; signing is the same for all
    intercept_unary_unary = _intercept  # type: ignore[assignment]
    intercept_unary_stream = _intercept  # type: ignore[assignment]
    intercept_stream_unary = _intercept  # type: ignore[assignment]
    intercept_stream_stream = _intercept  # type: ignore[assignment]
