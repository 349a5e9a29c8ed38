"""The table of what clients saw in each case."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from tests.kubernetes.release import Result

COLUMNS: Final = ("case", "client", "acknowledged", "lost", "refused", "longest pause s", "slowest send s", "seconds")


class Table:
    """Rows, in the order of the cases."""

    def __init__(self) -> None:
        self._rows: list[tuple[str, ...]] = []

    def add(self, case: str, results: Sequence[Result], seconds: float) -> None:
        """Add and print one row for each client of a case."""
        for each in results:
            counts = (each.acknowledged, each.lost, each.refused)
            times = (each.longest_pause_s, each.slowest_send_s)
            row = (case, each.client, *(str(count) for count in counts), *(f"{time:.2f}" for time in times))
            self._rows.append((*row, f"{seconds:.0f}"))
            print(" | ".join(self._rows[-1]), *([each.errors] if each.errors else []))

    def text(self) -> str:
        """Return the table in Markdown."""
        lines = [COLUMNS, ["---"] * len(COLUMNS), *self._rows]
        return "".join(f"| {' | '.join(line)} |\n" for line in lines)

    def write(self, path: Path) -> None:
        """Write the table, if any case was run."""
        if self._rows:
            path.parent.mkdir(exist_ok=True)
            path.write_text(self.text(), encoding="utf-8")
