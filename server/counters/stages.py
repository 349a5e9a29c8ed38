"""Where the time of a send and of a receive goes.

What happens once per round of sends is timed in each round; what happens once per call, in one call of `SAMPLED`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from quarry_mq.server.counters.tally import Tally

SAMPLED: Final = 17
"""A prime: stages that take turns in a pattern are all timed equally often."""

BOUNDS_S: Final = tuple(0.000_004 * 4**step for step in range(11))
"""4 µs … 4 s: from a lone message that is parsed to a disk that hangs for longer than clients wait."""

WAIT_BOUNDS_S: Final = tuple(0.000_1 * 4**step for step in range(10))
"""100 µs … 26 s: a receive waits 20 s at most unless it is told otherwise."""


class _Sampled:
    """Tells which calls are timed."""

    def __init__(self) -> None:
        self._calls = 0

    def is_turn(self) -> bool:
        self._calls += 1
        return not self._calls % SAMPLED


class SendStages(_Sampled):
    """The stages of a send in their order."""

    def __init__(self) -> None:
        super().__init__()
        self.check: Final = Tally(BOUNDS_S)
        """From the call's bytes to a message that waits for its round; one call of `SAMPLED`. Of plain sends, which are
        checked together, the mean of one pass of so many."""
        self.gather: Final = Tally(BOUNDS_S)
        """Of the first send of a round: until the round begins."""
        self.append: Final = Tally(BOUNDS_S)
        """All records of a round are encoded and put into the log."""
        self.flush: Final = Tally(BOUNDS_S)
        """Of the first send that a flush lets go on: from its append on. Under `sync` alone."""
        self.dispatch: Final = Tally(BOUNDS_S)
        """All entries of what is durable are written."""
        self.wake: Final = Tally(BOUNDS_S)
        """Those who wait for these messages get them."""
        self.answer: Final = Tally(BOUNDS_S)
        """All sends that are done are answered."""

    def __iter__(self) -> Iterator[tuple[str, Tally]]:
        for name in ("check", "gather", "append", "flush", "dispatch", "wake", "answer"):
            yield name, getattr(self, name)


class ReceiveStages(_Sampled):
    """The stages of a receive that brings messages; all but `wait` in one receive of `SAMPLED`."""

    def __init__(self) -> None:
        super().__init__()
        self.is_timed = False
        """Whether the receive that is served now is one of those that are timed."""
        self.reading_s = 0.0
        """What it has taken so far to read its records."""
        self.wait: Final = Tally(WAIT_BOUNDS_S)
        """From the call to messages that were not there at first."""
        self.take: Final = Tally(BOUNDS_S)
        """Queues are read and deliveries made, the reading of records included."""
        self.read: Final = Tally(BOUNDS_S)
        """Records are read and checked: a part of `take`."""
        self.write: Final = Tally(BOUNDS_S)
        """Until the deliveries are written, with all others of the same loop pass."""
        self.answer: Final = Tally(BOUNDS_S)
        """The answers are made and handed to the front."""

    def __iter__(self) -> Iterator[tuple[str, Tally]]:
        for name in ("wait", "take", "read", "write", "answer"):
            yield name, getattr(self, name)
