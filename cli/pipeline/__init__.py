"""`quarry pipeline …`: work over whole stores on Spark (docs/pipeline.md)."""

from __future__ import annotations

from typing import Final

import typer

from cli.pipeline.export import export
from cli.pipeline.index import index
from cli.pipeline.migrate import migrate
from cli.pipeline.rebuild import rebuild
from cli.pipeline.replay import replay
from cli.pipeline.stats import stats
from cli.pipeline.verify import verify

COMMANDS: Final = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)

for command in (rebuild, migrate, verify, index, stats, export, replay):
    COMMANDS.command()(command)

__all__ = ["COMMANDS"]
