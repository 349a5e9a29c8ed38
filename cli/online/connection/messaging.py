"""Connects a command to a broker's messaging port."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import grpc

from quarry_mq.cli.contexts import chosen
from quarry_mq.cli.online.connection.addresses import asked_admin
from quarry_mq.cli.online.connection.administration import asked_names, endpoint_of, refusal
from quarry_mq.cli.online.connection.arguments import ADMIN_DEFAULT, ENDPOINT_DEFAULT
from quarry_mq.cli.terminal.exit import Exit, end
from quarry_mq.cli.terminal.hints import no_names
from quarry_mq.client.errors import CallRefused
from quarry_mq.client.messaging import MessagingClient
from quarry_mq.client.requests import Subscription


@contextmanager
def messaging_port(endpoint: str, *, subscription: Subscription | None = None) -> Iterator[MessagingClient]:
    """Give a connected client. A refusal or a lost connection ends the command with one line."""
    context = chosen()
    try:
        with MessagingClient(endpoint_of(endpoint, context), subscription=subscription) as client:
            yield client
    except CallRefused as error:
        # the messaging port lists no names
        admin = asked_admin() or (ADMIN_DEFAULT if endpoint == ENDPOINT_DEFAULT else None)
        if asked_admin() is None and context is not None and context.admin is not None:
            admin = context.admin
        end(Exit.COULD_NOT_RUN, str(error), no_names if admin is None else asked_names(admin))
    except grpc.RpcError as error:
        end(Exit.COULD_NOT_RUN, refusal(error, endpoint))
    except ValueError as error:
        end(Exit.COULD_NOT_RUN, f"{endpoint}: {error}")
