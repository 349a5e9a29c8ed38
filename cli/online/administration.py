"""The connection of a command to a broker's admin port."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final, cast

import grpc

from cli.exit import Exit, end
from server._generated.quarry.admin.v1.admin_pb2_grpc import AdminServiceStub

CHANNEL_OPTIONS: Final = (("grpc.enable_http_proxy", 0), ("grpc.max_receive_message_length", -1))
"""A proxy from the environment is for the web, not for a broker; answers may be as large as the broker makes them."""


@contextmanager
def admin_port(address: str) -> Iterator[AdminServiceStub]:
    """The admin service at `host:port`. A refusal or a lost connection ends the command with one line."""
    with grpc.insecure_channel(address, options=CHANNEL_OPTIONS) as channel:
        try:
            yield AdminServiceStub(channel)  # type: ignore[no-untyped-call]
        except grpc.RpcError as error:
            end(Exit.COULD_NOT_RUN, refusal(error, address))


def refusal(error: grpc.RpcError, address: str) -> str:
    """What a failed call means to the person who made it."""
    # Every error of a call is also that call; the type does not say so.
    call = cast("grpc.Call", error)
    code, details = call.code(), call.details() or ""
    if code is grpc.StatusCode.UNAVAILABLE:
        return f"{address}: no answer from a broker ({details})"
    if code in (grpc.StatusCode.NOT_FOUND, grpc.StatusCode.ALREADY_EXISTS, grpc.StatusCode.INVALID_ARGUMENT):
        return details
    return f"{address}: {code.name.lower().replace('_', ' ')}: {details}"
