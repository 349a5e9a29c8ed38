"""The command `quarry`: every subcommand registers itself here."""

from __future__ import annotations

from typing import Annotated, Final

import typer

from cli import context_commands, doctor, offline, online, pipeline, serve
from cli.command_tree import Commands
from cli.completion import completion
from cli.contexts import NAME_VARIABLE, choose
from cli.schemas.command import schema

app: Final = typer.Typer(
    name="quarry",
    cls=Commands,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


@app.callback()
def quarry(
    context: Annotated[
        str | None,
        typer.Option(
            "--context",
            metavar="NAME",
            envvar=NAME_VARIABLE,
            help="Where the broker is and how it is known, from ~/.config/quarry/contexts.toml (docs/tls.md).",
        ),
    ] = None,
) -> None:
    """A RocketMQ-compatible message broker for very many queues."""
    choose(context or None)


serve.register(app)
doctor.register(app)
online.register(app)
offline.register(app)
pipeline.register(app)
app.add_typer(context_commands.commands)
app.command()(completion)
app.command()(schema)


def main() -> None:
    """Entry point of the command and of `python -m cli.main`."""
    app()


if __name__ == "__main__":
    main()
