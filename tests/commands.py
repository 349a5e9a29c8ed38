"""The commands of `quarry`, all imported, for tests that look at each of them."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any

import typer

from quarry_mq.cli.main import app


@cache
def root() -> Any:
    """Of all commands, as typer builds them."""
    quarry: Any = typer.main.get_command(app)
    for name in list(quarry.commands):
        quarry.load(name)
    return quarry


def commands() -> Iterator[tuple[str, Any]]:
    """Every command with its full name."""
    pending: list[tuple[str, Any]] = [("quarry", root())]
    while pending:
        path, command = pending.pop(0)
        children = getattr(command, "commands", None)
        if children is None:
            yield path, command
        else:
            pending += [(f"{path} {child}", children[child]) for child in children]
