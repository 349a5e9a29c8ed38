"""The fields of many records as columns, and the runs of records that a scan of the log finds.

Fields are gathered from many records at once by the rules of `store.record.codec.decode_record`, applied to arrays. A
row that breaks a rule is only marked: the exact decoder judges it. So a rule may be broader here, never narrower. The
plain scan decodes one record after the other: it is slow, and the reference for faster ones.

Runs are the seam between reading the log and updating derived data.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple, Protocol

import numpy as np

from quarry_mq.store.commitlog import CommitLogReader, SegmentList
from quarry_mq.store.consumequeue.dispatch import OffsetAssignment, dispatch_request, is_queued
from quarry_mq.store.message import DispatchRequest, PhysicalOffset
from quarry_mq.store.record import Blank, Corrupt, Decoded, EndOfData, StoredMessage, Torn
from quarry_mq.store.record.codec import topic_text
from quarry_mq.store.record.layout import (
    CRC_PROPERTY_SIZE,
    CRC_PROPERTY_START,
    ENTRY_END,
    HEADS,
    HOST_BITS_SHIFT,
    MAGIC_V1,
    MAGIC_V2,
    PORT_MAXIMUM,
    PROPERTIES_LENGTH,
    QUEUE_OFFSET_MAXIMUM,
    SECTOR_SIZE,
    TOPIC_LENGTH_V1,
    TOPIC_LENGTH_V2,
)
from quarry_mq.store.scan.columns import Bytes, Flags, Integers, RecordColumns, distinct, pieces


@dataclass(frozen=True, slots=True)
class FoundRecords:
    """A run is whole records that follow each other in the log, every check passed; blanks between them are skipped.

    One run begins where the one before ended. A run without records ends a segment, or is the last one.
    """

    end: PhysicalOffset
    """The offset of the next record: after the last record or blank of the run."""
    records: int
    dispatched: int
    """The number of records at or above the offset from which dispatch was asked for."""
    requests: Sequence[DispatchRequest]
    """The requests of those records that queues hold, in log order."""
    last_stored_ms: int | None
    """Store timestamp of the last record; None when the run has none."""
    stopped_by: EndOfData | Torn | Corrupt | None = None
    """The outcome that ended the log at `end`. The last run has it, unless a blank closes the last
    segment of the log.
    """


class LogScan(Protocol):
    """A log scan is one way of reading the log, as a generator function: it raises nothing before its first run is
    read.
    """

    def __call__(
        self,
        segments: SegmentList,
        start: PhysicalOffset,
        *,
        dispatch_from: PhysicalOffset,
        assignment: OffsetAssignment,
        from_device: bool,
    ) -> Iterator[FoundRecords]:
        """Yield the runs from `start`, the beginning of a record, in log order, up to what ends the log.

        Records below `dispatch_from` are checked and counted, those at or above it also make requests (`>=`: it is the
        exclusive end of what was dispatched). `numbering` may read the queues: the requests of a run are made when the
        run is asked for, which is after those of the run before were stored.

        With `from_device` bytes come from the device (`Disk.drop_cached`, `Disk.fetch`): a broker that died of a failed
        flush left pages in the cache that are not on the device and count as clean. If they were trusted, they would be
        reported as durable, and the next power cut would take them. Raises OSError for bytes that cannot be read.
        """


_HOLE: Final = bytes(SECTOR_SIZE)
_HOST_BITS: Final = 3


def _head_type(born_address_bytes: int, store_address_bytes: int) -> np.dtype[np.void]:
    """Return the type of everything before the body, field by field as `store.record.layout` lists them."""
    return np.dtype(
        [
            ("size", ">i4"),
            ("magic", ">u4"),
            ("body_crc", ">u4"),
            ("queue_number", ">i4"),
            ("flag", ">i4"),
            ("queue_offset", ">i8"),
            ("physical_offset", ">i8"),
            ("system_flag", ">i4"),
            ("born_timestamp_ms", ">i8"),
            ("born_address", f"V{born_address_bytes}"),
            ("born_port", ">i4"),
            ("store_timestamp_ms", ">i8"),
            ("store_address", f"V{store_address_bytes}"),
            ("store_port", ">i4"),
            ("reconsume_times", ">i4"),
            ("prepared_transaction_offset", ">i8"),
            ("body_length", ">i4"),
        ]
    )


_HEAD_TYPES: Final = tuple(_head_type(born, store) for store in (4, 16) for born in (4, 16))
assert [head.itemsize for head in _HEAD_TYPES] == [head.size for head in HEADS], "heads: types and structs disagree"

_BEFORE_HOSTS: Final = (
    "size",
    "magic",
    "body_crc",
    "queue_number",
    "flag",
    "queue_offset",
    "physical_offset",
    "system_flag",
    "born_timestamp_ms",
)
_AFTER_BORN_ADDRESS: Final = (
    "born_port",
    "store_timestamp_ms",
    "store_port",
    "reconsume_times",
    "prepared_transaction_offset",
    "body_length",
)


class Gathered(NamedTuple):
    """The result has the columns of all rows; they mean nothing in doubtful rows. `doubtful` is a bool array of shape
    (n,).
    """

    columns: RecordColumns
    topics: tuple[str, ...]
    doubtful: Flags


def gather(segment: Bytes, base: int | Integers, positions: Integers) -> Gathered:
    """Return the fields of the records at `positions` of the segment, which begins at physical offset `base`.

    With an array of bases, each record has its own.

    After each position there must be room for an IPv4 head, and for as many bytes as the stored size says.
    """
    head, body_position, whole = _heads(segment, positions)
    size, body_length = head["size"], head["body_length"]
    end = positions + size
    version_two = head["magic"] == MAGIC_V2
    whole &= version_two | (head["magic"] == MAGIC_V1)
    whole &= body_length >= 0
    whole &= head["physical_offset"] == positions + base
    for port in (head["born_port"], head["store_port"]):
        whole &= (port >= 0) & (port <= PORT_MAXIMUM)
    whole &= (head["queue_number"] >= 0) & (head["queue_offset"] >= 0) & (head["store_timestamp_ms"] >= 0)
    whole &= head["queue_offset"] <= QUEUE_OFFSET_MAXIMUM

    at = body_position + body_length
    width = np.where(version_two, TOPIC_LENGTH_V2.size, TOPIC_LENGTH_V1.size)
    topic_position = at + width
    # from here on, a row that fails is read at its own beginning: any existing position will do
    whole &= topic_position + PROPERTIES_LENGTH.size <= end
    at = np.where(whole, at, positions)
    topic_length = np.where(version_two, _short(segment, at), segment[at].view(np.int8).astype(np.int64))
    topic_end = topic_position + topic_length
    properties_position = topic_end + PROPERTIES_LENGTH.size
    whole &= (topic_length > 0) & (properties_position <= end)
    properties_length = _short(segment, np.where(whole, topic_end, positions))
    whole &= properties_position + properties_length == end
    whole &= (properties_length == 0) | (segment[end - 1] != 0)
    _doubt_holes(segment, whole, properties_position, properties_length)
    topics, topic_index = _topics(segment, whole, topic_position, topic_length)
    columns = RecordColumns(
        position=positions,
        size=size,
        magic=head["magic"],
        body_crc=head["body_crc"],
        queue_number=head["queue_number"],
        flag=head["flag"],
        queue_offset=head["queue_offset"],
        physical_offset=head["physical_offset"],
        system_flag=head["system_flag"],
        born_timestamp_ms=head["born_timestamp_ms"],
        store_timestamp_ms=head["store_timestamp_ms"],
        reconsume_times=head["reconsume_times"],
        prepared_transaction_offset=head["prepared_transaction_offset"],
        body_position=body_position,
        body_length=body_length,
        topic_position=topic_position,
        topic_length=topic_length,
        properties_position=properties_position,
        properties_length=properties_length,
        topic_index=topic_index,
        has_crc_property=_has_crc_property(segment, whole, end, properties_length),
    )
    return Gathered(columns, topics, ~whole)


def _heads(segment: Bytes, positions: Integers) -> tuple[dict[str, Integers], Integers, Flags]:
    """Return the head's fields by name, where the bodies begin, and which heads lie completely in the segment."""
    heads = pieces(segment, positions, HEADS[0].size).view(_HEAD_TYPES[0])
    fields = {name: heads[name].astype(np.int64) for name in (*_BEFORE_HOSTS, *_AFTER_BORN_ADDRESS)}
    body_position = positions + HEADS[0].size
    whole = np.ones(len(positions), np.bool_)
    host_bits = fields["system_flag"] >> HOST_BITS_SHIFT & _HOST_BITS
    if host_bits.any():
        for bits in range(1, _HOST_BITS + 1):
            body_position[host_bits == bits] = positions[host_bits == bits] + HEADS[bits].size
        whole = body_position <= len(segment)
        for bits in range(1, _HOST_BITS + 1):
            rows = np.flatnonzero(whole & (host_bits == bits))
            if len(rows):
                heads = pieces(segment, positions[rows], HEADS[bits].size).view(_HEAD_TYPES[bits])
                for name in _AFTER_BORN_ADDRESS:
                    fields[name][rows] = heads[name]
    return fields, body_position, whole


def _short(segment: Bytes, at: Integers) -> Integers:
    """Return the i16 at each of the positions."""
    return segment[at].view(np.int8).astype(np.int64) << 8 | segment[at + 1]


def _doubt_holes(segment: Bytes, whole: Flags, start: Integers, length: Integers) -> None:
    """Mark rows as doubtful whose properties hold a sector of zeros."""
    for row in np.flatnonzero(whole & (length >= SECTOR_SIZE)).tolist():
        if _HOLE in segment[start[row] : start[row] + length[row]].tobytes():
            whole[row] = False


def _topics(segment: Bytes, whole: Flags, start: Integers, length: Integers) -> tuple[tuple[str, ...], Integers]:
    """Return the distinct topics and the index of each row's topic. Rows whose topic is no text are
    marked as doubtful.
    """
    rows = np.flatnonzero(whole)
    index = np.zeros(len(whole), np.int64)
    names, index[rows] = distinct(segment, start[rows], length[rows])
    topics = [topic_text(name) for name in names]
    if None in topics:
        whole[rows] &= np.array([topic is not None for topic in topics])[index[rows]]
    return tuple(topic or "" for topic in topics), index


def _has_crc_property(segment: Bytes, whole: Flags, end: Integers, properties_length: Integers) -> Flags:
    """Return whether the last property of each row is the CRC, as a separate property."""
    possible = whole & (properties_length >= CRC_PROPERTY_SIZE)
    start = np.where(possible, end - CRC_PROPERTY_SIZE, 0)
    named = pieces(segment, start, len(CRC_PROPERTY_START)) == np.void(CRC_PROPERTY_START)
    alone = (properties_length == CRC_PROPERTY_SIZE) | (segment[start - 1] == ENTRY_END)
    present: Flags = possible & named & alone
    return present


RUN_RECORDS: Final = 1024  # entries per write batch: enough to amortise it, few enough to stay in cache


def scan_records(
    segments: SegmentList,
    start: PhysicalOffset,
    *,
    dispatch_from: PhysicalOffset,
    assignment: OffsetAssignment,
    from_device: bool,
) -> Iterator[FoundRecords]:
    """Scan as `LogScan` says."""
    reader = CommitLogReader(segments)
    log = _reread(segments, reader, start) if from_device else reader.scan(start)
    requests: list[DispatchRequest] = []
    end, records, dispatched, last_stored_ms = start, 0, 0, None
    stopped_by = None
    for found in log:
        match found:
            case StoredMessage():
                end = PhysicalOffset(found.physical_offset + found.size)
                records += 1
                last_stored_ms = found.store_timestamp_ms
                if found.physical_offset >= dispatch_from:
                    dispatched += 1
                    if is_queued(found.system_flag) and (request := dispatch_request(found, assignment)) is not None:
                        requests.append(request)
            case Blank():
                end = PhysicalOffset(found.physical_offset + found.size)
            case _:
                stopped_by = found
        if records == RUN_RECORDS:
            yield FoundRecords(end, records, dispatched, requests, last_stored_ms)
            requests = []
            records, dispatched, last_stored_ms = 0, 0, None
    yield FoundRecords(end, records, dispatched, requests, last_stored_ms, stopped_by)


def _reread(segments: SegmentList, reader: CommitLogReader, start: PhysicalOffset) -> Iterator[Decoded]:
    """Yield the records from `start` as they are on the device."""
    if start < segments.end_of_files:
        _reload(segments, start)
    for found in reader.scan(start):
        yield found
        if isinstance(found, Blank) and (following := found.physical_offset + found.size) < segments.end_of_files:
            _reload(segments, PhysicalOffset(following))


def _reload(segments: SegmentList, start: PhysicalOffset) -> None:
    path = segments.path_of(start)
    segments.disk.drop_cached(path)
    segments.disk.fetch(path, start - segments.base_of(start), segments.segment_size)
