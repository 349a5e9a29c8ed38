"""Stores of a log whose messages, times and queues a test chooses."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from pathlib import Path

from quarry_mq.store.fs import PosixDisk
from quarry_mq.store.layout.paths import StorePaths, segment_name
from quarry_mq.store.message import Message, PhysicalOffset, QueueOffset
from quarry_mq.store.record import encode_properties, encode_record

Stored = tuple[Message, int]
"""A message, and the ms since 1970 when it was stored."""


def write_store(root: Path, stored: Iterable[Stored], *, first_offset: int = 0, begin: int = 0) -> None:
    """A store of nothing but a log with these messages, in one segment, which begins at `begin`.

    Queues begin at `first_offset`.
    """
    log = bytearray()
    next_offsets: Counter[tuple[str, int]] = Counter()
    for each, stored_ms in stored:
        queue = each.topic, each.queue_number
        at = QueueOffset(first_offset + next_offsets[queue]), PhysicalOffset(begin + len(log)), stored_ms
        log += encode_record(each, *at, encode_properties(each.properties), crc_property=True)
        next_offsets[queue] += 1
    disk, directory = PosixDisk(), StorePaths(root).commit_log
    disk.make_directories(directory)
    segment = disk.create_segment(directory / segment_name(PhysicalOffset(begin)), max(1 << 14, len(log)))
    segment.write(0, bytes(log))
    segment.close()
