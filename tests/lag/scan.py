"""Counts the messages of queues from the records of the raw log, without consume queues."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from quarry_mq.store.fs import Disk
from quarry_mq.store.message import PhysicalOffset, QueueId
from quarry_mq.store.record import StoredMessage, decode_record

LIGHT_NAMES = "INNER_MULTI_DISPATCH"
LIGHT_OFFSETS = "INNER_MULTI_QUEUE_OFFSET"


class Scanned(NamedTuple):
    """A message at its place in a queue. `at` is where its record begins in the log."""

    offset: int
    at: int
    stored_ms: int
    properties: Mapping[str, str]

    @property
    def key(self) -> str:
        return self.properties["UNIQ_KEY"]


Queues = Mapping[QueueId, list[Scanned]]


def records(disk: Disk, log: Path) -> Iterator[StoredMessage]:
    """All records of the files that are there."""
    for entry in sorted(disk.list_directory(log)):
        if not entry.name.isdecimal():
            continue
        content, position = memoryview((log / entry.name).read_bytes()), 0
        while position < len(content):
            found = decode_record(content, position, PhysicalOffset(int(entry.name) + position))
            if not isinstance(found, StoredMessage):
                break  # the blank at the segment's end, or nothing yet
            yield found
            position += found.size


def scan(disk: Disk, log: Path, gone: Mapping[str, int]) -> Queues:
    """The messages of all queues by offset. `gone`: where in the log topics were deleted."""
    found: dict[QueueId, list[Scanned]] = defaultdict(list)
    for record in records(disk, log):
        for queue, offset in _places(record):
            if record.physical_offset >= gone.get(queue.topic, 0):
                message = Scanned(offset, record.physical_offset, record.store_timestamp_ms, record.properties)
                found[queue].append(message)
    for queue, messages in found.items():
        offsets = [each.offset for each in messages]
        assert offsets == list(range(offsets[0], offsets[0] + len(offsets))), f"{queue}: {offsets}"
    return found


def light_places(record: StoredMessage) -> dict[QueueId, int]:
    """The offset that a record says it has in each light queue."""
    properties = record.properties
    if LIGHT_NAMES not in properties or record.topic.startswith(("%RETRY%", "rmq_sys_")):
        return {}
    names, offsets = (properties[name].split(",") for name in (LIGHT_NAMES, LIGHT_OFFSETS))
    return {QueueId(name, 0): int(offset) for name, offset in zip(names, offsets, strict=True)}


def _places(record: StoredMessage) -> Iterator[tuple[QueueId, int]]:
    yield QueueId(record.topic, record.queue_number), record.queue_offset
    yield from light_places(record).items()
