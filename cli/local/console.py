"""`quarry console` serves the pages of the console for a broker on another machine."""

from __future__ import annotations

import secrets
from importlib.metadata import version
from typing import Annotated, Final

import typer

from quarry_mq.cli.context_file import Context
from quarry_mq.cli.contexts import chosen
from quarry_mq.cli.online.connection.administration import endpoint_of
from quarry_mq.cli.online.connection.arguments import ADMIN_DEFAULT, Admin
from quarry_mq.cli.terminal.exit import Exit, asked_to_end, end
from quarry_mq.cli.terminal.text import say
from quarry_mq.client.channel import unsigned_channel
from quarry_mq.protocol.clock import SystemClock
from quarry_mq.server.admin_port.console import AdminCalls
from quarry_mq.server.console.calls import ConsoleParts, Entry, Rules
from quarry_mq.server.console.thread import ConsoleThread
from quarry_mq.server.observability.logs import configure_logs

HOST: Final = "127.0.0.1"
KEY_BYTES: Final = 32


def console(
    *,
    admin: Admin = ADMIN_DEFAULT,
    port: Annotated[
        int, typer.Option("--port", metavar="PORT", min=0, max=65_535, help="Port to listen on; 0: any free port.")
    ] = 0,
    as_context_user: Annotated[
        bool, typer.Option("--as-context-user", help="Make all calls as the user of the context, without a login.")
    ] = False,
) -> None:
    """Serve the console for a broker on 127.0.0.1, until Ctrl-C.

    The console is for browsers on this machine. The context says how the broker is reached. Users of the page log in as
    users of the broker, if the broker requires authentication.
    """
    context = chosen()
    entry = _entry(context) if as_context_user else None
    configure_logs("auto", "warning")
    thread = ConsoleThread(f"{HOST}:{port}", _parts(admin, context, entry))
    with asked_to_end() as asked:
        try:
            thread.start()
        except OSError as error:
            end(Exit.COULD_NOT_RUN, f"--port: {error}")
        way_in = "" if entry is None else f"enter?key={entry.key}"
        say(f"{thread.url}{way_in}")
        say(f"shows the broker at {admin}; Ctrl-C ends it", err=True)
        asked.wait()
        thread.stop()


def _entry(context: Context | None) -> Entry:
    if context is None or context.user is None or context.secret is None:
        end(Exit.COULD_NOT_RUN, "--as-context-user: needs a context that names a user (quarry --context NAME)")
    return Entry(secrets.token_urlsafe(KEY_BYTES), context.user, context.secret)


def _parts(admin: str, context: Context | None, entry: Entry | None) -> ConsoleParts:
    channel = unsigned_channel(endpoint_of(admin, context))  # here: a file that is no good ends the command
    # users of the page must not be taken for the owner of the context's certificate
    has_certificate = context is not None and context.tls_certificate is not None
    clock = SystemClock()
    return ConsoleParts(
        port=lambda: AdminCalls(channel, clock=clock, needs_login=True if has_certificate or entry else None),
        rules=Rules(is_always_own=True, entry=entry),
        version=version("quarry-mq"),
        clock=clock,
    )
