"""Count by name for the busiest names, and together for all others (ADR 27).

A broker may have a million topics, and the system that stores its metrics must not get a million series. So a table
has a bounded number of rows. While there is room, a name gets a row with its first count. Later names are counted under
`OTHER` until they are twice as busy as the least busy row and have a noticeable part of all messages: a review, a few
times a minute, lets such a name take that row's place. Where a million names are equally busy none of them ever does,
so that series do not come and go without end.

No count ever moves from one row to another. A replaced row is dropped, a new one begins at zero, and `OTHER` only
grows: to Prometheus the first is a series that ended, the second a counter that was reset. The sum of the rates is
right at any time; adding the counts of a row to `OTHER` would show as messages that no producer sent.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from typing import Final, Generic, TypeVar

from quarry_mq.server.counters.tally import Tally

OTHER: Final = "__other__"
"""Stands for all topics, or groups, without a series of their own. A topic or group of this name never has one."""

CANDIDATES_PER_ROW: Final = 8
"""Names without a row that are counted between two reviews, per row: the first to come, busy ones among them."""

PART_PER_ROW: Final = 4
"""A name replaces another one only if it has at least a quarter of an equal share of all messages per row."""

SIZE_BOUNDS: Final = (1024.0, 4096.0, 524_288.0, 1_048_576.0, 2_097_152.0, 4_194_304.0)
"""Bounds of message sizes in bytes, the same as RocketMQ's."""

Key = TypeVar("Key", bound=Hashable)


class Row:
    """Counts of one name since it got its row."""

    __slots__ = ("activity", "bytes", "messages", "reviewed", "sizes")

    def __init__(self) -> None:
        self.messages = 0
        self.bytes = 0
        self.sizes = Tally(SIZE_BOUNDS)
        self.reviewed = 0
        """Value of `messages` at the last review."""
        self.activity = 0
        """Recent messages: those between the last two reviews, and half of the value before."""

    def count(self, messages: int, size: int) -> None:
        """Count messages; `size` is that of all of them together, in bytes."""
        self.messages += messages
        self.bytes += size


class TopCounts(Generic[Key]):
    """A table with a bounded number of rows, by key. One thread counts and reviews, any reads."""

    def __init__(
        self, rows_max: int, other_of: Callable[[Key], Key], is_hidden: Callable[[Key], bool] = lambda _: False
    ) -> None:
        """`other_of` returns the key that a key without a row is counted under: one of a few, which always have rows.

        A key equal to one of those gets no row of its own, nor does one that `is_hidden`, however busy it is.
        """
        self._rows_max = rows_max
        self._other_of = other_of
        self._is_hidden = is_hidden
        self._rows: dict[Key, Row] = {}
        self._others: dict[Key, Row] = {}
        self._candidates: dict[Key, int] = {}

    def __len__(self) -> int:
        return len(self._rows)

    def row(self, key: Key, messages: int) -> Row:
        """Return the row in which to count `messages` messages of the key."""
        return self._rows.get(key) or self._without_row(key, messages)

    def _without_row(self, key: Key, messages: int) -> Row:
        other = self._other_of(key)
        if key != other and not self._is_hidden(key):
            if len(self._rows) < self._rows_max:
                row = self._rows[key] = Row()
                return row
            known = self._candidates.get(key)
            if known is not None or len(self._candidates) < CANDIDATES_PER_ROW * self._rows_max:
                self._candidates[key] = messages + (known or 0)
        return self._others.get(other) or self._others.setdefault(other, Row())

    def review(self) -> None:
        """Let names that have become busy take the place of idle ones. To be called a few times a minute."""
        counted = 0
        for row in (*self._rows.values(), *self._others.values()):
            came = row.messages - row.reviewed
            row.activity = row.activity // 2 + came
            row.reviewed = row.messages
            counted += came
        found, self._candidates = self._candidates, {}
        least = counted / (PART_PER_ROW * self._rows_max)
        candidates = {key: messages for key, messages in found.items() if messages >= least}
        idlest = sorted(self._rows, key=lambda key: self._rows[key].activity)
        busiest = sorted(candidates, key=lambda key: candidates[key], reverse=True)
        for old, new in zip(idlest, busiest, strict=False):
            # steady activity is twice the messages since the last review, so equally busy names never alternate
            if candidates[new] <= self._rows[old].activity:
                return
            del self._rows[old]
            self._rows[new] = Row()

    def forget(self, gone: Callable[[Key], bool]) -> None:
        """Drop the rows of names that are deleted."""
        for key in [key for key in self._rows if gone(key)]:
            del self._rows[key]

    def rows(self) -> Iterator[tuple[Key, Row]]:
        """Iterate over all present rows, those of the others included. For any thread."""
        # each list is made in one step that no other thread interrupts
        yield from list(self._rows.items())
        yield from list(self._others.items())

    def keys(self) -> list[Key]:
        """Return the keys that have a row of their own."""
        return list(self._rows)
