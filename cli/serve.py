"""`quarry serve` runs a broker in the foreground."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Final

import typer

from quarry_mq.cli.terminal.exit import Exit, end
from quarry_mq.cli.terminal.progress import is_watched
from quarry_mq.kv import KvError
from quarry_mq.server.shards.process import SHARDS_MAX
from quarry_mq.store.errors import BrokerError

AUTO: Final = 0
"""The number of shards that is given as `auto`."""


def _count(text: str) -> int:
    if text == "auto":
        return AUTO
    if not (text.isascii() and text.isdecimal() and 1 <= int(text) <= SHARDS_MAX):
        raise typer.BadParameter(f"{text!r} is neither a number from 1 to {SHARDS_MAX} nor auto")
    return int(text)


def serve(
    *,
    config: Annotated[
        Path | None,
        typer.Option("--config", envvar="QUARRY_CONFIG", metavar="FILE", help="File with settings in TOML."),
    ] = None,
    store: Annotated[
        Path | None,
        typer.Option("--store", metavar="DIR", help="Directory of the store; created if it does not exist."),
    ] = None,
    listen: Annotated[
        str | None, typer.Option("--listen", metavar="HOST:PORT", help="Address for messaging clients.")
    ] = None,
    advertise: Annotated[
        str | None, typer.Option("--advertise", metavar="HOST:PORT", help="Address that routes give to clients.")
    ] = None,
    admin: Annotated[
        str | None,
        typer.Option("--admin", metavar="HOST:PORT", help="Address for admin commands such as `quarry topic`."),
    ] = None,
    http: Annotated[
        str | None, typer.Option("--http", metavar="HOST:PORT", help="Address of /metrics, /healthz and /readyz.")
    ] = None,
    console: Annotated[
        str | None,
        typer.Option("--console", metavar="HOST:PORT", help="Address of the web console; off: no console."),
    ] = None,
    shards: Annotated[
        int | None,
        typer.Option(
            "--shards",
            metavar="N|auto",
            parser=_count,
            help="Run N brokers, each with its own store in DIR and its own ports; auto: as many as suit the machine.",
        ),
    ] = None,
    after_cut_over: Annotated[
        bool,
        typer.Option(
            "--after-cut-over", help="Load everything, and wait until `quarry follow --cut-over` has filled DIR."
        ),
    ] = False,
) -> None:
    """Run a broker until it is told to stop (Ctrl-C, SIGTERM).

    Flags take precedence over the environment (QUARRY_STORE_DIRECTORY and the like), which takes precedence over the
    file.
    """
    # Imported here: the modules that a broker needs take a while to load, and no other command needs them.
    gc.disable()  # modules are no garbage, and to search them takes a sixth of the time
    from quarry_mq.cli.terminal.progress_bar import progress_bar
    from quarry_mq.server.main import run
    from quarry_mq.server.settings.broker_settings import load_settings

    gc.enable()
    network = _given(listen=listen, advertise=advertise, admin=admin, http=http, console=console)
    if after_cut_over and shards is not None:
        raise typer.BadParameter("a store that was filled by `quarry follow` has no shards", param_hint="--shards")
    with _refusals():
        settings = load_settings(config, {"store": _given(directory=store), "network": network})
        if shards is not None:
            from quarry_mq.cli.shards import become_supervisor, choose_shards

            count = choose_shards(settings) if shards == AUTO else shards
            if count is not None:
                become_supervisor(settings, count, config)
        status = run(settings, progress_bar if is_watched() else None, after_cut_over=after_cut_over)
    raise typer.Exit(status)


@contextmanager
def _refusals() -> Iterator[None]:
    """End the command with one line for what keeps a broker from starting or going on."""
    try:
        yield
    except OSError as error:
        # not "[Errno 30] Read-only file system: '/data/lock'": the name first, as in all other refusals
        named = error.filename is not None and error.strerror is not None
        end(Exit.COULD_NOT_RUN, f"{error.filename}: {error.strerror}" if named else str(error), names=None)
    except (BrokerError, KvError) as error:
        end(Exit.COULD_NOT_RUN, str(error), names=None)  # a supervisor reports the last line


def _given(**flags: object) -> dict[str, object]:
    return {name: value for name, value in flags.items() if value is not None}
