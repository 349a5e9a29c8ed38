"""The entry point of `quarry` and the options before the name of a command. The commands are in `cli.command_table`."""

from __future__ import annotations

import atexit
import faulthandler
import gc
import io
import sys
from contextlib import suppress
from typing import Annotated, Final

import typer

from quarry_mq.cli.command_tree import Commands
from quarry_mq.cli.context_file import NAME_VARIABLE
from quarry_mq.cli.contexts import choose
from quarry_mq.cli.terminal.text import say

DISTRIBUTION: Final = "quarry-mq"

app: Final = typer.Typer(
    name="quarry",
    cls=Commands,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _tell_version(context: typer.Context, wanted: bool) -> None:
    if wanted and not context.resilient_parsing:  # a shell that completes the line parses it, too
        from importlib.metadata import version  # not at the top: no command needs it

        say(f"quarry {version(DISTRIBUTION)}")
        raise typer.Exit


@app.callback()
def quarry(
    context: Annotated[
        str | None,
        typer.Option(
            "--context",
            metavar="NAME",
            envvar=NAME_VARIABLE,
            help="Use the broker, TLS files and user of this context from ~/.config/quarry/contexts.toml. HOST:PORT: "
            "use the broker with this admin address.",
        ),
    ] = None,
    _version: Annotated[
        bool, typer.Option("--version", is_eager=True, callback=_tell_version, help="Print the version and exit.")
    ] = False,
) -> None:
    """A RocketMQ-compatible message broker for very many queues."""
    choose(context or None)


def main() -> None:
    """Entry point of the command and of `python -m quarry_mq.cli.main`."""
    _tell_where_it_crashes()
    _write_whole_lines()
    atexit.register(gc.freeze)  # else Python searches all objects for garbage at the end: 0.6 s for a broker
    app()


def _tell_where_it_crashes() -> None:
    """Print the stacks of all threads on a fatal signal: truncating a mapped file ends the process by one."""
    if sys.__stderr__ is not None:
        with suppress(OSError, ValueError):  # closed
            faulthandler.enable(sys.__stderr__)


def _write_whole_lines() -> None:
    """Make standard output write whole lines even with PYTHONUNBUFFERED.

    Otherwise a text stream does not notice that a pipe took only a part of a line, because its reader has gone: a
    message would count as shown that was not.
    """
    unbuffered = sys.stdout.buffer
    if isinstance(unbuffered, io.RawIOBase):
        whole = io.BufferedWriter(unbuffered)
        sys.stdout = io.TextIOWrapper(whole, sys.stdout.encoding, sys.stdout.errors, line_buffering=True)


if __name__ == "__main__":
    main()
