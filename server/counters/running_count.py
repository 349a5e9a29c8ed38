"""How many rows a table has that changes all the time, at the cost of reading it once."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice


class RunningCount:
    """Rows of a frozen view, counted some at a time, and what has changed since the view was made.

    Whoever changes the rows counts by how many there are more, from any number on; that count is `changes` below.
    """

    def __init__(self, rows: Iterator[object], changes: int) -> None:
        """`rows` are those of this moment, `changes` the count of changes at this moment."""
        self._rows: Iterator[object] | None = rows
        self._counted = 0
        self._changes_before = changes

    def step(self, rows_max: int) -> bool:
        """Count some more; whether all are counted."""
        if self._rows is not None:
            found = sum(1 for _ in islice(self._rows, rows_max))
            self._counted += found
            if found < rows_max:
                self._rows = None
        return self._rows is None

    def value(self, changes: int) -> int | None:
        """How many rows there are now; None before all were counted."""
        return None if self._rows is not None else max(0, self._counted + changes - self._changes_before)
