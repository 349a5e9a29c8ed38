"""Connects a command to a broker's admin port."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Final, TypeVar, cast

import grpc

from quarry_mq.cli.contexts import chosen
from quarry_mq.cli.online.connection.channel import open_channel
from quarry_mq.cli.terminal.exit import Exit, end
from quarry_mq.cli.terminal.hints import Names
from quarry_mq.protocol.proto.quarry.admin.v1.admin_pb2_grpc import AdminServiceStub

_PLAIN: Final = frozenset({grpc.StatusCode.NOT_FOUND, grpc.StatusCode.ALREADY_EXISTS, grpc.StatusCode.INVALID_ARGUMENT})
"""Status codes whose details are shown alone, because they say everything."""
_Stub = TypeVar("_Stub")


def admin_port(address: str) -> AbstractContextManager[AdminServiceStub]:
    """Give the admin service at `host:port`, as `service_port` does."""
    return service_port(address, AdminServiceStub)


@contextmanager
def service_port(
    address: str, stub: Callable[[grpc.Channel], _Stub], *, plain: Collection[grpc.StatusCode] = ()
) -> Iterator[_Stub]:
    """Give a service on the admin port at `host:port`. A refusal or a lost connection ends the command with one line.

    `plain`: codes of this service whose details, if there are any, are shown alone.
    """
    with open_channel(address, chosen()) as channel:
        try:
            yield stub(channel)
        except grpc.RpcError as error:
            end(Exit.COULD_NOT_RUN, refusal(error, address, plain=plain), asked_names(address))


def asked_names(address: str) -> Names:
    """Return the function that asks the broker at this admin port for names, when a hint needs them."""

    def names(kind: str) -> Sequence[str]:
        from quarry_mq.cli.online.connection.known_names import names_of  # not at the top: only errors need it

        return names_of(kind, address, chosen())

    return names


def refusal(error: grpc.RpcError, address: str, *, plain: Collection[grpc.StatusCode] = ()) -> str:
    """Return the line that explains a failed call to the user."""
    # Every error of a call is also that call; the type does not say so.
    call = cast("grpc.Call", error)
    code, details = call.code(), call.details() or ""
    if details and code in plain:
        return details
    if code is grpc.StatusCode.UNAVAILABLE:
        return f"{address}: no answer from a broker ({details})"
    if code in _PLAIN:
        return details
    return f"{address}: {code.name.lower().replace('_', ' ')}: {details}"
