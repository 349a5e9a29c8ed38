"""How commands end."""

from __future__ import annotations

from enum import IntEnum
from typing import NoReturn

import typer

from quarry_mq.cli.terminal.hints import Names, hint, no_names
from quarry_mq.cli.terminal.text import say


class Exit(IntEnum):
    """Exit status of every command."""

    FINE = 0
    FINDING = 1
    COULD_NOT_RUN = 2


def end(status: Exit, text: str, names: Names | None = no_names) -> NoReturn:
    """Leave the command with one line on standard error, and a second one where there is something to try.

    `names` tells what a broker has, for who has mistyped one of them; None: no second line, since a program reads on.
    """
    line = " ".join(text.split())
    say(line, err=True)
    advice = None if names is None else hint(line, names)
    if advice is not None:
        say(f"hint: {advice}", err=True)
    raise typer.Exit(status)
