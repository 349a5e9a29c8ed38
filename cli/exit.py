"""How commands end."""

from __future__ import annotations

from enum import IntEnum
from typing import NoReturn

import typer


class Exit(IntEnum):
    """Exit status of every command."""

    FINE = 0
    FINDING = 1
    COULD_NOT_RUN = 2


def end(status: Exit, text: str) -> NoReturn:
    """Leave the command with one line on standard error."""
    typer.echo(" ".join(text.split()), err=True)
    raise typer.Exit(status)
