"""The module cuts a log after its last good record and keeps the bytes that it cuts off."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from quarry_mq.store.commitlog.segments import SegmentList
from quarry_mq.store.layout.paths import cut_directory, cut_name
from quarry_mq.store.message import PhysicalOffset

BLOCK: Final = bytes(1024 * 1024)
"""Zeros to compare with: comparing memory is ten times faster than testing each byte."""


@dataclass(frozen=True, slots=True)
class CutReport:
    """The report says what a cut found after the end of the log."""

    at: PhysicalOffset
    kept: tuple[Path, ...]
    """Files with the bytes that were cut off, one per segment that had any."""
    kept_bytes: int
    removed: tuple[Path, ...]
    """Segments after the cut that were removed."""


def cut(segments: SegmentList, at: PhysicalOffset) -> CutReport:
    """End the log at `at`: afterwards every byte after it is zero, durably.

    The bytes from `at` to the last one that is not zero are kept first, in `broken/<offset of the first>.broken`
    (docs/formats/store-directory.md), so a crash at any moment loses none; cutting again finishes the work. If the
    segment right after the cut is untouched, it is left for the writer to continue in; all other later segments are
    removed.

    Zeroing is not optional. A record that lies after the cut is whole, and its offset is right: as soon as a new record
    of the size of the lost one was written before it, it would count as written, too.

    The caller opens the list for writing and has no writer on it. Raises OffsetOutOfRange when `at` lies outside
    [minimum, end_of_files], OSError when the bytes cannot be kept; then nothing was cut.
    """
    last_base = segments.base_of(at)
    if at == segments.end_of_files:
        return CutReport(at, kept=(), kept_bytes=0, removed=())
    rest = bytes_after(segments, at)
    kept = [keep(segments, start, end) for start, end in rest]
    untouched_from = PhysicalOffset(segments.base_of(rest[-1][0]) + segments.segment_size) if rest else at
    # Later segments go before the cut itself: while the bad record is still there, a start after a crash finds the same
    # end again.
    spare = PhysicalOffset(last_base + segments.segment_size)
    removed = segments.remove_after(spare if untouched_from <= spare else last_base)
    # Zero also where nothing was kept: an earlier cut may have zeroed the bytes and died before they were durable.
    segments.disk.zero_from(segments.path_of(at), at - last_base)
    return CutReport(at, tuple(kept), sum(end - start for start, end in rest), tuple(removed))


def bytes_after(segments: SegmentList, at: PhysicalOffset) -> list[tuple[PhysicalOffset, PhysicalOffset]]:
    """Return the ranges that a cut at the offset would remove: per segment with data, the bytes up to the last non-zero
    one.
    """
    found = []
    for base in segments.bases:
        if base + segments.segment_size <= at:
            continue
        start = max(at, base)
        end = _end_of_data(segments, base, start)
        if end > start:
            found.append((start, end))
    return found


def _end_of_data(segments: SegmentList, base: PhysicalOffset, start: PhysicalOffset) -> PhysicalOffset:
    """Return the first offset in the segment from which on all bytes are zero; `start` if all bytes
    from there on are.
    """
    end = min(segments.disk.data_end(segments.path_of(base)), segments.segment_size)
    return end_of_bytes(segments, start, PhysicalOffset(base + end))


def end_of_bytes(segments: SegmentList, start: PhysicalOffset, end: PhysicalOffset) -> PhysicalOffset:
    """Return the offset after the last non-zero byte of [start, end) in one segment; `start` if all bytes are zero.

    Raises OSError for bytes that cannot be read.
    """
    base = segments.base_of(start)
    segment = segments.segment_at(base)
    view = segment.view()
    first, position = start - base, end - base
    while position > first:
        begin = max(first, position - len(BLOCK))
        segment.fetch(begin, position - begin)
        block = bytes(view[begin:position])
        if block != BLOCK[: len(block)]:
            return PhysicalOffset(base + begin + len(block.rstrip(b"\0")))
        position = begin
    return start


def keep(segments: SegmentList, start: PhysicalOffset, end: PhysicalOffset) -> Path:
    """Copy bytes of one segment to a new file in `broken/`, durably; return its path. Raises OSError."""
    directory = cut_directory(segments.directory)
    segments.disk.make_directories(directory)
    number = 0
    while segments.disk.exists(directory / cut_name(start, number)):
        number += 1
    base = segments.base_of(start)
    path = directory / cut_name(start, number)
    segments.disk.replace_atomically(path, segments.segment_at(base).view()[start - base : end - base])
    return path
