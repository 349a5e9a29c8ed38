"""Defines arguments and options that several offline commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

Store = Annotated[Path, typer.Argument(metavar="STORE", help="Store directory: the one that contains commitlog/.")]
Topic = Annotated[str, typer.Option("--topic", "-t", metavar="TOPIC", help="Name of the topic.")]
Queue = Annotated[int, typer.Option("--queue", metavar="N", min=0, help="Number of the queue.")]
Json = Annotated[bool, typer.Option("--json", help="One JSON object per line.")]
DifferenceLimit = Annotated[
    int,
    typer.Option(
        "--limit",
        "-n",
        metavar="N",
        min=1,
        help="Maximum number of differences of each kind to show; all are counted.",
    ),
]
