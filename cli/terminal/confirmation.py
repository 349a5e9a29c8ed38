"""Asks before something is deleted or moved that no command brings back."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from typing import Annotated

import typer

from quarry_mq.cli.terminal.exit import Exit, end
from quarry_mq.cli.terminal.output import object_lines
from quarry_mq.cli.terminal.text import one_line, say

Yes = Annotated[bool, typer.Option("--yes", help="Do it without asking.")]


def confirm(what: str, *, yes: bool, told: Callable[[], Mapping[str, object]] | None = None) -> None:
    """Ask on the terminal whether to do `what`, such as "delete the topic orders"; end the command if it is not wanted.

    `told` finds what would be lost, which is shown with the question. A command that no person can answer needs --yes.
    """
    if yes:
        return
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        end(Exit.COULD_NOT_RUN, f"would {what}, but there is no terminal to ask on: --yes does it without asking")
    if told is not None:
        for line in object_lines({name: value for name, value in told().items() if name != "dryRun"}):
            say(line, err=True)
    say(f"{one_line(what[0].upper() + what[1:])}? [y/N] ", err=True, nl=False)
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        end(Exit.COULD_NOT_RUN, "nothing was changed")
