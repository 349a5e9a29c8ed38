"""Real records of a wanted size, and logs to put them in."""

from __future__ import annotations

from concurrent.futures import Executor, Future
from pathlib import Path
from typing import Any

from quarry_mq.store.commitlog import CommitLogReader, CommitLogWriter, SegmentList
from quarry_mq.store.fs.protocol import Disk
from quarry_mq.store.message import Host, Message, PhysicalOffset, QueueOffset
from quarry_mq.store.record import StoredMessage, encode_record, record_size
from quarry_mq.store.record.layout import CRC_PROPERTY_SIZE

LOG = Path("/store/commitlog")
HOST = Host(b"\x7f\0\0\x01", 10911)
PROPERTIES = b"TAGS\x01blue\x02"
SMALLEST = 92 + len(PROPERTIES)


class SameThread(Executor):
    """Runs what is submitted at once, so that a test sees every operation in one order."""

    def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        try:
            future.set_result(fn(*args, **kwargs))
        except Exception as error:
            future.set_exception(error)
        return future


def open_log(disk: Disk, segment_size: int | None, directory: Path = LOG, *, mapped_max: int = 64) -> SegmentList:
    disk.make_directories(directory)
    return SegmentList(disk, directory, segment_size, mapped_max=mapped_max, executor=SameThread())


def record(at: int, size: int, number: int = 0, *, crc_property: bool = False) -> bytes:
    """A record of exactly `size` bytes for physical offset `at`; its body depends on both and on `number`."""
    smallest = SMALLEST + CRC_PROPERTY_SIZE * crc_property
    body = (f"{number}@{at} " * size).encode()[: size - smallest]
    message = Message("t", number % 8, body, {}, 1_700_000_000_000, HOST, HOST)
    assert record_size(message, PROPERTIES) == size - smallest + SMALLEST, f"no record has {size} bytes"
    return encode_record(
        message,
        queue_offset=QueueOffset(number),
        physical_offset=PhysicalOffset(at),
        store_timestamp_ms=1_700_000_000_001,
        raw_properties=PROPERTIES,
        crc_property=crc_property,
    )


def append(
    writer: CommitLogWriter, size: int, number: int = 0, *, crc_property: bool = False
) -> tuple[PhysicalOffset, bytes]:
    """Buffer one record; returns where it goes and its bytes."""
    at = writer.place(size)
    encoded = record(at, size, number, crc_property=crc_property)
    writer.add(encoded)
    return at, encoded


def records_in(segments: SegmentList, start: int | None = None) -> dict[int, bytes]:
    """Every record that a scan from `start` finds, by offset."""
    reader = CommitLogReader(segments)
    found = {}
    for outcome in reader.scan(segments.minimum if start is None else PhysicalOffset(start)):
        if isinstance(outcome, StoredMessage):
            found[int(outcome.physical_offset)] = bytes(reader.read(outcome.physical_offset, outcome.size))
    return found


def log_end(segments: SegmentList) -> PhysicalOffset:
    """Where recovery would cut: behind the last good record or blank."""
    end = segments.minimum
    for outcome in CommitLogReader(segments).scan(segments.minimum):
        if not hasattr(outcome, "size"):
            break
        end = PhysicalOffset(outcome.physical_offset + outcome.size)
    return end
