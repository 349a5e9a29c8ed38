"""Opens connections of commands to a broker, by the chosen context."""

from __future__ import annotations

import grpc

from quarry_mq.cli.context_file import Context
from quarry_mq.cli.terminal.exit import Exit, end
from quarry_mq.client import channel
from quarry_mq.client.channel import Options
from quarry_mq.client.endpoint import Endpoint
from quarry_mq.protocol.clock import Clock


def endpoint_of(address: str, context: Context | None) -> Endpoint:
    """Return the port at `host:port`, with the context's TLS and user.

    An unusable file ends the command with one line.
    """
    if context is None:
        return Endpoint(address)
    endpoint = Endpoint(
        address,
        tls=context.tls,
        ca=context.tls_ca,
        certificate=context.tls_certificate,
        key=context.tls_key,
        user=context.user,
        secret=context.secret,
    )
    if endpoint.tls:
        try:
            endpoint.check_tls_files()
        except ValueError as error:
            end(Exit.COULD_NOT_RUN, str(error))
    return endpoint


def open_channel(
    address: str, context: Context | None, *, clock: Clock | None = None, options: Options = ()
) -> grpc.Channel:
    """Open a channel to a port at `host:port`, messaging or admin, by `endpoint_of`."""
    return channel.open_channel(endpoint_of(address, context), clock=clock, options=options)
