from __future__ import annotations

import io

from rich.console import Console

from quarry_mq.cli.terminal.progress_bar import progress_bar
from quarry_mq.protocol.clock import Progress


def test_the_bar_names_each_phase() -> None:
    screen = io.StringIO()
    with progress_bar(Console(file=screen, force_terminal=True)) as report:
        report(Progress("recovering", 10, 40))
        report(Progress("recovering", 20, 40))
        report(Progress("completing", 1, 2, "1,200 rows"))
    assert "1,200 rows" in screen.getvalue()
    assert "recovering" in screen.getvalue()
    assert "completing" in screen.getvalue()
