"""Defines options of several commands that select messages."""

from __future__ import annotations

from typing import Annotated

import typer

Topics = Annotated[
    list[str] | None, typer.Option("--topic", "-t", metavar="TOPIC", help="Only of this topic; repeatable.")
]
Tags = Annotated[list[str] | None, typer.Option("--tag", metavar="TAG", help="Only with this tag; repeatable.")]
Where = Annotated[str | None, typer.Option("--where", metavar="SQL", help="Filter in Spark SQL over the columns.")]
