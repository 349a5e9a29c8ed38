"""`quarry help` shows the help of a command: some type it before `-h`."""

from __future__ import annotations

from typing import Annotated

import typer


def show_help(
    context: typer.Context,
    command: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[COMMAND]...", help="The command, such as: topic create. Default: all.", show_default=False
        ),
    ] = None,
) -> None:
    """Show the help of a command, as `-h` does."""
    root = context.find_root()
    root.command.main([*(command or ()), "--help"], prog_name=root.info_name, standalone_mode=False)
