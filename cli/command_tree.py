"""The root of all commands: how it completes words for a shell, and how it ends when nobody reads what it says."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Any, Final

import typer
from typer.core import TyperGroup

from cli import completion

NOBODY_READS: Final = 128 + signal.SIGPIPE
"""Exit status as of a program that the signal ended: no finding, and no fault."""


class Commands(TyperGroup):
    """What holds for every command."""

    def main(self, *arguments: Any, **more: Any) -> Any:
        if completion.is_asked():
            completion.attach(self)
        return super().main(*arguments, **more)

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except BrokenPipeError:
            _read_no_more()
            raise typer.Exit(NOBODY_READS) from None


def _read_no_more() -> None:
    """Else Python complains of the pipe once more when it flushes at its end."""
    with Path(os.devnull).open("w") as nowhere:
        os.dup2(nowhere.fileno(), sys.stdout.fileno())
