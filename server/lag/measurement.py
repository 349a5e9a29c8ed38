"""Measure how many messages of a topic a group has not consumed yet. No other module computes lag."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from typing import Final, NamedTuple, Protocol

from quarry_mq.kv import KvError
from quarry_mq.server.delivery import MessageSource
from quarry_mq.store.consumequeue import ConsumeQueueEntry
from quarry_mq.store.errors import BrokerError
from quarry_mq.store.message import QueueBounds, QueueId, QueueOffset


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


ROWS_PER_STEP: Final = 500


class Progress(Protocol):
    """The part of delivery that a measurement reads."""

    def next_offset(self, group: str, queue: QueueId) -> QueueOffset | None: ...

    def rows_in_flight(self, group: str, topic: str) -> Iterator[object] | None: ...

    def first_in_flight(self, group: str, queue: QueueId, start: QueueOffset) -> QueueOffset | None: ...

    def rows_in_flight_below(self, group: str, queue: QueueId, end: QueueOffset) -> Iterator[object]: ...


class GroupTopic(NamedTuple):
    group: str
    topic: str


class QueuePosition(NamedTuple):
    """A group's next offset in a queue: all below `next_offset` was handed out, or skipped when the group began."""

    queue: QueueId
    bounds: QueueBounds
    next_offset: QueueOffset

    @property
    def ready(self) -> int:
        return self.bounds.maximum - self.next_offset


@dataclass(slots=True)
class Measured:
    """The messages in some queues that a group has not consumed yet, regardless of its filter.

    `ready` messages were never handed out; those `in_flight` were handed out and are not acknowledged, None while their
    number cannot be known. Expired messages are in neither: no consumer gets them any more.
    """

    ready: int = 0
    in_flight: int | None = 0
    oldest_ready: ConsumeQueueEntry | None = None
    oldest: ConsumeQueueEntry | None = None
    """The entry of the oldest message, ready or in flight."""
    passed: ConsumeQueueEntry | None = None
    """The entry of the newest message before the group's next offsets."""
    next_offsets: int = 0
    """The sum of the group's next offsets, as they are stored."""


class LagMeasurement:
    """Measures the lag of one group at a time. Lives on the event loop's thread."""

    def __init__(self, progress: Progress, source: MessageSource) -> None:
        self._progress = progress
        self._source = source

    def position(self, group: str, queue: QueueId) -> QueuePosition:
        """Return the group's next offset in a queue. A queue added to a topic is read from its first message.

        An offset outside of the queue is clamped to its bounds, as delivery does it: a stored offset may be below the
        min offset, or above the max offset that a recovery has found.
        """
        bounds = self._source.bounds(queue)
        stored = self._progress.next_offset(group, queue)
        next_offset = bounds.minimum if stored is None else stored
        return QueuePosition(queue, bounds, QueueOffset(min(max(next_offset, bounds.minimum), bounds.maximum)))

    def add_topic(
        self, measured: Measured, key: GroupTopic, queues: Iterable[QueueId], *, with_passed: bool = False
    ) -> Generator[None, None, None]:
        """Add the lag in these queues of one topic, a step at a time. `passed` is left out unless it is asked for.

        A message that is handed out meanwhile may count as ready and in flight, but is never missed.
        """
        looked_at = []
        for queue in queues:
            yield
            looked_at.append(queue)
            self._add_ready(measured, key.group, queue, with_passed=with_passed)
        rows = yield from self._rows_in_flight(key)
        for queue in looked_at if rows else ():
            yield
            expired, first = yield from self._in_flight(key.group, queue)
            rows = max(0, (rows or 0) - expired)
            measured.oldest = outer(measured.oldest, first)
        measured.in_flight = None if measured.in_flight is None or rows is None else measured.in_flight + rows

    def _add_ready(self, measured: Measured, group: str, queue: QueueId, *, with_passed: bool) -> None:
        if not with_passed:
            stored = self._progress.next_offset(group, queue)
            measured.next_offsets += stored or 0
            if self._source.maximum(queue) <= (stored or 0):
                return  # nothing is ready, and the bounds cost more
        position = self.position(group, queue)
        if position.ready:
            measured.ready += position.ready
            first = self._entry(queue, position.next_offset)
            measured.oldest_ready = outer(measured.oldest_ready, first)
            measured.oldest = outer(measured.oldest, first)
        if with_passed and position.next_offset > position.bounds.minimum:
            measured.passed = outer(measured.passed, self._entry(queue, position.next_offset - 1), newest=True)

    def _rows_in_flight(self, key: GroupTopic) -> Generator[None, None, int | None]:
        """Count the rows in flight; None if they could not be written."""
        rows = self._progress.rows_in_flight(*key)
        return None if rows is None else (yield from counted(RunningCount(rows, 0)))

    def _in_flight(self, group: str, queue: QueueId) -> Generator[None, None, tuple[int, ConsumeQueueEntry | None]]:
        """Return the number of rows whose messages have expired, and the first message in flight that has not."""
        minimum = self._source.bounds(queue).minimum
        first = self._progress.first_in_flight(group, queue, QueueOffset(0))
        if first is None:
            return 0, None
        if first >= minimum:
            return 0, self._entry(queue, first)
        expired = yield from counted(RunningCount(self._progress.rows_in_flight_below(group, queue, minimum), 0))
        first = self._progress.first_in_flight(group, queue, minimum)
        return expired, None if first is None else self._entry(queue, first)

    def _entry(self, queue: QueueId, offset: int) -> ConsumeQueueEntry | None:
        found = self._source.entries(queue, QueueOffset(offset), 1)
        return found[0] if found else None

    def _time_of(self, entry: ConsumeQueueEntry | None) -> int | None:
        """Return when the message was stored; None if its record cannot be read."""
        if entry is not None:
            with suppress(OSError, KvError, BrokerError):  # the client that receives the message gets the error
                return self._source.read(entry).store_timestamp_ms
        return None


def counted(count: RunningCount, changes: int = 0) -> Generator[None, None, int]:
    """Count all rows, a step at a time."""
    while not count.step(ROWS_PER_STEP):
        yield
    return count.value(changes) or 0


def outer(
    one: ConsumeQueueEntry | None, other: ConsumeQueueEntry | None, *, newest: bool = False
) -> ConsumeQueueEntry | None:
    """Return the oldest or the newest of two entries by log position, because store times never go back."""
    if one is None or other is None:
        return one or other
    return one if (one.physical_offset > other.physical_offset) is newest else other
