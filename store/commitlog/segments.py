"""The ordered list of a commit log's segments (docs/formats/store-directory.md), what keeps them, and where they began.

Where the log began in the past is recorded, to tell since when a queue has been empty. A queue whose last entry lies
below the log's beginning is empty. No row says since when, and with millions of queues none should. But the log's
beginning moves only some times a day: a note of each move is enough to answer for every queue.

A pin is a lease that keeps old segments from being removed while they are copied. A pin names an offset. While its
lease lasts, no segment that ends above the offset may be removed; those below may go. The holder renews the pin; if the
holder dies, the pin is gone when the lease is over.

Store times follow the clock and never go back, so that a queue can be searched by time.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter, OrderedDict
from collections.abc import Callable
from concurrent.futures import Executor
from dataclasses import dataclass
from itertools import pairwise
from operator import itemgetter
from pathlib import Path
from struct import Struct
from threading import Lock
from typing import Final, NamedTuple

from quarry_mq.protocol.clock import JUMP_MAX_MS, Clock
from quarry_mq.store.commitlog.allocate import NextSegment
from quarry_mq.store.errors import Invalid, NotAStore, OffsetOutOfRange, StoreDamaged
from quarry_mq.store.fs.protocol import Disk, SegmentFile
from quarry_mq.store.layout.paths import parse_segment_name, segment_name
from quarry_mq.store.message import PhysicalOffset
from quarry_mq.store.record.layout import BLANK_SIZE

KEPT_SIZE_NAME: Final = "SEGMENT_SIZE"
DIGITS_MAX: Final = 20


class KeptSize:
    """The kept size is the size of a log's segments, written to a file in the folder `quarry/`. Without that file, the
    size is taken from the segments.

    It is written down because the segments alone do not show whether one was cut.
    """

    def __init__(self, disk: Disk, directory: Path) -> None:
        self._disk = disk
        self._path: Final = directory / KEPT_SIZE_NAME

    def read(self) -> int | None:
        """Return the size that was written down, None where there is none. Raises StoreDamaged."""
        try:
            text = self._disk.read(self._path)
        except FileNotFoundError:
            return None
        if not text.strip().isdigit() or len(text) > DIGITS_MAX:
            raise StoreDamaged(self._path, "does not contain a size; remove the file to use the size of the segments")
        return int(text)

    def keep(self, segment_size: int) -> None:
        """Write the size down, unless it is already there. Raises OSError."""
        if self.read() != segment_size:
            self._disk.replace_atomically(self._path, b"%d\n" % segment_size)


MAPPED_MAX: Final = 64
"""Segments kept mapped: each one costs a descriptor, and address space that containers may limit."""


@dataclass(frozen=True, slots=True)
class _Found:
    """The files found in the directory of a log."""

    minimum: PhysicalOffset
    count: int
    segment_size: int | None
    strays: tuple[Path, ...]
    is_guessed: bool
    """True if the size was taken from the only segment file, with nothing to confirm it."""


class SegmentList:
    """The segment list holds segments of equal size without a gap, from `minimum` to `end_of_files`, mapped on demand.

    At most `mapped_max` stay mapped, and the least recently used one is unmapped first; segments opened for writing
    stay mapped until they are durable. All methods may be called from any thread, but only one thread may append and
    remove.
    """

    def __init__(
        self,
        disk: Disk,
        directory: Path,
        segment_size: int | None,
        *,
        mapped_max: int = MAPPED_MAX,
        writable: bool = True,
        executor: Executor | None = None,
        kept_size: KeptSize | None = None,
        only: PhysicalOffset | None = None,
    ) -> None:
        """Read the names and sizes of the files in `directory`; nothing is mapped yet.

        With `segment_size` None the size comes from `kept_size`, and without a kept size from the files. In a writable
        list, an empty last file is removed (the trace of a crash while it was made); otherwise nothing is changed.
        `executor` makes segments ahead; by default the list has its own thread for that. With `only`, the list has just
        the segment that begins there, and the directory is not read. Raises NotAStore when there is neither a segment
        nor a size, StoreDamaged when a file has another length or is missing between its neighbours.
        """
        if segment_size is not None and segment_size <= BLANK_SIZE:
            raise ValueError(f"a segment of {segment_size} bytes is too small for a record")
        kept = None if kept_size is None else kept_size.read()
        if only is None:
            found = _read_directory(disk, directory, segment_size, kept, writable=writable)
        else:
            found = _Found(only, 1, segment_size, (), is_guessed=False)
        if found.segment_size is None:
            raise NotAStore(directory, "there is no commit log segment and no segment size is given")
        if writable and found.count:
            # a process that died right after it made a file has not made the name durable
            disk.sync_directory(directory)
        self.directory: Final = directory
        self.segment_size: Final = found.segment_size
        self.writable: Final = writable
        self.strays: Final = found.strays
        """Files in the directory that are no segments. They are left alone."""
        self.removals = 0
        """A counter that grows when segments are removed: views from before may belong to files that are gone."""
        self.is_size_guessed: Final = found.is_guessed
        """True if the size was taken from the only segment file, which may have been cut."""
        self._disk = disk
        self._kept_size = kept_size
        self._mapped_max = mapped_max
        self._next = NextSegment(disk, executor)
        self._lock = Lock()
        # Guarded by _lock for writing. These are two offsets, each of which moves by itself, so that readers need no
        # lock.
        self._minimum = found.minimum
        self._end = PhysicalOffset(found.minimum + found.count * self.segment_size)
        self._mapped: OrderedDict[PhysicalOffset, SegmentFile] = OrderedDict()  # guarded by _lock
        self._writing: dict[PhysicalOffset, SegmentFile] = {}  # guarded by _lock

    @property
    def disk(self) -> Disk:
        return self._disk

    @property
    def minimum(self) -> PhysicalOffset:
        """Return the offset of the first byte of the first segment; equal to `end_of_files` when there is none."""
        return self._minimum

    @property
    def end_of_files(self) -> PhysicalOffset:
        """Return the first offset after the last segment."""
        return self._end

    def __len__(self) -> int:
        return len(self.bases)

    @property
    def bases(self) -> list[PhysicalOffset]:
        """Return the base offsets of all segments, ascending."""
        return [PhysicalOffset(base) for base in range(self._minimum, self._end, self.segment_size)]

    def base_of(self, offset: PhysicalOffset) -> PhysicalOffset:
        """Return the base of the segment that holds the byte; `end_of_files` belongs to the last segment.

        Raises OffsetOutOfRange for anything outside [minimum, end_of_files].
        """
        minimum, end = self._minimum, self._end
        if not minimum <= offset <= end:
            raise OffsetOutOfRange(f"offset {offset} is outside the commit log [{minimum}, {end}]")
        if offset == end and minimum < end:
            return PhysicalOffset(end - self.segment_size)
        return PhysicalOffset(offset - (offset - minimum) % self.segment_size)

    def path_of(self, offset: PhysicalOffset) -> Path:
        """Return the file of the segment that holds the byte, as `base_of` does."""
        return self.directory / segment_name(self.base_of(offset))

    def segment_at(self, offset: PhysicalOffset) -> SegmentFile:
        """Return the mapped segment that holds the byte. Raises OffsetOutOfRange outside [minimum, end_of_files)."""
        with self._lock:
            base = self._existing_base(offset)
            segment = self._writing.get(base) or self._mapped.get(base)
            if segment is None:
                segment = self._open(base, writable=False)
                self._keep_mapped(base, segment)
            elif base in self._mapped:
                self._mapped.move_to_end(base)
            return segment

    def open_for_writing(self, offset: PhysicalOffset) -> SegmentFile:
        """Return the segment as `segment_at` does, writable; it stays mapped until `release` is called for its end."""
        self._check_writable()
        with self._lock:
            base = self._existing_base(offset)
            segment = self._writing.get(base)
            if segment is None:
                segment = self._open(base, writable=True)
                self._mapped.pop(base, None)
                self._writing[base] = segment
            return segment

    def release(self, durable_up_to: PhysicalOffset) -> None:
        """Allow the segments that end at or below this durable offset to be unmapped."""
        with self._lock:
            for base in [base for base in self._writing if base + self.segment_size <= durable_up_to]:
                self._keep_mapped(base, self._writing.pop(base))

    def begin_at(self, base: PhysicalOffset) -> None:
        """Let a log without segments begin at `base`. Raises ValueError for a log that has segments."""
        self._check_writable()
        if len(self):
            raise ValueError(f"{self.directory} has segments: it begins at {self._minimum}")
        with self._lock:
            self._minimum = self._end = base

    def prepare_next(self) -> None:
        """Begin to make the segment after the last one, in the background."""
        self._check_writable()
        end = self.end_of_files
        self._next.prepare(self.directory / segment_name(end), self.segment_size)

    def append_segment(self) -> SegmentFile:
        """Add the segment after the last one, for writing: the prepared one, or one made now. Raises OSError."""
        self._check_writable()
        base = self.end_of_files
        if base == self._minimum:
            self.keep_size()
        segment = self._next.take(self.directory / segment_name(base), self.segment_size)
        with self._lock:
            self._writing[base] = segment
            self._end = PhysicalOffset(base + self.segment_size)
        return segment

    def remove_after(self, base: PhysicalOffset) -> list[Path]:
        """Remove the segments whose base is larger, the last one first: a crash never leaves a gap."""
        self._check_writable()
        self._next.close()
        removed = []
        for last in reversed(self.bases):
            if last <= base:
                break
            path = self.directory / segment_name(last)
            self._disk.remove(path)
            removed.append(path)
            with self._lock:
                self._writing.pop(last, None)
                self._mapped.pop(last, None)
                self._end = last
                self.removals += 1
        return removed

    def retire_before(self, minimum: PhysicalOffset) -> list[Path]:
        """Let the log begin at the segment whose base is `minimum`: earlier segments are no longer part of the log.

        Returns their files, the oldest first, for the caller to remove. Views of them stay valid. The retired segments
        must be durable: nothing flushes them from now on. Raises OffsetOutOfRange when no segment begins there.
        """
        self._check_writable()
        with self._lock:
            if minimum not in self.bases:
                raise OffsetOutOfRange(
                    f"no segment of the commit log [{self._minimum}, {self._end}) begins at {minimum}"
                )
            retired = [base for base in self.bases if base < minimum]
            self._minimum = minimum
            self.removals += 1
            for base in retired:
                # not closed, for the reason given in `_keep_mapped`
                self._writing.pop(base, None)
                self._mapped.pop(base, None)
        return [self.directory / segment_name(base) for base in retired]

    def keep_size(self) -> None:
        """Write the segment size down: from now on, a file of another length counts as damage. Raises OSError."""
        if self._kept_size is not None:
            self._kept_size.keep(self.segment_size)

    def close(self) -> None:
        """Unmap all segments and remove a segment that was prepared but not used. Repeatable."""
        self._next.close()
        with self._lock:
            for segment in (*self._writing.values(), *self._mapped.values()):
                segment.close()
            self._writing.clear()
            self._mapped.clear()

    def _open(self, base: PhysicalOffset, *, writable: bool) -> SegmentFile:
        path = self.directory / segment_name(base)
        segment = self._disk.open_segment(path, writable=writable)
        if segment.size != self.segment_size:  # cut since the directory was read
            segment.close()
            raise StoreDamaged(path, _other_size(segment.size, self.segment_size))
        return segment

    def _existing_base(self, offset: PhysicalOffset) -> PhysicalOffset:
        minimum, end = self._minimum, self._end
        if not minimum <= offset < end:
            raise OffsetOutOfRange(f"offset {offset} is outside the commit log [{minimum}, {end})")
        return PhysicalOffset(offset - (offset - minimum) % self.segment_size)

    def _keep_mapped(self, base: PhysicalOffset, segment: SegmentFile) -> None:
        self._mapped[base] = segment
        while len(self._mapped) > self._mapped_max:
            # Not closed: another thread may hold it at this moment. Its last reference closes it.
            self._mapped.popitem(last=False)

    def _check_writable(self) -> None:
        if not self.writable:
            raise ValueError(f"{self.directory} was opened read-only")


def _other_size(size: int, segment_size: int | None, kept_size: int | None = None) -> str:
    kept = "" if kept_size is None else f", as quarry/{KEPT_SIZE_NAME} says"
    return f"the file has {size} bytes, a segment of this log {segment_size}{kept}"


def _read_directory(
    disk: Disk, directory: Path, segment_size: int | None, kept_size: int | None, *, writable: bool
) -> _Found:
    files: list[tuple[PhysicalOffset, Path, int]] = []
    strays = []
    for entry in disk.list_directory(directory):
        if entry.is_directory:
            continue
        base = parse_segment_name(entry.name)
        if base is None:
            strays.append(directory / entry.name)
        else:
            files.append((base, directory / entry.name, entry.size))
    if files and files[-1][2] == 0:
        _, path, _ = files.pop()
        if writable:
            disk.remove(path)
    is_guessed = False
    if files and kept_size is not None:
        segment_size = kept_size
    elif segment_size is None and files:
        is_guessed = len(files) == 1
        # the size that most files and the first two names agree on, so that the error names the file that was cut short
        sizes = Counter(size for _, _, size in files)
        distance = files[1][0] - files[0][0] if len(files) > 1 else 0
        segment_size = max(sizes, key=lambda size: (sizes[size], size == distance))
    for _, path, size in files:
        if size != segment_size:
            raise StoreDamaged(path, _other_size(size, segment_size, kept_size))
    for (base, path, size), (following, _, _) in pairwise(files):
        if base + size != following:
            missing = segment_name(PhysicalOffset(base + size))
            raise StoreDamaged(
                path, f"it is followed by {segment_name(following)}; segment {missing} is missing between them"
            )
    minimum = files[0][0] if files else PhysicalOffset(0)
    return _Found(minimum, len(files), segment_size, tuple(strays), is_guessed)


_NOTE: Final = Struct(">qq")  # wall time in ms, physical offset
NOTES_MAX: Final = 2_048
"""The number of notes kept, 32 KiB. Above that, every other note is dropped: queues then seem to be empty for a shorter
time than they are.
"""


class LogBegins:
    """The notes are pairs of time and offset, both ascending."""

    def __init__(self, packed: bytes, save: Callable[[bytes], None]) -> None:
        """Read the notes from `packed`; `save` stores the packed notes whenever they change."""
        self._notes = list(_NOTE.iter_unpack(packed))
        self._save = save

    def note(self, now_ms: int, begin: PhysicalOffset, *, since_ms: int) -> None:
        """Note that the log begins at `begin` now. No caller will ask for times before `since_ms` any more."""
        notes = self._notes
        # notes of a clock that was ahead, or of a log that was restored from a backup, are dropped
        kept = [each for each in notes if each[0] <= now_ms and each[1] <= begin]
        kept = kept[max(0, bisect_right(kept, since_ms, key=itemgetter(0)) - 1) :]
        if not kept or kept[-1][1] < begin:
            kept.append((now_ms, begin))
        if len(kept) > NOTES_MAX:
            kept = [*kept[:-1:2], kept[-1]]
        if kept != notes:
            self._notes = kept
            self._save(b"".join(_NOTE.pack(*each) for each in kept))

    def at(self, time_ms: int) -> PhysicalOffset | None:
        """Return where the log began at that time, or earlier; None when it is not known."""
        place = bisect_right(self._notes, time_ms, key=itemgetter(0))
        return PhysicalOffset(self._notes[place - 1][1]) if place else None


class _Pin(NamedTuple):
    start: PhysicalOffset
    ends_at_s: float


class SegmentPins:
    """The class holds the pins of one log. It may be used from any thread.

    The code that removes segments calls `lowest` before each one, and holds no lock. So the caller that sets a pin has
    to check it against the log's minimum afterwards.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = Lock()
        self._pins: dict[str, _Pin] = {}  # guarded by _lock

    def pin(self, name: str, start: PhysicalOffset, lease_s: float) -> None:
        """Keep everything from `start` on for `lease_s` seconds, in place of an earlier pin with this name."""
        with self._lock:
            self._pins[name] = _Pin(start, self._clock.monotonic_s() + lease_s)

    def renew(self, name: str, lease_s: float) -> None:
        """Let the lease last `lease_s` seconds from now. Raises Invalid when it is over: segments may be gone."""
        with self._lock:
            self._remove_ended()
            pin = self._pins.get(name)
            if pin is None:
                raise Invalid(f"backup point {name} is gone: its lease has ended")
            self._pins[name] = pin._replace(ends_at_s=self._clock.monotonic_s() + lease_s)

    def release(self, name: str) -> None:
        """Give the pin up. A pin that does not exist is no error."""
        with self._lock:
            self._pins.pop(name, None)

    def holds(self, name: str) -> bool:
        """Return whether the lease of this name still lasts."""
        with self._lock:
            self._remove_ended()
            return name in self._pins

    def lowest(self) -> PhysicalOffset | None:
        """Return an offset such that segments that end above it must stay; None when nothing is pinned."""
        with self._lock:
            self._remove_ended()
            return min((each.start for each in self._pins.values()), default=None)

    def _remove_ended(self) -> None:
        now_s = self._clock.monotonic_s()
        for name in [name for name, each in self._pins.items() if each.ends_at_s <= now_s]:
            del self._pins[name]


class StoreTimes:
    """The store times that were assigned, and those that are durable.

        last_ms      the time of the last record, 0 if unknown; it has passed, even if a clock was set back
        flushed_ms   all records with an earlier time are durable; 0 when none is known

    One thread assigns times; another may report flushes at the same time.
    """

    def __init__(self, clock: Clock, stored_ms: int) -> None:
        """Begin with `stored_ms`, the store time of the last record of the log, all of which is durable."""
        self._clock = clock
        self.last_ms = self.flushed_ms = _believable(stored_ms, clock.wall_ms())

    def next_ms(self) -> int:
        """Return the store time for the next records; it counts as assigned once `last_ms` is set to it."""
        now_ms, last_ms = self._clock.wall_ms(), self.last_ms
        if now_ms >= last_ms:
            return now_ms
        if _believable(last_ms, now_ms):
            return last_ms
        # records that are not durable yet will have earlier times than durable ones
        self.flushed_ms = min(self.flushed_ms, now_ms)
        return now_ms

    def flushed(self, stored_ms: int) -> None:
        """Record that everything is durable that had been assigned `stored_ms` before the flush began."""
        # a clock that was years ahead may have been set right meanwhile: promise nothing about times that come again
        self.flushed_ms = min(max(self.flushed_ms, stored_ms), self.last_ms)


def _believable(stored_ms: int, now_ms: int) -> int:
    """Return the time from which store times continue: after those in the log, unless a wrong clock left them far in
    the future.

    Keeping the order is worth some days of wrong times, not years: segments expire by them.
    """
    return stored_ms if stored_ms <= now_ms + JUMP_MAX_MS else 0
