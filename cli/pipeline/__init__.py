"""`quarry pipeline …`: work over whole stores on Spark (docs/pipeline.md)."""

from __future__ import annotations

from typing import Final

import typer

from cli.pipeline.export import export
from cli.pipeline.index import index
from cli.pipeline.migrate import migrate
from cli.pipeline.rebuild import rebuild
from cli.pipeline.replay import replay
from cli.pipeline.verify import verify

_APP: Final = typer.Typer(no_args_is_help=True)


def register(app: typer.Typer) -> None:
    """Add the commands to `quarry`."""
    for command in (rebuild, migrate, verify, index, export, replay):
        _APP.command()(command)
    app.add_typer(_APP, name="pipeline", help="Work over whole stores on Spark.")


__all__ = ["register"]
