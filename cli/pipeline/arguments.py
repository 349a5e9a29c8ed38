"""Defines options of several commands that select messages."""

from __future__ import annotations

from typing import Annotated

import typer

from quarry_mq.cli.terminal.text import time_ms as parsed_time_ms

Topics = Annotated[list[str] | None, typer.Option("--topic", help="Only of this topic; repeatable.")]
Tags = Annotated[list[str] | None, typer.Option("--tag", help="Only with this tag; repeatable.")]
Since = Annotated[
    str | None,
    typer.Option(
        "--from", metavar="TIME", help="Only messages stored at this time or later: ms since 1970, or a date."
    ),
]
Until = Annotated[
    str | None,
    typer.Option(
        "--to", metavar="TIME", help="Only messages stored at this time or earlier: ms since 1970, or a date."
    ),
]
Where = Annotated[str | None, typer.Option("--where", metavar="SQL", help="Filter in Spark SQL over the columns.")]


def time_ms(text: str | None, option: str) -> int | None:
    """Parse the time of an option. Raises typer.BadParameter with the option."""
    if text is None:
        return None
    found_ms = parsed_time_ms(text)
    if found_ms is None:
        reason = f"{text!r} is neither ms since 1970 nor a date like 2026-11-21T14:30:00+01:00"
        raise typer.BadParameter(reason, param_hint=option)
    return found_ms
