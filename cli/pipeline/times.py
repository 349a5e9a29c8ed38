"""Options that choose messages by when they were stored."""

from __future__ import annotations

from typing import Annotated

import typer

from cli.times import date_ms

Since = Annotated[
    str | None, typer.Option("--from", metavar="TIME", help="Only stored then or later: ms since 1970, or a date.")
]
Until = Annotated[
    str | None, typer.Option("--to", metavar="TIME", help="Only stored then or before: ms since 1970, or a date.")
]


def time_ms(text: str | None, option: str) -> int | None:
    """The time that was given, if one was. Ends the command with the option's name for what is none."""
    if text is None:
        return None
    if text.isdecimal():
        return int(text)
    found = date_ms(text)
    if found is None:
        reason = f"{text!r} is neither ms since 1970 nor a date like 2026-11-21T14:30:00+01:00"
        raise typer.BadParameter(reason, param_hint=option)
    return found
