"""A primary sends to each replica, in order: the log, changes of `quarry/`, and how far the primary is."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, Protocol

from quarry_mq.kv.recording import RecordingEngine
from quarry_mq.server.replicas.status import End
from quarry_mq.server.replicas.wire import (
    Ack,
    Beat,
    FrameType,
    log_head,
    pack_beat,
    pack_cursor,
)
from quarry_mq.store.commitlog import SegmentList
from quarry_mq.store.message import PhysicalOffset
from quarry_mq.store.state.state_log import StateCursor, StateLog, all_rows

LOG_PIECE_SIZE: Final = 256 << 10
"""Bytes of the log in one frame at most."""
LOG_SIZE_MAX: Final = 4 << 20
"""Bytes of the log among the parts of one call at most, so that a replica that catches up hears of positions, too."""
BATCHES_MAX: Final = 1_000
"""Batches of changes among the parts of one call at most."""
NEARLY_THERE_SIZE: Final = 1 << 20
"""Bytes behind the end of the log below which a replica gets all rows: they rest on messages that it must have."""

Part = tuple[FrameType, tuple[bytes | memoryview, ...]]
"""The type of a frame, and the parts of its body."""


class PrimaryLog(Protocol):
    """The part of the message store that a shipment reads."""

    @property
    def flushed_up_to(self) -> PhysicalOffset: ...

    @property
    def dispatched_up_to(self) -> PhysicalOffset: ...


class Shipment:
    """The frames for one replica. Lives on the thread of the replica's connection."""

    def __init__(
        self,
        segments: SegmentList,
        log: PrimaryLog,
        state: tuple[RecordingEngine, StateLog],
        *,
        at: PhysicalOffset,
        cursor: StateCursor,
    ) -> None:
        """Begin at the end of the replica's log, and at its cursor."""
        self._segments = segments
        self._log = log
        self._engine, self._state_log = state
        self.at = at
        """The offset of the next byte of the log."""
        self._run, self._number, self._position = cursor
        self.takes_all_rows = state[1].since(cursor, 1) is None
        """True if no changes that are kept follow the rows of the replica."""
        self._beats = self._seeded_by = self._rows_at = 0
        self._told: tuple[int, PhysicalOffset, PhysicalOffset] | None = None

    def is_seeding(self, acked: Ack) -> bool:
        """Return whether the replica has no rows yet that changes can follow, by its last acknowledgement."""
        return self.takes_all_rows or acked.beat < self._seeded_by or acked.position < self._rows_at

    def parts(self, *, is_beat_due: bool = False) -> Iterator[Part]:
        """Yield what is new, or a part of it. `is_beat_due`: yield a beat also if nothing is new.

        Raises OffsetOutOfRange if the log does not hold what the replica wants any more.
        """
        # in this order: batches that are recorded later rest on what was dispatched by now, or more
        now = self._state_log.cursor
        flushed = self._log.flushed_up_to
        if self._told is None or self._told[2] != self._segments.minimum:
            # first: a batch may drop a note on a deletion because the log begins later
            here = None if self.takes_all_rows else StateCursor(self._run, self._number, self._position)
            yield from self._beat(here, End(flushed, now.number), is_due=True)
        yield from self._log_parts(flushed)
        if self.takes_all_rows:
            if flushed - self.at < NEARLY_THERE_SIZE:
                yield from self._all_rows()
            yield from self._beat(None, End(flushed, now.number), is_due=is_beat_due)
            return
        batches = self._state_log.since(StateCursor(self._run, self._number, self._position), BATCHES_MAX)
        if batches is None:  # this replica is slower than changes come
            self.takes_all_rows = True
            return
        for batch in batches:
            if batch.position > self.at:  # not durable here yet, or not sent yet
                break
            self._run, self._number, self._position = now.run, batch.number, batch.position
            cursor = StateCursor(self._run, self._number, self._position)
            yield FrameType.STATE, (pack_cursor(cursor), batch.data)
        has_all = self._number >= now.number
        position = PhysicalOffset(max(self._position, min(now.position, self.at))) if has_all else self._position
        cursor = StateCursor(now.run, self._number, position)
        yield from self._beat(cursor, End(flushed, now.number), is_due=is_beat_due)

    def _log_parts(self, end: PhysicalOffset) -> Iterator[Part]:
        end = PhysicalOffset(min(end, self.at + LOG_SIZE_MAX))
        while self.at < end:
            segment, base = self._segments.segment_at(self.at), self._segments.base_of(self.at)
            stop = min(end, base + self._segments.segment_size, self.at + LOG_PIECE_SIZE)
            yield FrameType.LOG, (log_head(self.at), segment.view()[self.at - base : stop - base])
            self.at = PhysicalOffset(stop)

    def _all_rows(self) -> Iterator[Part]:
        cursor, parts = all_rows(self._engine, self._state_log)
        for part in parts:
            yield FrameType.ROWS, (part,)
        yield FrameType.ROWS_END, (pack_cursor(cursor),)
        self._run, self._number, self._position = cursor
        self.takes_all_rows = False
        self._rows_at = cursor.position

    def _beat(self, cursor: StateCursor | None, end: End, *, is_due: bool) -> Iterator[Part]:
        """Yield a beat if the replica may go further; with `cursor` None it may not, and hears only of the log."""
        told = StateCursor(bytes(16), 0, PhysicalOffset(-1)) if cursor is None else cursor
        news = (told.number, told.position, self._segments.minimum)
        if news != self._told or is_due:
            self._told = news
            self._beats += 1
            beat = Beat(self._beats, told, self._segments.minimum, PhysicalOffset(end.offset), end.number)
            yield FrameType.BEAT, (pack_beat(beat),)
        if cursor is None:
            self._seeded_by = self._beats + 1
