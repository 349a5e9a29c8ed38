"""Checks whether a broker is there, for commands that go on without one."""

from __future__ import annotations

from typing import Final, NamedTuple, cast

import grpc

from quarry_mq.cli.context_file import Context
from quarry_mq.cli.online.connection.administration import open_channel
from quarry_mq.protocol.proto.quarry.admin.v1 import admin_pb2 as pb
from quarry_mq.protocol.proto.quarry.admin.v1.admin_pb2_grpc import AdminServiceStub

TIMEOUT_S: Final = 3.0
_SILENCE: Final = frozenset({grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED})


class Told(NamedTuple):
    """The broker's description of itself."""

    name: str
    version: str
    store_directory: str
    started_at_ms: int
    messaging_address: str


class Answer(NamedTuple):
    """The answer of an admin port. If `broker` is None, `refusal` says why the server does not describe itself."""

    address: str
    broker: Told | None
    refusal: str = ""


def who_is(address: str, context: Context | None) -> Answer | None:
    """Ask which broker answers at an admin port; None: no answer within `TIMEOUT_S`."""
    with open_channel(address, context) as channel:
        stub = AdminServiceStub(channel)
        try:
            told = stub.GetBroker(pb.GetBrokerRequest(), timeout=TIMEOUT_S)
        except grpc.RpcError as error:
            call = cast("grpc.Call", error)
            if call.code() in _SILENCE:
                return None
            return Answer(address, None, f"{call.code().name.lower().replace('_', ' ')}: {call.details()}")
    return Answer(
        address, Told(told.name, told.version, told.store_directory, told.started_at_ms, told.advertised_address)
    )


def is_reached(address: str, context: Context) -> bool:
    """Return whether a server at a messaging port speaks HTTP/2 within `TIMEOUT_S`, with the context's TLS settings."""
    with open_channel(address, context) as channel:
        try:
            grpc.channel_ready_future(channel).result(timeout=TIMEOUT_S)
        except grpc.FutureTimeoutError:
            return False
    return True
