"""Delivery state of one loop pass in one write."""

from __future__ import annotations

from collections.abc import Callable

from kv import KeyValueEngine, WriteBatch

AfterPass = Callable[[Callable[[], None]], None]
Written = Callable[[Exception | None], None]


class StateWriter:
    """Collects the rows that change during a loop pass and writes them as one batch at its end.

    Answers that depend on the rows are given in the `written` callbacks, after the write: a client never holds
    an answer that the death of the process can take back.
    """

    def __init__(self, engine: KeyValueEngine, after_pass: AfterPass) -> None:
        self._engine = engine
        self._after_pass = after_pass
        self._batch: WriteBatch | None = None
        self._written: list[Written] = []

    def batch(self) -> WriteBatch:
        """The batch of this pass; it is written when the pass ends."""
        if self._batch is None:
            self._batch = self._engine.batch()
            self._after_pass(self.write_now)
        return self._batch

    def when_written(self, written: Written) -> None:
        """Call back with None once everything staged so far is stored, or with the error that prevented it."""
        self.batch()
        self._written.append(written)

    def write_now(self) -> None:
        """End the batch of this pass early."""
        batch, self._batch = self._batch, None
        callbacks, self._written = self._written, []
        if batch is None:
            return
        failure: Exception | None = None
        try:
            if len(batch):
                self._engine.write(batch)
        except Exception as error:  # noqa: BLE001 - handed to every caller that waits for this write
            failure = error
        for written in callbacks:
            written(failure)
