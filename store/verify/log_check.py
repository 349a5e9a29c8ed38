"""The module reads the log of a running broker piece by piece, and tells what in it is damaged.

The bytes are read from the files, not through mappings: what the disk cannot read is an error here, while a mapping
would end the process (SIGBUS). They do not push other bytes out of the page cache (`Disk.read_once`). Bytes that are in
the cache are checked there, as every reader gets them from there.

A piece is scanned in bulk. Whatever is unusual in it comes first in the next piece, where the exact decoder decides.
"""

from __future__ import annotations

from collections.abc import Callable
from errno import EBADMSG, EIO, ENODATA, EREMOTEIO, EUCLEAN
from os import fspath
from typing import Final, NamedTuple

from quarry_mq.store.commitlog import SegmentList
from quarry_mq.store.errors import OffsetOutOfRange, StoreDamaged
from quarry_mq.store.fs import PAGE_BYTES
from quarry_mq.store.message import PhysicalOffset
from quarry_mq.store.record import (
    Blank,
    Corrupt,
    Decoded,
    EndOfData,
    StoredMessage,
    Torn,
    decode_record,
    size_with_body,
)
from quarry_mq.store.record.layout import (
    BESIDE_BODY_MAX,
    HEAD_BYTES,
    MAGIC_BLANK,
    RECORD_SIZE_MINIMUM,
    SIZE,
    SIZE_AND_MAGIC,
    TOPIC_LENGTHS,
)
from quarry_mq.store.scan import RECORD_MAGIC, scan_segment

PIECE_BYTES: Final = 256 * 1024
"""Bytes of one step: few enough that the interpreter's lock is soon free again for the event loop."""
FILE_ENDS: Final = "the file ends here"
UNREADABLE: Final = {EIO, ENODATA, EBADMSG, EUCLEAN, EREMOTEIO}
"""Errors by which the system says that the device, or the file system, does not give the bytes."""


class LogPiece(NamedTuple):
    """A piece is what one step has read: `size` bytes with `records` whole records, and what is damaged there."""

    size: int = 0
    records: int = 0
    damage: StoreDamaged | None = None


class LogCheck:
    """The check reads a log from the beginning of a segment up to what is durable. One thread uses it at a time."""

    def __init__(
        self, segments: SegmentList, durable_up_to: Callable[[], PhysicalOffset], start: PhysicalOffset
    ) -> None:
        """Begin with the segment that holds the offset, or with the first one if the log does not hold it."""
        self._segments = segments
        self._durable_up_to = durable_up_to
        self.at = segments.base_of(start) if segments.minimum <= start <= segments.end_of_files else segments.minimum
        """The offset below which everything was read."""
        self._is_searching = False
        """True while a whole record is looked for after damage."""

    def step(self) -> LogPiece | None:
        """Read the next piece; None if everything that is durable now was read.

        Raises OSError for what says nothing about the bytes of the log, such as a lack of descriptors; the step can be
        repeated.
        """
        if self.at < self._segments.minimum:  # expired since the last step
            self.at, self._is_searching = self._segments.minimum, False
        end = self._durable_up_to()
        if self.at >= end:
            return None
        try:
            return self._search(end) if self._is_searching else self._read_records(end)
        except OffsetOutOfRange:
            return LogPiece()  # expired just now
        except FileNotFoundError:
            if self.at < self._segments.minimum:
                return LogPiece()
            return LogPiece(damage=self._give_segment_up("the file is missing"))

    # -- records

    def _read_records(self, end: PhysicalOffset) -> LogPiece:
        at = self.at
        # up to the end of a page: what the next piece needs of it is not in the cache any more
        whole_pages = PIECE_BYTES - (at - self._segments.base_of(at)) % PAGE_BYTES
        wanted = min(whole_pages, end - at, self._segment_end() - at)
        octets, unread = _read(self._segments, at, wanted)
        records = 0
        for batch in scan_segment(memoryview(octets), at):
            records += len(batch)
            # only the exact decoder knows whether a blank fits the segment
            self.at = batch.ended_by.physical_offset if isinstance(batch.ended_by, Blank) else batch.end
        if self.at > at:
            return LogPiece(len(octets), records)
        if unread is None and len(octets) < wanted:
            size = at - self._segments.base_of(at) + len(octets)
            reason = f"the file has {size} bytes, a segment of this log {self._segments.segment_size}"
            return LogPiece(len(octets), damage=self._give_segment_up(reason))
        return self._decide(end)

    def _decide(self, end: PhysicalOffset) -> LogPiece:
        """Have the exact decoder decide what begins here."""
        at = self.at
        found, size, unread = _decode(self._segments, at)
        match found:
            case StoredMessage() if at + size <= end:
                self.at = PhysicalOffset(at + size)
                return LogPiece(size, 1)
            case StoredMessage():
                words = f"is damaged: its {size} bytes reach over the log's end at {end}"
            case Blank():
                self.at = self._segment_end()
                return LogPiece()
            case EndOfData():
                words = "is damaged: nothing was written there"
            case Torn(reason=reason) | Corrupt(reason=reason):
                words = f"is damaged: {reason}" if unread is None else f"cannot be read: {unread.reason}"
        limit = min(end, self._segment_end())
        if RECORD_SIZE_MINIMUM <= size <= limit - at and (at + size == limit or self._goes_on(at + size, limit)):
            self.at = PhysicalOffset(at + size)
        else:
            self._search_from(at + 1 if unread is None else unread.after, limit)
        damage = StoreDamaged(self._segments.path_of(at), f"the record at offset {at} {words}", record_at=at)
        return LogPiece(damage=damage)

    # -- after damage

    def _search_from(self, at: int, limit: PhysicalOffset) -> None:
        """Look for a whole record from `at` on; at the limit, the end of a segment or of the log, one record ends."""
        self.at, self._is_searching = PhysicalOffset(min(at, limit)), at < limit

    def _search(self, end: PhysicalOffset) -> LogPiece:
        """Look for the next whole record in one piece. Bytes that cannot be read belong to the damage before them."""
        at, limit = self.at, min(end, self._segment_end())
        wanted = min(PIECE_BYTES, limit - at)
        octets, unread = _read(self._segments, at, wanted)
        for match in RECORD_MAGIC.finditer(octets, SIZE.size):
            candidate = at + match.start() - SIZE.size
            if self._goes_on(candidate, limit):
                self.at, self._is_searching = PhysicalOffset(candidate), False
                return LogPiece(len(octets))
        if unread is not None:
            after: int = unread.after
        elif len(octets) < wanted or wanted == limit - at:
            after = limit
        else:
            after = at + wanted - SIZE_AND_MAGIC.size + 1  # a magic code may lie over the piece's end
        self._search_from(after, limit)
        return LogPiece(len(octets))

    def _goes_on(self, at: int, limit: PhysicalOffset) -> bool:
        """Return whether a whole record, or the blank up to the segment's end, begins there."""
        if at >= limit:
            return False
        return isinstance(_decode(self._segments, PhysicalOffset(at))[0], StoredMessage | Blank)

    def _give_segment_up(self, reason: str) -> StoreDamaged:
        at, path = self.at, self._segments.path_of(self.at)
        self.at, self._is_searching = self._segment_end(), False
        return StoreDamaged(path, reason, record_at=at)

    def _segment_end(self) -> PhysicalOffset:
        return _segment_end(self._segments, self.at)


def check_readable(segments: SegmentList, at: PhysicalOffset) -> None:
    """Raise what keeps the bytes of the record at an offset from being read: OSError, StoreDamaged, OffsetOutOfRange.

    Whoever reads them through a mapping asks this first if they may be unreadable, because there they would end the
    process. Whether they are whole is not checked.
    """
    found, _, unread = _decode(segments, at)
    if unread is not None:
        raise OSError(unread.number, unread.reason, fspath(segments.path_of(at)))
    if isinstance(found, Torn) and found.reason == FILE_ENDS:
        raise StoreDamaged(segments.path_of(at), FILE_ENDS, record_at=at)


class _Unread(NamedTuple):
    """The number of the error why bytes could not be read, its text, and the offset of the first page after those."""

    number: int
    reason: str
    after: PhysicalOffset


def _read(segments: SegmentList, at: PhysicalOffset, size: int) -> tuple[bytes, _Unread | None]:
    """Return the bytes of a segment from an offset on, up to the first page that cannot be read, or the file's end."""
    path, base = segments.path_of(at), segments.base_of(at)
    position = at - base
    read_once = segments.disk.read_once
    try:
        return read_once(path, position, size), None
    except OSError as error:
        if error.errno not in UNREADABLE:
            raise
    octets = b""
    while len(octets) < size:
        begin = position + len(octets)
        page_end = begin - begin % PAGE_BYTES + PAGE_BYTES
        try:
            page = read_once(path, begin, min(page_end - begin, size - len(octets)))
        except OSError as error:
            if error.errno not in UNREADABLE:
                raise
            return octets, _Unread(error.errno, str(error.strerror), PhysicalOffset(base + page_end))
        if not page:
            break
        octets += page
    return octets, None


def _decode(segments: SegmentList, at: PhysicalOffset) -> tuple[Decoded, int, _Unread | None]:
    """Return what `decode_record` says of the offset, the size that is stated there, and why it could not be read.

    The result says nothing else if the bytes could not be read.
    """
    room = _segment_end(segments, at) - at
    octets, unread = _read(segments, at, min(room, HEAD_BYTES))
    if len(octets) < min(room, HEAD_BYTES):
        return Torn(at, FILE_ENDS), 0, unread
    if room < SIZE_AND_MAGIC.size:
        return decode_record(memoryview(octets), 0, at), 0, None
    size, magic = SIZE_AND_MAGIC.unpack_from(octets)
    if magic == MAGIC_BLANK:
        if size == room:
            return Blank(at, size), size, None
        return Corrupt(at, f"a blank of {size} bytes, but {room} are left in the segment"), size, None
    if magic not in TOPIC_LENGTHS or size <= len(octets):
        return decode_record(memoryview(octets), 0, at), size, None
    if size > room:
        return Torn(at, f"the record takes {size} bytes, but {room} are left in the segment"), size, None
    if not 0 <= size - size_with_body(octets) <= BESIDE_BODY_MAX:
        # before anything of such a size is read into memory
        return Corrupt(at, f"body length does not fit size {size}"), size, None
    octets, unread = _read(segments, at, size)
    if len(octets) < size:
        return Torn(at, FILE_ENDS), size, unread
    return decode_record(memoryview(octets), 0, at), size, None


def _segment_end(segments: SegmentList, at: PhysicalOffset) -> PhysicalOffset:
    return PhysicalOffset(segments.base_of(at) + segments.segment_size)
