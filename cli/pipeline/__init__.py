"""`quarry pipeline …` runs jobs over whole stores on Spark (docs/pipeline.md)."""

from __future__ import annotations

from typing import Final

import typer

from quarry_mq.cli.pipeline.export import export
from quarry_mq.cli.pipeline.index import index
from quarry_mq.cli.pipeline.lake import lake, lake_maintain
from quarry_mq.cli.pipeline.migrate import migrate
from quarry_mq.cli.pipeline.rebuild import rebuild
from quarry_mq.cli.pipeline.replay import replay
from quarry_mq.cli.pipeline.stats import stats
from quarry_mq.cli.pipeline.verify import verify

COMMANDS: Final = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)

for command in (rebuild, migrate, verify, index, stats, export, replay, lake, lake_maintain):
    COMMANDS.command()(command)

__all__ = ["COMMANDS"]
