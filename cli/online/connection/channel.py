"""Opens connections to a broker: the only place where commands do."""

from __future__ import annotations

import secrets
from collections import namedtuple
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import grpc

from quarry_mq.cli.context_file import Context, ContextInvalid, check_tls_files
from quarry_mq.cli.terminal.exit import Exit, end
from quarry_mq.protocol.clock import Clock, SystemClock
from quarry_mq.protocol.signature import signed_admin_headers, signed_messaging_headers

CHANNEL_OPTIONS: Final = (("grpc.enable_http_proxy", 0), ("grpc.max_receive_message_length", -1))
"""Options of all channels: HTTP proxies in the environment are not for brokers, and answers may have any size."""

MESSAGING: Final = "/apache.rocketmq.v2.MessagingService/"
NONCE_BYTES: Final = 16

Metadata = tuple[tuple[str, str], ...]
Options = tuple[tuple[str, int], ...]


def open_channel(
    address: str, context: Context | None, *, clock: Clock | None = None, options: Options = ()
) -> grpc.Channel:
    """Open a channel to a port at `host:port`, messaging or admin, with the context's TLS, signed as its user if any.

    `options` are passed to gRPC with `CHANNEL_OPTIONS`. An unusable file ends the command with one line.
    """
    channel = unsigned_channel(address, context, options)
    if context is None or context.user is None:
        return channel
    signing = _Signing(lambda method: call_metadata(context, method, clock or SystemClock()))
    return grpc.intercept_channel(channel, signing)


def call_metadata(context: Context, method: str, clock: Clock) -> Metadata:
    """Return the metadata that signs a call (`/package.Service/Method`) as the context's user, in its port's form."""
    if context.user is None or context.secret is None:
        return ()
    now_ms = clock.wall_ms()
    if method.startswith(MESSAGING):
        return signed_messaging_headers(context.user, context.secret, now_ms=now_ms)
    nonce = secrets.token_hex(NONCE_BYTES)
    return signed_admin_headers(context.user, context.secret, method, now_ms=now_ms, nonce=nonce)


def unsigned_channel(address: str, context: Context | None, options: Options = ()) -> grpc.Channel:
    """Open a channel like `open_channel`, but without signing its calls."""
    options = (*CHANNEL_OPTIONS, *options)
    if context is None or not context.tls:
        return grpc.insecure_channel(address, options=options)
    try:
        check_tls_files(context)
    except ContextInvalid as error:
        end(Exit.COULD_NOT_RUN, str(error))
    credentials = grpc.ssl_channel_credentials(
        _bytes(context.tls_ca), _bytes(context.tls_key), _bytes(context.tls_certificate)
    )
    return grpc.secure_channel(address, credentials, options=options)


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
