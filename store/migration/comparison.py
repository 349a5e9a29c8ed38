"""Compare file queues and RocksDB queues entry by entry, also while a broker writes both, and report the differences.

    which entries    every entry of a record in [M, W): M is the log's min offset, W was fixed before
    of each entry    that both have it (holes are at the same offsets), physical offset, size, tags code
    of each queue    the next free offset, unless the queue has grown beyond W

With `bounds_only`, only the first and the next offset of each queue are compared: a start has no time for more.

Both are read as columns, one window of queue offsets at a time. Entries that are appended meanwhile lie at or above W.
If the log's min offset rises meanwhile, entries below it are no longer compared. A queue that was deleted or truncated
meanwhile is compared again. So no temporary difference is reported.

Store times are in RocksDB alone: `quarry verify` compares them with the log.

These are no differences, and are counted as notes:

| note                     | queues that only one kind has                                                         |
|--------------------------|---------------------------------------------------------------------------------------|
| `no_file_name`           | light queues with a `/` in their names: in RocksDB alone                              |
| `not_doubled`            | topics that are not double-written (rmq#10450), then all light queues, too            |
| `light_in_rocksdb_alone` | light queues of RocketMQ's double write, which may keep them out of the files         |
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Generator, Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Final, NamedTuple, Protocol, Self

import numpy as np

from quarry_mq.protocol.clock import Clock
from quarry_mq.protocol.names import LIGHT_QUEUE_PREFIX
from quarry_mq.store.consumequeue.double_write import DoubleWriteConsumeQueues, merge_queues
from quarry_mq.store.consumequeue.files.layout import is_file_name
from quarry_mq.store.consumequeue.search import EntryReader, EntryWindow, QueueEntries, first_at_least
from quarry_mq.store.message import PhysicalOffset, QueueId

FIRST_DIFFERENCES_MAX: Final = 100
"""The number of differences that a report names. The other differences are only counted."""


class QueueDifference(NamedTuple):
    """Describe one difference between the two. `kind` is a short word in lower case, the same for the same kind."""

    kind: str
    topic: str
    queue_number: int
    queue_offset: int | None
    """The queue offset of the difference; None: the queue as a whole differs."""
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AgreementReport:
    """The result of a comparison of all queues. Stored as JSON in a row of `quarry/` (`MigrationRows.report`)."""

    began_at_ms: int
    ended_at_ms: int
    asked_by: str
    log_begin: int
    """Entries of records below this offset were not compared: the log no longer has them."""
    log_end: int
    """Entries of records at or above this offset were not compared: they came later."""
    queues: int
    units: int
    differences: Mapping[str, int] = field(default_factory=dict)
    """The number of differences of each kind; empty when files and RocksDB agree."""
    first: tuple[QueueDifference, ...] = ()
    """The first `FIRST_DIFFERENCES_MAX` differences, in the order of their queues."""
    notes: Mapping[str, int] = field(default_factory=dict)
    """The number of skipped queues that only one of the two can have, by the reason."""
    doubt: str | None = None
    """An event since the comparison that the report does not cover; None: the report is still valid."""

    @property
    def agrees(self) -> bool:
        return not self.differences

    def doubted(self, reason: str) -> AgreementReport:
        return self if self.doubt is not None else replace(self, doubt=reason)

    def encode(self) -> bytes:
        fields = {name: getattr(self, name) for name in self.__slots__}
        fields["differences"] = dict(self.differences)
        fields["notes"] = dict(self.notes)
        return json.dumps(fields, sort_keys=True).encode()

    @classmethod
    def decode(cls, row: bytes) -> Self:
        fields = json.loads(row)
        fields["first"] = tuple(QueueDifference(*each) for each in fields["first"])
        return cls(**fields)


class ComparisonProgress(NamedTuple):
    queues: int
    """The number of queues compared so far."""
    units: int


class Comparison(Protocol):
    """Compares every entry of every queue, and each queue's next offset, while the broker runs.

    `step` is called on threads other than the event loop's, not always the same one, but never on two at once. The
    caller pauses between two steps to throttle the work, and cancels by taking no further step.

    The two must agree on the entries of records in [log begin, log end), log end being the watermark of both when the
    comparison began, and on the next offset of each queue that did not grow meanwhile. Queues whose names are not valid
    file names are in RocksDB alone and are skipped. Entries that are deleted or expire meanwhile count as no
    difference.
    """

    def step(self) -> bool:
        """Compare some thousand more entries, for at most some tens of milliseconds. Returns whether any are left.

        Raises kv.KvError, OSError, StoreDamaged.
        """

    def progress(self) -> ComparisonProgress:
        """Return how far the comparison is. Any thread."""

    def report(self) -> AgreementReport:
        """Return the result, once nothing is left to do."""

    def close(self) -> None:
        """Close what is open. No step may be under way. Repeatable."""


ENTRIES_PER_STEP: Final = 4_096
"""The largest number of entries compared between two pauses: some milliseconds."""
QUEUES_PER_STEP: Final = 32
LOG_START: Final = PhysicalOffset(0)


class Kind(Enum):
    """The kinds of differences; the value is the kind's name in reports."""

    MISSING_IN_ROCKSDB = "missing_in_rocksdb"
    MISSING_IN_FILES = "missing_in_files"
    PHYSICAL_OFFSET = "physical_offset"
    SIZE = "size"
    TAGS_CODE = "tags_code"
    MAXIMUM = "maximum"
    """The next free offset of the queue."""
    MINIMUM = "minimum"
    """The first offset whose record the log has; reported when only bounds are compared."""


class Note(Enum):
    """The reasons why a queue may be in one kind alone; the value is the reason's name in reports."""

    NO_FILE_NAME = "no_file_name"
    NOT_DOUBLED = "not_doubled"
    LIGHT_IN_ROCKSDB_ALONE = "light_in_rocksdb_alone"


@dataclass(frozen=True, slots=True, kw_only=True)
class Scope:
    """The extent of a comparison.

    `below`: entries of records at or above it are not compared, so both must have all below it. `minimum`: the log's
    current min offset. `removals`: incremented before and after queues are deleted or truncated, and odd while that is
    under way. `is_doubled`: whether both kinds are written for a topic. `light_in_rocksdb_alone`: the store was double
    written by RocketMQ. `complete_from`: RocksDB need not have entries below it, as it is still being filled.
    `bounds_only`: entries are not compared.
    """

    below: PhysicalOffset
    minimum: Callable[[], PhysicalOffset]
    removals: Callable[[], int] = lambda: 0
    is_doubled: Callable[[str], bool] = is_file_name
    light_in_rocksdb_alone: bool = False
    complete_from: PhysicalOffset = LOG_START
    bounds_only: bool = False


def begin_comparison(
    queues: DoubleWriteConsumeQueues,
    clock: Clock,
    *,
    asked_by: str,
    complete_from: PhysicalOffset | None = None,
    bounds_only: bool = False,
) -> EntryComparison:
    """Begin a comparison of what both hold now. Call it on the thread that writes them; steps may run on another."""
    files, rocks = queues.files, queues.rocks
    assert files is not None
    assert rocks is not None
    scope = Scope(
        below=queues.dispatched_up_to() or PhysicalOffset(0),
        minimum=lambda: files.minimum_physical_offset,
        removals=lambda: queues.removals,
        is_doubled=lambda topic: (
            queues.is_doubled(topic) and (queues.doubles_all or not topic.startswith(LIGHT_QUEUE_PREFIX))
        ),
        complete_from=complete_from or LOG_START,
        bounds_only=bounds_only,
    )
    return EntryComparison(files.entry_reader(), rocks.entry_reader(), scope, clock, asked_by=asked_by)


class EntryComparison:
    """Implements `store.migration.comparison.Comparison`. It owns its readers (`entry_reader` of each kind of
    queues).
    """

    def __init__(
        self,
        files: EntryReader,
        rocks: EntryReader,
        scope: Scope,
        clock: Clock,
        *,
        asked_by: str,
        differences_kept: int = FIRST_DIFFERENCES_MAX,
        entries_per_step: int = ENTRIES_PER_STEP,
    ) -> None:
        self._files = files
        self._rocks = rocks
        self._scope = scope
        self._clock = clock
        self._asked_by = asked_by
        self._entries_per_step = entries_per_step
        self._log_begin = scope.minimum()
        self._began_at_ms = clock.wall_ms()
        self._began_s = clock.monotonic_s()
        self._took_s: float | None = None
        self._queues = 0
        self._found = Findings(differences_kept)
        self._steps = self._compare_all()

    def step(self) -> bool:
        for _ in self._steps:
            return True
        if self._took_s is None:
            self._took_s = self._clock.monotonic_s() - self._began_s
        return False

    def progress(self) -> ComparisonProgress:
        return ComparisonProgress(self._queues, self._found.entries)

    @property
    def differing(self) -> list[QueueId]:
        """The queues in which a difference was found so far."""
        return self._found.queues

    def report(self) -> AgreementReport:
        took_s = self._clock.monotonic_s() - self._began_s if self._took_s is None else self._took_s
        found = self._found
        return AgreementReport(
            began_at_ms=self._began_at_ms,
            ended_at_ms=self._began_at_ms + round(took_s * 1000),
            asked_by=self._asked_by,
            log_begin=self._log_begin,
            log_end=self._scope.below,
            queues=self._queues,
            units=found.entries,
            differences={kind.value: count for kind, count in found.differences.items()},
            first=tuple(found.first),
            notes={note.value: count for note, count in found.notes.items()},
        )

    def close(self) -> None:
        self._steps.close()
        self._files.close()
        self._rocks.close()

    def _compare_all(self) -> Generator[None, None, None]:
        """Compare all queues in key order; yields after each step."""
        for number, queue in enumerate(merge_queues(self._files.queues(), self._rocks.queues()), 1):
            yield from self._settled(queue)
            self._queues = number
            if number % QUEUES_PER_STEP == 0:
                yield

    def _settled(self, queue: QueueId) -> Iterator[None]:
        """Compare a queue, again if queues were removed meanwhile."""
        while True:
            removals = self._scope.removals()
            found = Findings(self._found.kept_max)
            try:
                yield from self._compare(queue, found)
            except FileNotFoundError:  # expired or deleted between its listing and its reading
                yield
                continue
            if not found.differences or (removals % 2 == 0 and removals == self._scope.removals()):
                if found.differences:
                    self._found.queues.append(queue)
                self._found.take(found)
                return
            yield

    def _compare(self, queue: QueueId, found: Findings) -> Iterator[None]:
        scope = self._scope
        if not is_file_name(queue.topic):
            found.notes[Note.NO_FILE_NAME] += 1
            return
        if not scope.is_doubled(queue.topic):
            found.notes[Note.NOT_DOUBLED] += 1
            return
        files, rocks = self._files.open(queue), self._rocks.open(queue)
        if scope.light_in_rocksdb_alone and queue.topic.startswith(LIGHT_QUEUE_PREFIX) and files.maximum == 0:
            found.notes[Note.LIGHT_IN_ROCKSDB_ALONE] += 1
            return
        if scope.bounds_only:
            self._compare_min_offsets(queue, files, rocks, found)
        else:
            yield from self._compare_entries(queue, files, rocks, found)
        has_grown = max(files.last_physical, rocks.last_physical) >= scope.below
        may_lack = files.last_physical < scope.complete_from and rocks.maximum <= files.maximum
        if not has_grown and not may_lack:
            found.compare_bound(Kind.MAXIMUM, queue, files.maximum, rocks.maximum)

    def _compare_entries(
        self, queue: QueueId, files: QueueEntries, rocks: QueueEntries, found: Findings
    ) -> Iterator[None]:
        scope = self._scope
        begin, end = self._live_begin(files, rocks), max(files.maximum, rocks.maximum)
        while begin < end:
            stop = min(end, begin + self._entries_per_step)
            mine, theirs = files.window(begin, stop), rocks.window(begin, stop)
            # only now: both windows must ignore entries that expire while they are read
            span = Span(self._minimum(), scope.below)
            found.compare(queue, mine, theirs, span)
            if span.is_after(mine) and span.is_after(theirs) and len(mine) + len(theirs):
                break
            begin = stop if len(mine) + len(theirs) else self._next(stop, end, files, rocks)
            if begin < end:
                yield

    def _compare_min_offsets(self, queue: QueueId, files: QueueEntries, rocks: QueueEntries, found: Findings) -> None:
        """Compare the first entry that both must have, if it was there before the comparison began."""
        minimum = self._minimum()
        firsts = [first_at_least(each.entry_at_or_after, each.begin, each.maximum, minimum) for each in (files, rocks)]
        places = [each.queue_offset for each in firsts if each is not None and each.physical_offset < self._scope.below]
        if len(places) == len(firsts) and minimum == self._minimum():
            found.compare_bound(Kind.MINIMUM, queue, *places)

    def _minimum(self) -> PhysicalOffset:
        """Return the log offset below which nothing is compared."""
        return PhysicalOffset(max(self._scope.minimum(), self._scope.complete_from))

    def _live_begin(self, *sources: QueueEntries) -> int:
        """Return the offset of the first entry at or above the log's min offset, in either source."""
        minimum = self._minimum()
        found = [first_at_least(each.entry_at_or_after, each.begin, each.maximum, minimum) for each in sources]
        return min((each.queue_offset for each in found if each is not None), default=max(s.maximum for s in sources))

    def _next(self, start: int, end: int, *sources: QueueEntries) -> int:
        """Return the offset of the next entry in either source: this skips a long range without entries."""
        found = [each.entry_at_or_after(start, each.maximum) for each in sources]
        return min((each.queue_offset for each in found if each is not None), default=end)


class Span(NamedTuple):
    """A range of log offsets: [begin, end)."""

    begin: PhysicalOffset
    end: PhysicalOffset

    def holds(self, window: EntryWindow) -> Mask:
        mask: Mask = (window.physical_offset >= self.begin) & (window.physical_offset < self.end)
        return mask

    def is_after(self, window: EntryWindow) -> bool:
        """Return whether the whole window comes after the span."""
        return bool(np.all(window.physical_offset >= self.end))


Mask = np.ndarray[tuple[int], np.dtype[np.bool_]]


@dataclass(slots=True)
class Findings:
    """The findings in one queue, discarded when it must be compared again; or those in all queues so far."""

    kept_max: int
    entries: int = 0
    differences: Counter[Kind] = field(default_factory=Counter)
    first: list[QueueDifference] = field(default_factory=list)
    notes: Counter[Note] = field(default_factory=Counter)
    queues: list[QueueId] = field(default_factory=list)
    """The queues that differ."""

    def take(self, other: Findings) -> None:
        """Add the findings of another object."""
        self.entries += other.entries
        self.differences.update(other.differences)
        self.notes.update(other.notes)
        self.first += other.first[: max(0, self.kept_max - len(self.first))]

    def compare(self, queue: QueueId, files: EntryWindow, rocks: EntryWindow, span: Span) -> None:
        """Compare the same queue offsets of both. Each entry is reported once."""
        if not np.array_equal(files.queue_offset, rocks.queue_offset):
            self._tell_lonely(Kind.MISSING_IN_ROCKSDB, queue, files, rocks, span)
            self._tell_lonely(Kind.MISSING_IN_FILES, queue, rocks, files, span)
            _, mine, theirs = np.intersect1d(
                files.queue_offset, rocks.queue_offset, assume_unique=True, return_indices=True
            )
            files, rocks = files.select(mine), rocks.select(theirs)
        wrong = span.holds(files) | span.holds(rocks)
        self.entries += int(wrong.sum())
        for kind in (Kind.PHYSICAL_OFFSET, Kind.SIZE, Kind.TAGS_CODE):
            differs = wrong & (getattr(files, kind.value) != getattr(rocks, kind.value))
            wrong = wrong & ~differs
            for row in self._counted(kind, differs):
                text = f"files have {_words(files, row)}; RocksDB has {_words(rocks, row)}"
                self.first.append(_difference(kind, queue, int(files.queue_offset[row]), text))

    def compare_bound(self, kind: Kind, queue: QueueId, files: int, rocks: int) -> None:
        name = "next" if kind is Kind.MAXIMUM else "first"
        for _ in self._counted(kind, np.array([files != rocks])):
            text = f"the {name} offset is {files} in files, {rocks} in RocksDB"
            self.first.append(_difference(kind, queue, None, text))

    def _tell_lonely(self, kind: Kind, queue: QueueId, one: EntryWindow, other: EntryWindow, span: Span) -> None:
        """Report the entries that only one of them has."""
        alone = span.holds(one) & ~np.isin(one.queue_offset, other.queue_offset)
        self.entries += int(alone.sum())
        for row in self._counted(kind, alone):
            self.first.append(_difference(kind, queue, int(one.queue_offset[row]), _words(one, row)))

    def _counted(self, kind: Kind, rows: Mask) -> list[int]:
        """Count all rows; return those that there is still space for."""
        count = int(rows.sum())
        if count == 0:
            return []
        self.differences[kind] += count
        first: list[int] = np.flatnonzero(rows)[: max(0, self.kept_max - len(self.first))].tolist()
        return first


def _difference(kind: Kind, queue: QueueId, queue_offset: int | None, text: str) -> QueueDifference:
    return QueueDifference(kind.value, queue.topic, queue.number, queue_offset, text)


def _words(window: EntryWindow, row: int) -> str:
    return f"{window.size[row]} bytes at offset {window.physical_offset[row]}, tags code {window.tags_code[row]}"
