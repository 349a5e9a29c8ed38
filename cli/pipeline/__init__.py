"""`quarry pipeline …`: work over whole stores on Spark (docs/pipeline.md)."""

from __future__ import annotations

from typing import Final

import typer

from cli.pipeline.export import export
from cli.pipeline.rebuild import rebuild
from cli.pipeline.stats import stats

_APP: Final = typer.Typer(no_args_is_help=True)


def register(app: typer.Typer) -> None:
    """Add the commands to `quarry`."""
    for command in (rebuild, export, stats):
        _APP.command()(command)
    app.add_typer(_APP, name="pipeline", help="Work over whole stores on Spark.")


__all__ = ["register"]
