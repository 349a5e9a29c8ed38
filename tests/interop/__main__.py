"""Prints the matrix: `python -m tests.interop`, or with names of stacks for only those."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Final, get_args

import pytest
from rich import box
from rich.console import Console
from rich.progress import track
from rich.table import Table

from quarry_mq.server.front import FrontKind
from tests.interop.row import CASES, Certificates, outcomes_of
from tests.interop.stacks import STACKS

MARKS: Final = {True: "[green]✓[/]", False: "[bold red]✗[/]", None: "[dim]n/a[/]"}
NOT_A_TERMINAL_WIDTH: Final = 160


def main() -> int:
    """The exit status: 0 when nothing failed."""
    console = Console()
    if not console.is_terminal:
        console.width = NOT_A_TERMINAL_WIDTH
    headings = (case.replace(" ", "\n") for case in CASES)
    table = Table("stack", "front", "", *headings, box=box.SIMPLE, collapse_padding=True, pad_edge=False)
    for column in table.columns:
        column.no_wrap = True
    notes: list[str] = []
    failures = 0
    wanted = [stack for stack in STACKS if not sys.argv[1:] or stack.name in sys.argv[1:]]
    with tempfile.TemporaryDirectory() as folder:
        certificates = Certificates.make(Path(folder))
        for stack in track(wanted, "client stacks", console=Console(stderr=True), transient=True):
            try:
                command = stack.command()
            except pytest.skip.Exception as reason:
                table.add_row(stack.name, "[dim]not installed[/]", end_section=True)
                notes.append(f"{stack.name}: {reason.msg}")
                continue
            for front in get_args(FrontKind):
                for secure in (False, True):
                    outcomes = outcomes_of(command, front, certificates if secure else None)
                    transport = "TLS" if secure else "plain"
                    table.add_row(stack.name, front, transport, *(MARKS[outcome.ok] for outcome in outcomes))
                    failures += sum(outcome.ok is False for outcome in outcomes)
                    notes += [
                        f"{stack.name}, {front}, {transport}, {outcome.case}: {outcome.detail}"
                        for outcome in outcomes
                        if not outcome.ok
                    ]
            table.add_section()
    console.print(table)
    for note in notes:
        console.print(note, markup=False)
    return min(failures, 1)


if __name__ == "__main__":
    sys.exit(main())
