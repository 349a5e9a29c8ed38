"""`quarry pipeline …`: work over whole stores on Spark (docs/pipeline.md)."""

from __future__ import annotations

from typing import Final

import typer

from cli.pipeline.export import export
from cli.pipeline.rebuild import rebuild
from cli.pipeline.stats import stats

COMMANDS: Final = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)


def register(app: typer.Typer) -> None:
    """Add the commands to `quarry`."""
    app.add_typer(COMMANDS, name="pipeline", help="Work over whole stores on Spark.")


for command in (rebuild, export, stats):
    COMMANDS.command()(command)

__all__ = ["COMMANDS", "register"]
