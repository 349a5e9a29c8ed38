"""The module verifies consume queue entries against the log: first as sums per piece, then one by one where sums
differ.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from quarry_mq.protocol.names import is_light_queue
from quarry_mq.store.consumequeue import ConsumeQueueEntry, EntryColumns
from quarry_mq.store.consumequeue.files.layout import is_file_name
from quarry_mq.store.message import PhysicalOffset, QueueBounds, QueueId, QueueOffset
from quarry_mq.store.offline import OfflineStore
from quarry_mq.store.record import StoredMessage
from quarry_mq.store.scan import RecordBatch
from quarry_mq.store.verify.log import entries_of, walk, whole_record_at
from quarry_mq.store.verify.report import Check, Difference, Findings, Note
from quarry_mq.store.verify.sources import EntrySource, StoredQueue, entry_at, entry_of_record
from quarry_mq.store.verify.sums import PIECE_BYTES, EntrySums, piece_of

ENTRIES_PER_REPORT: Final = 65_536
"""Entries between two reports of progress."""

DeletionTest = Callable[[str, PhysicalOffset], bool]
"""A function that tells whether a record of a topic was deleted with it."""
_FIELDS: Final = ("size", "tags code", "store time")


@dataclass(slots=True)
class StoredSide:
    """The entries that were read, as sums. Sums of other queues, read by others, may be added."""

    sums: EntrySums
    above: set[int]
    """The pieces with entries of records at or above the check point."""

    def absorb(self, other: StoredSide) -> None:
        self.sums.absorb(other.sums)
        self.above |= other.above


class QueueComparison:
    """The class compares one source of entries with the log.

    Its methods are called in this order: `read_entries`, `add_records` for the whole log, then `compare_records` for
    the `differing` pieces, and `compare_entries`. Several of these with the same key may each do a part: then the sums
    `stored` and `expected` of all of them, added up, tell which pieces differ.
    """

    def __init__(self, store: OfflineStore, source: EntrySource, findings: Findings, key: bytes) -> None:
        self._store = store
        self._source = source
        self._findings = findings
        self.stored: Final = StoredSide(EntrySums(key, with_time=source.with_time), set())
        self.expected: Final = EntrySums(key, with_time=source.with_time)
        self._read = 0
        self._below = source.compared_below
        for check in (source.records_check, source.entries_check):
            findings.count(check, 0)

    @property
    def source(self) -> EntrySource:
        return self._source

    def read_entries(self, queues: Iterable[StoredQueue]) -> Iterator[int]:
        """Sum the entries, and check each queue by itself. Yields now and then how many entries were read."""
        for queue in queues:
            yield from self._read_queue(queue)

    def add_records(self, batch: RecordBatch, entries: EntryColumns) -> None:
        """Sum the entries that the records must have by now."""
        places = batch.columns.physical_offset
        if self._below is not None and len(places) and places[-1] >= self._below:
            self._findings.note(Note.UNDISPATCHED, int((places >= self._below).sum()))
            entries = entries.select(entries.physical_offset < self._below)
        self._findings.count(self._source.records_check, len(entries))
        self.expected.add_all(entries, by_place=lambda queue: not self._counts_offset(queue))

    def differing(self) -> list[int]:
        """Return the numbers of the pieces to compare, ascending."""
        return sorted({*self.expected.differing(self.stored.sums), *self.stored.above})

    # -- each queue by itself

    def _read_queue(self, queue: StoredQueue) -> Iterator[int]:
        findings, source = self._findings, self._source
        minimum, limit = self._store.minimum, self._store.log_limit
        with_offset = self._counts_offset(queue.queue)
        maximum = None if queue.maximum is None else queue.maximum.queue_offset
        first: ConsumeQueueEntry | None = None
        last: ConsumeQueueEntry | None = None
        unowned = expired = above_maximum = 0
        for entry in queue.entries:
            self._read += 1
            if self._read % ENTRIES_PER_REPORT == 0:
                yield self._read
            if limit is not None and entry.physical_offset >= limit:
                continue  # came since the backup point
            if entry.physical_offset < minimum:
                expired += 1
                continue
            if source.has_bounds and maximum is None:
                unowned += 1
                continue
            if maximum is not None and entry.queue_offset > maximum:
                above_maximum += 1
                continue
            if last is not None and entry.physical_offset <= last.physical_offset:
                self._differ_entry(
                    queue.queue,
                    entry,
                    f"a position after that of entry {last.queue_offset}, {last.physical_offset}",
                    f"{entry.physical_offset}",
                )
            first = first or entry
            last = entry
            findings.count(source.entries_check)
            self.stored.sums.add(queue.queue, entry, with_offset=with_offset)
            if self._below is not None and entry.physical_offset >= self._below:
                self.stored.above.add(piece_of(entry.physical_offset))
        findings.note(Note.EXPIRED, expired)
        findings.note(Note.ABOVE_MAXIMUM, above_maximum)
        if source.has_bounds:
            self._check_bounds(queue, first, last, unowned)

    def _check_bounds(
        self, queue: StoredQueue, first: ConsumeQueueEntry | None, last: ConsumeQueueEntry | None, unowned: int
    ) -> None:
        self._findings.count(Check.OFFSETS)
        lowest, highest = queue.minimum, queue.maximum
        if highest is None:
            if unowned:
                self._differ_offsets(queue.queue, None, "a maximum", f"none, but {unowned} entries")
            if lowest is not None and lowest.queue_offset > 0:
                self._differ_offsets(queue.queue, lowest.queue_offset, "a maximum", "none, but a minimum")
            return
        if last is not None and (last.physical_offset, last.queue_offset) != highest:
            self._differ_offsets(
                queue.queue,
                highest.queue_offset,
                f"a maximum of entry {last.queue_offset} at offset {last.physical_offset}, the last one",
                f"entry {highest.queue_offset} at offset {highest.physical_offset}",
            )
        # an offset of 0 is what stays of a queue whose entries were all cut or expired
        if last is None and highest.physical_offset >= max(self._store.minimum, 1):
            self._differ_offsets(
                queue.queue,
                highest.queue_offset,
                f"an entry at the maximum, entry {highest.queue_offset} at offset {highest.physical_offset}",
                "none",
            )
        if lowest is None:
            return
        end = highest.queue_offset + 1
        if lowest.queue_offset > end:
            self._differ_offsets(queue.queue, lowest.queue_offset, f"a minimum of at most {end}", "one above it")
        elif first is not None and lowest.queue_offset > first.queue_offset:
            self._differ_offsets(
                queue.queue,
                lowest.queue_offset,
                f"a minimum of at most {first.queue_offset}, the first entry whose record the log has",
                f"{lowest.queue_offset}",
            )

    # -- one by one

    def compare_records(self, piece: int, start: PhysicalOffset | None, is_deleted: DeletionTest) -> None:
        """Look up the entries of each record that begins in the piece. `start` is the first one; None:
        there is none.
        """
        if start is None:
            return
        end = PhysicalOffset((piece + 1) * PIECE_BYTES)
        if self._below is not None:
            end = PhysicalOffset(min(end, self._below))
        for found in walk(self._store, start, end):
            if isinstance(found, StoredMessage):
                for queue, entry in entries_of(found):
                    self._compare_record(queue, entry, is_deleted)

    def _compare_record(self, queue: QueueId, entry: ConsumeQueueEntry, is_deleted: DeletionTest) -> None:
        reader, source = self._source.reader, self._source
        by_place = not self._counts_offset(queue)
        stored = (
            entry_of_record(reader, queue, entry.physical_offset)
            if by_place
            else entry_at(reader, queue, entry.queue_offset)
        )
        if stored is not None and stored.physical_offset == entry.physical_offset:
            wrong = [
                (name, expected, found)
                for name, expected, found in zip(_FIELDS, entry[2:], stored[2:], strict=True)
                if expected != found and (source.with_time or name != "store time")
            ]
            if wrong:
                self._differ_record(
                    queue,
                    entry,
                    ", ".join(f"{name} {expected}" for name, expected, _ in wrong),
                    ", ".join(f"{name} {found}" for name, _, found in wrong),
                )
            return
        note = self._why_missing(queue, entry, is_deleted)
        if note is not None:
            self._findings.note(note)
            return
        bounds = reader.bounds(queue)
        seen = f"the queue shows [{bounds.minimum}, {bounds.maximum})"
        found = "no entry" if stored is None else f"an entry that points at offset {stored.physical_offset}"
        self._differ_record(queue, entry, f"an entry that points at offset {entry.physical_offset}", f"{found}; {seen}")

    def _why_missing(self, queue: QueueId, entry: ConsumeQueueEntry, is_deleted: DeletionTest) -> Note | None:
        """Return why it is no loss that the record has no entry; None if it is a loss."""
        source = self._source
        bounds = source.reader.bounds(queue)
        first = next(iter(source.reader.entries(queue, QueueOffset(0), 1)), None)
        is_from_files = first is None or entry.physical_offset < first.physical_offset
        if source.leaves_out_names and is_from_files and not is_file_name(queue.topic):
            return Note.NO_FILE_NAME
        if source.begins_late and (first is None or entry.physical_offset < first.physical_offset):
            return Note.BEFORE_DOUBLE_WRITE
        if source.ends_early or (source.light_ends_early and is_light_queue(queue.topic)):
            last = entry_at(source.reader, queue, QueueOffset(bounds.maximum - 1))
            if last is None or entry.physical_offset > last.physical_offset:
                return Note.AFTER_FILE_QUEUES
        if first is not None and first.queue_offset == 0 and entry.physical_offset < first.physical_offset:
            return Note.EARLIER_LIFE
        if bounds.maximum == 0 and not is_light_queue(queue.topic) and is_deleted(queue.topic, entry.physical_offset):
            return Note.DELETED
        if is_light_queue(queue.topic) and self._is_of_removed(queue, entry, bounds):
            return Note.REMOVED_LIGHT
        return None

    def _is_of_removed(self, queue: QueueId, entry: ConsumeQueueEntry, bounds: QueueBounds) -> bool:
        """Return whether the light queue may have been removed with the entry: a new one begins above all that were
        removed.
        """
        removed_below = self._source.light_removed_below
        if not removed_below:
            return False
        if not self._counts_offset(queue):
            return bounds.maximum == 0
        return entry.queue_offset < removed_below and (bounds.maximum == 0 or entry.queue_offset < bounds.minimum)

    def compare_entries(self, queues: Iterable[StoredQueue], pieces: Collection[int]) -> None:
        """Read the record of each entry in these pieces."""
        minimum, limit = self._store.minimum, self._store.log_limit
        for queue in queues:
            maximum = None if queue.maximum is None else queue.maximum.queue_offset
            if self._source.has_bounds and maximum is None:
                continue
            for entry in queue.entries:
                if entry.physical_offset < minimum or (maximum is not None and entry.queue_offset > maximum):
                    continue
                if limit is not None and entry.physical_offset >= limit:
                    continue
                if piece_of(entry.physical_offset) in pieces:
                    self._compare_entry(queue.queue, entry)

    def _compare_entry(self, queue: QueueId, entry: ConsumeQueueEntry) -> None:
        record = whole_record_at(self._store, entry.physical_offset)
        entries = [] if isinstance(record, str) else list(entries_of(record))
        if not entries and self._store.is_replaced(entry.physical_offset):
            self._findings.note(Note.GIVEN_UP)
            return
        if isinstance(record, str):
            self._differ_entry(queue, entry, f"a whole record at offset {entry.physical_offset}", record)
            return
        by_place = not self._counts_offset(queue)
        for owner, other in entries:
            if owner == queue and (by_place or other.queue_offset == entry.queue_offset):
                undispatched = self._below is not None and entry.physical_offset >= self._below
                if undispatched and (other.size, other.tags_code) != (entry.size, entry.tags_code):
                    self._differ_entry(queue, entry, f"size and tags code {other[2:4]}", f"{entry[2:4]}")
                return  # other differences of an entry are reported for its record
        owners = ", ".join(f"entry {other.queue_offset} of {owner.topic}/{owner.number}" for owner, other in entries)
        self._differ_entry(
            queue, entry, "a record of this entry", f"at offset {entry.physical_offset} that of {owners or 'no queue'}"
        )

    def _counts_offset(self, queue: QueueId) -> bool:
        return not (self._source.light_by_place and is_light_queue(queue.topic))

    def _differ_record(self, queue: QueueId, entry: ConsumeQueueEntry, expected: str, found: str) -> None:
        self._differ(self._source.records_check, queue, entry, expected, found)

    def _differ_entry(self, queue: QueueId, entry: ConsumeQueueEntry, expected: str, found: str) -> None:
        self._differ(self._source.entries_check, queue, entry, expected, found)

    def _differ(self, check: Check, queue: QueueId, entry: ConsumeQueueEntry, expected: str, found: str) -> None:
        self._findings.differ(
            Difference(
                check=check,
                file=self._source.file,
                expected=expected,
                found=found,
                queue=queue,
                queue_offset=entry.queue_offset,
                physical_offset=entry.physical_offset,
            )
        )

    def _differ_offsets(self, queue: QueueId, at: QueueOffset | None, expected: str, found: str) -> None:
        self._findings.differ(
            Difference(
                check=Check.OFFSETS,
                file=self._source.file,
                expected=expected,
                found=found,
                queue=queue,
                queue_offset=at,
            )
        )
