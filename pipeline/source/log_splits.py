"""Determines which bytes of the commit log are read, and divides them among tasks."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from pyspark.sql.datasource import InputPartition

from quarry_mq.store.commitlog import CommitLogReader, KeptSize, SegmentList
from quarry_mq.store.errors import NotAStore, StoreDamaged, StoreLocked
from quarry_mq.store.fs import Disk, PosixDisk
from quarry_mq.store.layout.kind import StoreKind, inspect_store
from quarry_mq.store.layout.paths import StorePaths
from quarry_mq.store.message import PhysicalOffset
from quarry_mq.store.record import Blank, Corrupt, StoredMessage, Torn
from quarry_mq.store.recovery.checkpoint import read_checkpoint
from quarry_mq.store.scan import Ending, RecordBatch, first_record, next_readable, scan_log
from quarry_mq.store.state.identity import refuse_newer


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


@dataclass(frozen=True)
class LogSplit(InputPartition):
    """The part of the log that one task reads: records that begin in [begin, end), all in one segment."""

    begin: PhysicalOffset
    end: PhysicalOffset
    is_last: bool
    torn_from: PhysicalOffset | None


def open_segments(disk: Disk, root: Path) -> SegmentList:
    """Open the log of the store at `root` for reading. Raises NotAStore, StoreDamaged."""
    paths = StorePaths(root)
    return SegmentList(disk, paths.commit_log, None, writable=False, kept_size=KeptSize(disk, paths.quarry))


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
    """Divide the extent into splits of about `split_bytes`. Each but the first of a segment begins at a record."""
    size = segments.segment_size
    bases = (base for base in segments.bases if base < extent.end and base + size > extent.begin)
    return [split for base in bases for split in _splits_of(segments, base, extent, split_bytes)]


def _splits_of(segments: SegmentList, base: PhysicalOffset, extent: LogExtent, split_bytes: int) -> Iterator[LogSplit]:
    """Yield the splits of one segment."""
    end = PhysicalOffset(min(base + segments.segment_size, extent.end))
    begins = [base, *_begins(segments, base, end, split_bytes)]
    for begin, stop in zip(begins, [*begins[1:], end], strict=True):
        yield LogSplit(begin, stop, stop == extent.end, extent.torn_from)


def _begins(
    segments: SegmentList, base: PhysicalOffset, end: PhysicalOffset, split_bytes: int
) -> Iterator[PhysicalOffset]:
    begin = base
    while begin + split_bytes < end:
        following = first_record(segments, PhysicalOffset(begin + split_bytes))
        if following is None or following >= end:
            return
        yield following
        begin = following


def end_of_records(segments: SegmentList, extent: LogExtent, split_bytes: int) -> PhysicalOffset:
    """Return the end of the log: after its last record, or after the blank that follows it.

    Only the last split is read.
    """
    if extent.begin == extent.end:
        return extent.begin
    *_, last = _splits_of(segments, segments.base_of(PhysicalOffset(extent.end - 1)), extent, split_bytes)
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
    found = CommitLogReader(segments).decode(split.begin)
    return found.store_timestamp_ms if isinstance(found, StoredMessage) else None


def read_split(segments: SegmentList, split: LogSplit, *, check_crc: bool) -> Iterator[RecordBatch | Damage]:
    """Yield the records of the split, and its damaged places. Reading goes on after damage at the next whole record.

    Raises StoreDamaged when the next split does not begin at a record.
    """
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
    data_end = segments.disk.data_end(segments.path_of(begin))
    octets = np.frombuffer(segments.segment_at(begin).view(), np.uint8)
    return not octets[begin - base : min(end - base, data_end)].any()
