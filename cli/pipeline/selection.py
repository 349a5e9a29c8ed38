"""Options by which several jobs say which messages are meant."""

from __future__ import annotations

from typing import Annotated

import typer

from cli.times import date_ms

Topics = Annotated[list[str] | None, typer.Option("--topic", help="Only of this topic; may be repeated.")]
Since = Annotated[
    str | None, typer.Option("--from", metavar="TIME", help="Only stored then or later: ms since 1970, or a date.")
]
Until = Annotated[
    str | None, typer.Option("--to", metavar="TIME", help="Only stored then or before: ms since 1970, or a date.")
]


def time_ms(text: str | None, option: str) -> int | None:
    """The time in ms; None where none was given. Raises typer.BadParameter for what is no time."""
    if text is None:
        return None
    if text.isdecimal():
        return int(text)
    found_ms = date_ms(text)
    if found_ms is None:
        reason = f"{text!r} is neither ms since 1970 nor a date like 2026-11-21T14:30:00+01:00"
        raise typer.BadParameter(reason, param_hint=option)
    return found_ms
