"""Draws bars that show the progress of long work at a terminal."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from quarry_mq.cli.terminal.text import harmless
from quarry_mq.protocol.clock import Progress as StoreProgress
from quarry_mq.protocol.clock import ReportProgress


@contextmanager
def progress_bar(console: Console | None = None) -> Iterator[ReportProgress]:
    """Draw one bar per phase on standard error, and remove them at the end."""
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        TextColumn("{task.percentage:>3.0f} %"),
        TimeRemainingColumn(),
        TextColumn("{task.fields[detail]}", markup=False),
    )
    with Progress(*columns, console=console or Console(stderr=True), transient=True, redirect_stdout=False) as bars:
        tasks: dict[str, TaskID] = {}

        def report(progress: StoreProgress) -> None:
            if progress.phase not in tasks:
                tasks[progress.phase] = bars.add_task(progress.phase, total=progress.total_bytes, detail="")
            bars.update(
                tasks[progress.phase],
                completed=progress.done_bytes,
                total=progress.total_bytes,
                detail=harmless(progress.detail),
            )

        yield report
