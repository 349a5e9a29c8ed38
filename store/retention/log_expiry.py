"""The module moves the beginning of a log.

The steps are in this order, so that a crash between any two leaves a store that opens without a warning:

    1. the new beginning M is made durable (`log_begin`): later starts expect that segments below it are missing
    2. in memory the log and the consume queues begin at M, at the same moment
    3. the files are moved out of the log, the oldest first
    4. they are removed, which may take a while

After a crash before step 3 is complete, the log begins at the first file that is still there: records that had expired
are back, and expire again at the next sweep.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from threading import Event
from typing import Final, Protocol

from quarry_mq.protocol.clock import JUMP_MAX_MS, CautiousClock, Clock
from quarry_mq.store.commitlog import CommitLogReader, SegmentList
from quarry_mq.store.commitlog.segments import SegmentPins
from quarry_mq.store.consumequeue import ConsumeQueueStore
from quarry_mq.store.errors import OffsetOutOfRange
from quarry_mq.store.fs import DiskSpace
from quarry_mq.store.message import PhysicalOffset
from quarry_mq.store.metadata import ConsumerOffsetTable
from quarry_mq.store.record import StoredMessage
from quarry_mq.store.retention.remover import SegmentRemover
from quarry_mq.store.retention.rules import (
    Candidate,
    ExpirySettings,
    FileSystem,
    Plan,
    Situation,
    Unread,
    count_unread,
    decide,
)
from quarry_mq.store.state.identity import StoreIdentity

POSITIONS_MAX: Final = 200_000
"""Committed offsets of groups that are read to report what groups lose: some seconds of a background thread."""

PAGE_PAUSE_S: Final = 0.001


class ExpiringMessages(Protocol):
    """The protocol is the part of the message store that expiry needs."""

    @property
    def reader(self) -> CommitLogReader: ...

    @property
    def queues_durable_up_to(self) -> PhysicalOffset: ...

    def drop_deletions(self, log_begin: PhysicalOffset) -> None: ...


class LogExpiry:
    """The class chooses and removes the oldest segments of one log.

    `retire` belongs to the thread that appends and dispatches. Everything else blocks for the disk and may run on
    another thread at the same time, one call at a time.
    """

    def __init__(
        self,
        *,
        segments: SegmentList,
        messages: ExpiringMessages,
        queues: ConsumeQueueStore,
        queue_directory: Callable[[], Path],
        positions: ConsumerOffsetTable,
        identity: StoreIdentity,
        pins: SegmentPins,
        clock: Clock,
    ) -> None:
        self._disk = segments.disk
        self._segments = segments
        self._messages = messages
        self._reader = messages.reader
        self._queues = queues
        self._queue_directory = queue_directory
        self._positions = positions
        self._identity = identity
        self.pins = pins
        self._age_clock = CautiousClock(clock)
        self._stopping = Event()
        self._newest_ms: dict[PhysicalOffset, int] = {}
        self.remover: Final = SegmentRemover(segments.disk, segments.directory, messages.reader, clock=clock)

    # -- reading

    @property
    def segment_size(self) -> int:
        return self._segments.segment_size

    @property
    def segment_count(self) -> int:
        return len(self._segments)

    @property
    def end(self) -> PhysicalOffset:
        """Return where the last segment ends, filled or not."""
        return self._segments.end_of_files

    @property
    def minimum(self) -> PhysicalOffset:
        """Return where the log begins."""
        return self._segments.minimum

    @property
    def going_bytes(self) -> int:
        """Return the disk space that expired segments still take, in bytes."""
        return self.remover.pending_bytes(self.segment_size)

    @property
    def bases(self) -> list[PhysicalOffset]:
        """Return where the segments begin, the oldest first, without segments that are only prepared."""
        return [base for base in self._segments.bases if base < self._reader.end or base == self._segments.minimum]

    def first_stored_ms(self, base: PhysicalOffset) -> int | None:
        """Return when the first record of a segment was stored; None where there is none, or it cannot be read."""
        known = self._newest_ms.get(base)
        if known is None and base < self._reader.end:
            try:
                found = self._reader.decode(base)
            except OffsetOutOfRange:
                return None  # the segment has expired
            if isinstance(found, StoredMessage):
                known = self._newest_ms[base] = found.store_timestamp_ms
        return known

    def space(self) -> DiskSpace | None:
        """Return how full the log's file system is; None if it does not tell. Raises OSError."""
        return self._disk.space(self._segments.directory)

    def situation(self, hour: int, *, requested: bool = False, futile: bool = False) -> Situation:
        """Return the facts that a decision needs, as they are now. Raises OSError."""
        log, queues = (self._file_system(each) for each in (self._segments.directory, self._queue_directory()))
        return Situation(
            now_ms=self._age_clock.wall_ms(),
            hour=hour,
            log=log,
            others=() if queues is None else (queues,),
            going_bytes=self.going_bytes,
            requested=requested,
            futile=futile,
        )

    def plan(self, settings: ExpirySettings, situation: Situation) -> Plan:
        """Return the segments that are to be removed now. Reads one record of each segment that is considered."""
        return decide(settings, situation, self._candidates(), self.segment_size)

    def unread_before(self, minimum: PhysicalOffset) -> Unread:
        """Return what groups have not read below the offset, and so lose when the log begins there."""
        return count_unread(
            self._positions.all_rows(),
            self._queues.unread_below,
            minimum,
            positions_max=POSITIONS_MAX,
            go_on=lambda: not self._stopping.wait(PAGE_PAUSE_S),
        )

    @property
    def latest_beginning(self) -> PhysicalOffset:
        """Return the highest segment base at which the log may begin now.

        The segment that is being filled stays. So does what is pinned, and everything whose consume queue entries a
        crash could take back: the offsets of a queue continue after its last entry, whose record no log would have any
        more.
        """
        end = min(self._reader.end, self._messages.queues_durable_up_to)
        pinned = self.pins.lowest()
        if pinned is not None:
            end = min(end, pinned)
        return self._segments.base_of(max(end, self._segments.minimum)) if len(self._segments) else end

    # -- changing

    def announce(self, minimum: PhysicalOffset) -> None:
        """Do step 1: from now on, starts expect that segments below `minimum` are missing."""
        self._identity.log_begin = minimum
        if not self.remover.is_stuck:
            # not up to `minimum`: the files before it are there until they are moved, and a start would read them
            self._messages.drop_deletions(self._segments.minimum)

    def retire(self, minimum: PhysicalOffset) -> PhysicalOffset:
        """Do step 2: let log and queues begin at `minimum`, the base of a segment; the remover gets the files before
        it.

        They begin earlier if a pin was set meanwhile. Returns where they begin now.
        """
        minimum = min(minimum, self.latest_beginning)
        if minimum > self._segments.minimum:
            self._queues.set_minimum_physical_offset(minimum)
            self.remover.take(self._segments.retire_before(minimum))
            self._reader.let_go()
            # a copy: other threads may add to the dict meanwhile
            self._newest_ms = {base: known for base, known in self._newest_ms.copy().items() if base >= minimum}
        return self._segments.minimum

    def stop(self) -> None:
        """Ask calls on other threads to end soon."""
        self._stopping.set()
        self.remover.stop()

    # -- helpers

    def _candidates(self) -> Iterator[Candidate]:
        """Yield the segments before the one being filled, whether their queues are durable or not; the oldest first."""
        filling = self._segments.base_of(self._reader.end) if len(self._segments) else self._reader.end
        bases = [base for base in self._segments.bases if base <= filling]
        pinned = self.pins.lowest()
        for index, base in enumerate(bases[:-1]):
            if pinned is not None and base + self.segment_size > pinned:
                return
            yield Candidate(base, self._newest(bases[index + 1 :]))

    def _newest(self, following: Sequence[PhysicalOffset]) -> int | None:
        """Return a time such that no record before the first of `following` is newer.

        Store times ascend, so this is the time of the first record after. If that one cannot be read, or is from a
        clock that was far ahead, the next segment's time is used.
        """
        latest_ms = self._age_clock.wall_ms() + JUMP_MAX_MS
        for base in following:
            known = self.first_stored_ms(base)
            if known is not None and known <= latest_ms:
                return known
        return None

    def _file_system(self, directory: Path) -> FileSystem | None:
        if not self._disk.exists(directory):
            return None
        space = self._disk.space(directory)
        return None if space is None else FileSystem(directory, space)
