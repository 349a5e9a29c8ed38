"""`quarry schema` prints the JSON Schema of what a command prints with `--json`."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from quarry_mq.cli.schemas.shapes import commands, own_name, page, schema_of
from quarry_mq.cli.terminal.exit import Exit, end
from quarry_mq.cli.terminal.hints import near
from quarry_mq.cli.terminal.text import say


def schema(
    command: Annotated[
        list[str] | None,
        typer.Argument(metavar="[COMMAND]...", help="The command, such as: topic list. Default: all commands."),
    ] = None,
    *,
    as_page: Annotated[
        bool, typer.Option("--page", help="Print a page in Markdown about all commands and fields instead.")
    ] = False,
) -> None:
    """Print the JSON Schema of the lines that a command prints with --json."""
    if as_page:
        for line in page():
            say(line)
        return
    if not command:
        say(json.dumps({name: schema_of(name) for name in commands()}, indent=2))
        return
    name = " ".join(command)
    if own_name(name) not in commands():
        meant = near(name, list(commands()))
        end(
            Exit.COULD_NOT_RUN,
            f"no schema of {name!r}" + (f"; there are schemas of: {', '.join(meant)}" if meant else ""),
        )
    say(json.dumps(schema_of(name), indent=2))
