"""Count the rows of a table that changes all the time, at the cost of reading it once."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice


class RunningCount:
    """Count the rows of a snapshot in small steps, and add the changes since the snapshot was made.

    The owner of the rows counts how many were added, less those removed, from any number on: `changes` below.
    """

    def __init__(self, rows: Iterator[object], changes: int) -> None:
        """`rows` are a snapshot of this moment, `changes` is the count of changes at this moment."""
        self._rows: Iterator[object] | None = rows
        self._counted = 0
        self._changes_before = changes

    def step(self, rows_max: int) -> bool:
        """Count up to `rows_max` more rows; return whether all are counted."""
        if self._rows is not None:
            found = sum(1 for _ in islice(self._rows, rows_max))
            self._counted += found
            if found < rows_max:
                self._rows = None
        return self._rows is None

    def value(self, changes: int) -> int | None:
        """Return the present number of rows; None before all were counted."""
        return None if self._rows is not None else max(0, self._counted + changes - self._changes_before)
