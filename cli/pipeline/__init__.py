"""`quarry pipeline …`: work over whole stores on Spark (docs/pipeline.md)."""

from __future__ import annotations

from typing import Final

import typer

from cli.pipeline.rebuild import rebuild

_APP: Final = typer.Typer(no_args_is_help=True)


def register(app: typer.Typer) -> None:
    """Add the commands to `quarry`."""
    _APP.command()(rebuild)
    app.add_typer(_APP, name="pipeline", help="Work over whole stores on Spark.")


__all__ = ["register"]
