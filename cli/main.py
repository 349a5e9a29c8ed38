"""The command `quarry`: every subcommand registers itself here."""

from __future__ import annotations

from typing import Final

import typer

from cli import offline, online, pipeline, serve

app: Final = typer.Typer(
    name="quarry",
    help="A RocketMQ-compatible message broker for very many queues.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
serve.register(app)
online.register(app)
offline.register(app)
pipeline.register(app)


def main() -> None:
    """Entry point of the command and of `python -m cli.main`."""
    app()


if __name__ == "__main__":
    main()
