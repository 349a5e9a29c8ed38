"""Finds the messaging address of a broker: one address, the admin address, is enough for all commands."""

from __future__ import annotations

from contextvars import ContextVar
from typing import Final

import typer

from quarry_mq.cli.contexts import chosen, is_given
from quarry_mq.cli.online.connection.administration import admin_port
from quarry_mq.protocol.proto.quarry.admin.v1 import admin_pb2 as pb

CALL_TIMEOUT_S: Final = 10.0
_ASKED: Final[ContextVar[str | None]] = ContextVar("asked", default=None)


def asked_admin() -> str | None:
    """Return the admin address that was asked for the messaging address of this run, if there is one."""
    return _ASKED.get()


def endpoint_of_broker(context: typer.Context, param: typer.CallbackParam, value: str) -> str:
    """Callback of `--endpoint`: return the option, the chosen context's value, or what the broker at `--admin` says.

    Without `--admin` the broker of the context is asked, if it has an admin address alone.
    """
    if is_given(context, param.name) or context.resilient_parsing:
        return value
    admin = _given_admin(context)
    if admin is None:
        said = chosen()
        if said is None or said.endpoint is not None or said.admin is None:
            return value if said is None else said.endpoint or value
        admin = said.admin
    _ASKED.set(admin)
    return _messaging_address(admin)


def _given_admin(context: typer.Context) -> str | None:
    """Return `--admin` if it is on the command line: what is there is parsed before what is not."""
    for name in ("admin", "_admin"):
        if is_given(context, name) and isinstance(admin := context.params.get(name), str):
            return admin
    return None


def _messaging_address(admin: str) -> str:
    """Return the messaging address that the broker at an admin address names. Ends the command without an answer."""
    with admin_port(admin) as broker:
        return str(broker.GetBroker(pb.GetBrokerRequest(), timeout=CALL_TIMEOUT_S).advertised_address)
