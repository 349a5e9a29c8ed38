"""Determines which bytes of the commit log are read, and divides them among tasks."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import numpy as np
from pyspark.sql.datasource import InputPartition

from quarry_mq.store.commitlog import CommitLogReader, KeptSize, SegmentList
from quarry_mq.store.errors import NotAStore, StoreDamaged, StoreLocked
from quarry_mq.store.fs import Disk, PosixDisk
from quarry_mq.store.layout.kind import StoreKind, inspect_store
from quarry_mq.store.layout.paths import StorePaths
from quarry_mq.store.message import PhysicalOffset
from quarry_mq.store.record import Blank, Corrupt, StoredMessage, Torn
from quarry_mq.store.record.layout import HEAD_V4, HEADS, HOST_BITS_SHIFT, TOPIC_LENGTHS
from quarry_mq.store.recovery.checkpoint import read_checkpoint
from quarry_mq.store.scan import Ending, RecordBatch, first_record, next_readable, scan_log
from quarry_mq.store.state.identity import refuse_newer

_MAGIC, _OFFSET, _FLAG, _STORE_TIME = 1, 6, 7, 11
"""Places of fields in a record's head (`store.record.layout`)."""
_LOOKED_AT_BYTES: Final = 1 << 20
SPLITS_MAX: Final = 100_000
"""Splits of one log, unless there are more segments. Each is a task, which the driver of Spark keeps track of."""


@dataclass(frozen=True, slots=True)
class LogExtent:
    """The part of a log that is read."""

    begin: PhysicalOffset
    end: PhysicalOffset
    """The end of the files, or for a running broker the end of the durable log."""
    torn_from: PhysicalOffset | None
    """From this offset on the log may be torn, because the store was not closed cleanly; None: nothing is torn."""


@dataclass(frozen=True, slots=True)
class Damage:
    """Bytes of one segment that must be records, and are not."""

    begin: PhysicalOffset
    end: PhysicalOffset
    reason: str


@dataclass(frozen=True, kw_only=True)
class LogSplit(InputPartition):
    """The part of one segment that one task reads.

    The driver plans without reading the log: `begin` and `end` may lie anywhere. The split has the records from the
    first one at or after `begin` to the first one at or after `end`, and everything between them. `located` finds both.
    """

    begin: PhysicalOffset
    end: PhysicalOffset
    begins_at_record: bool
    """Tells that the split begins exactly at `begin`, whatever lies there."""
    segment_begin: PhysicalOffset
    segment_size: int
    log_end: PhysicalOffset
    """The end of the part of the log that is read."""
    torn_from: PhysicalOffset | None

    @property
    def limit(self) -> PhysicalOffset:
        """Return where the segment ends, or the log in it."""
        return PhysicalOffset(min(self.segment_begin + self.segment_size, self.log_end))

    @property
    def is_last(self) -> bool:
        """Tells that the located split is the last one of the log."""
        return self.end == self.log_end

    def located(self, segments: SegmentList) -> LogSplit:
        """Return the split with its exact begin and end. All splits of a segment agree about them."""
        begin = self.first(segments)
        end = self.end if self.end == self.limit else self._record_from(segments, self.end)
        return replace(self, begin=begin, end=end, begins_at_record=True)

    def first(self, segments: SegmentList) -> PhysicalOffset:
        """Return the exact begin of the split."""
        return self.begin if self.begins_at_record else self._record_from(segments, self.begin)

    def _record_from(self, segments: SegmentList, at: PhysicalOffset) -> PhysicalOffset:
        found = first_record(segments, at)
        return self.limit if found is None else min(found, self.limit)


def open_segments(disk: Disk, root: Path) -> SegmentList:
    """Open the log of the store at `root` for reading. Raises NotAStore, StoreDamaged."""
    paths = StorePaths(root)
    return SegmentList(disk, paths.commit_log, None, writable=False, kept_size=KeptSize(disk, paths.quarry))


def open_segment(disk: Disk, root: Path, split: LogSplit) -> SegmentList:
    """Open the segment of a split for reading, without a look at the others: a log may have a hundred thousand."""
    log = StorePaths(root).commit_log
    return SegmentList(disk, log, split.segment_size, writable=False, only=split.segment_begin)


def log_extent(disk: Disk, root: Path, segments: SegmentList, *, is_ours: bool = False) -> LogExtent:
    """Return the part of the log that may be read; of a running store, the part that its checkpoint says is durable.

    `is_ours`: this process holds the lock. Raises NotAStore, and StoreLocked if the running broker does not tell how
    far its log is durable.
    """
    found = inspect_store(disk, root)
    if found.kind is StoreKind.NEW:
        raise NotAStore(root, "there is no store in this directory")
    paths = StorePaths(root)
    if isinstance(disk, PosixDisk):  # a copy of a log in an object store has no database beside it that could be opened
        refuse_newer(paths.quarry)
    durable = read_checkpoint(disk, paths.checkpoint).confirmed_up_to
    if not is_ours and _is_running(disk, paths.lock):
        if not durable:
            raise StoreLocked(paths.lock, "a broker runs on the store, and has not said yet how far its log is durable")
        return LogExtent(segments.minimum, min(durable, segments.end_of_files), None)
    return LogExtent(segments.minimum, _end_of_used(segments), durable if found.has_abort else None)


def _is_running(disk: Disk, lock: Path) -> bool:
    try:
        disk.lock_shared(lock).release()
    except BlockingIOError:
        return True
    except FileNotFoundError:
        return False
    return False


def _end_of_used(segments: SegmentList) -> PhysicalOffset:
    """Return the end of the last segment that holds any data: a broker creates one segment ahead."""
    for base in reversed(segments.bases):
        end = PhysicalOffset(base + segments.segment_size)
        if not _is_empty(segments, base, end):
            return end
    return segments.minimum


def plan_splits(segments: SegmentList, extent: LogExtent, split_bytes: int) -> list[LogSplit]:
    """Divide the extent into splits of about `split_bytes`. Only the zeros at the end of the log are read.

    Splits of a large log are larger, up to a segment each, so that there are no more than the scheduler can handle.
    """
    size = segments.segment_size
    if extent.end <= extent.begin:
        return []
    wanted = max(split_bytes, -(-(extent.end - extent.begin) // SPLITS_MAX))
    first, last = segments.base_of(extent.begin), segments.base_of(PhysicalOffset(extent.end - 1))
    bases = (PhysicalOffset(base) for base in range(first, last + 1, size))
    return [split for base in bases for split in _splits_of(segments, base, extent, wanted)]


def _splits_of(segments: SegmentList, base: PhysicalOffset, extent: LogExtent, split_bytes: int) -> Iterator[LogSplit]:
    """Yield the splits of one segment. The zeros after the data of the log's last segment are part of the last one."""
    size = segments.segment_size
    first = max(base, extent.begin)
    limit = min(base + size, extent.end)
    data_end = limit
    if limit == extent.end:
        data_end = max(first + 1, _data_end(segments, base, limit))
    for begin in range(first, data_end, split_bytes):
        end = begin + split_bytes
        yield LogSplit(
            begin=PhysicalOffset(begin),
            end=PhysicalOffset(end if end < data_end else limit),
            begins_at_record=begin == first,
            segment_begin=base,
            segment_size=size,
            log_end=extent.end,
            torn_from=extent.torn_from,
        )


def _data_end(segments: SegmentList, base: PhysicalOffset, limit: int) -> int:
    """Return where the zeros begin that fill a segment up to `limit`."""
    octets = np.frombuffer(segments.segment_at(base).view(), np.uint8)
    end = min(limit - base, segments.disk.data_end(segments.path_of(base)))
    while end > 0:
        used = np.flatnonzero(octets[max(0, end - _LOOKED_AT_BYTES) : end])
        if len(used):
            return base + max(0, end - _LOOKED_AT_BYTES) + int(used[-1]) + 1
        end -= _LOOKED_AT_BYTES
    return base


def end_of_records(segments: SegmentList, extent: LogExtent, split_bytes: int) -> PhysicalOffset:
    """Return the end of the log: after its last record, or after the blank that follows it.

    Only the last split that has records is read.
    """
    if extent.begin == extent.end:
        return extent.begin
    base = segments.base_of(PhysicalOffset(extent.end - 1))
    splits = reversed(list(_splits_of(segments, base, extent, split_bytes)))
    last = next(each for each in (split.located(segments) for split in splits) if each.begin < each.end)
    end = last.begin
    for found in read_split(segments, last, check_crc=False):
        end = found.end
    return end


def readable_range(disk: Disk, root: Path, split_bytes: int) -> tuple[PhysicalOffset, PhysicalOffset]:
    """Return the begin and end of the log that can be read now. Raises as `open_segments` and `log_extent`."""
    with closing(open_segments(disk, root)) as segments:
        extent = log_extent(disk, root, segments)
        return extent.begin, end_of_records(segments, extent, split_bytes)


def store_time_at(segments: SegmentList, split: LogSplit) -> int | None:
    """Return the store time in ms of the split's first record; None where the split begins with no record."""
    begin = split.first(segments)
    found = CommitLogReader(segments).decode(begin) if begin < split.limit else None
    return found.store_timestamp_ms if isinstance(found, StoredMessage) else None


def store_time_of_segment(segments: SegmentList, base: PhysicalOffset) -> int | None:
    """Return the store time in ms that the first record of a segment states; None if no record is there.

    Only the record's head is read, and the segment is not mapped: mapping costs fifty times as much.
    """
    head = segments.disk.read_range(segments.path_of(base), 0, HEADS[-1].size)
    if len(head) < HEADS[-1].size:
        return None
    fields = HEADS[HEAD_V4.unpack_from(head)[_FLAG] >> HOST_BITS_SHIFT & 3].unpack_from(head)
    is_record = fields[_MAGIC] in TOPIC_LENGTHS and fields[_OFFSET] == base
    return int(fields[_STORE_TIME]) if is_record else None


def read_split(segments: SegmentList, split: LogSplit, *, check_crc: bool) -> Iterator[RecordBatch | Damage]:
    """Yield the records of the split, and its damaged places. Reading goes on after damage at the next whole record.

    Raises StoreDamaged when the next split does not begin at a record.
    """
    split = split.located(segments)
    at = split.begin
    while at < split.end:
        ended_by: Ending | None = None
        for batch in scan_log(segments, at, split.end, check_crc=check_crc):
            yield batch
            at, ended_by = batch.end, batch.ended_by
        if isinstance(ended_by, Blank) or (ended_by is None and at >= split.end):
            break
        damage = _damage(segments, split, at, ended_by)
        if damage is None:
            return
        yield damage
        at = damage.end
    if at > split.end and not split.is_last:
        raise StoreDamaged(
            segments.path_of(split.end),
            f"what looks like a record at offset {split.end} lies within another one: set splitBytes to another value",
        )


def read_whole_split(segments: SegmentList, split: LogSplit) -> Iterator[RecordBatch]:
    """Yield the records of the split with their checksums checked.

    Raises StoreDamaged with the damage's file and offset.
    """
    for found in read_split(segments, split, check_crc=True):
        if isinstance(found, Damage):
            raise StoreDamaged(segments.path_of(found.begin), f"offset {found.begin}: {found.reason}")
        yield found


def _damage(segments: SegmentList, split: LogSplit, at: PhysicalOffset, ended_by: Ending | None) -> Damage | None:
    """Return the damage at `at`, where no record is; None if the log ends there."""
    reason = ended_by.reason if isinstance(ended_by, Torn | Corrupt) else "nothing was written here, but bytes follow"
    end = next_readable(segments, at)
    if split.is_last and end is None:
        may_be_torn = split.torn_from is not None and at >= split.torn_from
        if may_be_torn or _is_empty(segments, at, split.end):
            return None
    return Damage(at, min(end or split.end, split.end), reason)


def _is_empty(segments: SegmentList, begin: PhysicalOffset, end: PhysicalOffset) -> bool:
    """Return whether [begin, end) of one segment holds only zeros."""
    base = segments.base_of(begin)
    return _data_end(segments, base, end) <= begin
