"""RocketMQ's `checkpoint` file says how far the store was flushed (docs/formats/checkpoint.md).

| field             | offset | bytes | type                                                               |
|-------------------|--------|-------|--------------------------------------------------------------------|
| log flushed       | 0      | 8     | i64, ms: store time of the newest record known flushed             |
| file queues       | 8      | 8     | i64, ms: store time of the newest record in a file consume queue   |
| index             | 16     | 8     | i64, ms: end time of the newest full, flushed index file           |
| master flushed    | 24     | 8     | i64, physical offset: replication                                  |
| confirmed         | 32     | 8     | i64, physical offset: what consumers may see                       |
| file queues up to | 40     | 8     | i64, physical offset: the newest record in a file queue; since 5.5 |
| zero              | 48     | 4048  |                                                                    |
"""

from __future__ import annotations

from dataclasses import dataclass
from struct import Struct
from typing import Final

from quarry_mq.store.message import PhysicalOffset

CHECKPOINT_SIZE: Final = 4096
FIELDS: Final = Struct(">6q")
TIME_MARGIN_MS: Final = 3_000
"""Milliseconds that RocketMQ starts before the time in the file: store times of neighbouring records may be out of
order.
"""
UNKNOWN: Final = PhysicalOffset(0)

assert FIELDS.size == 48, "fields: table and struct disagree"


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """The checkpoint has the six fields of the file; zero means that nothing is known."""

    log_flushed_ms: int = 0
    file_queues_ms: int = 0
    index_ms: int = 0
    master_flushed_up_to: PhysicalOffset = UNKNOWN
    confirmed_up_to: PhysicalOffset = UNKNOWN
    file_queues_up_to: PhysicalOffset = UNKNOWN


def encode_checkpoint(checkpoint: Checkpoint) -> bytes:
    """Return the whole file."""
    fields = FIELDS.pack(
        checkpoint.log_flushed_ms,
        checkpoint.file_queues_ms,
        checkpoint.index_ms,
        checkpoint.master_flushed_up_to,
        checkpoint.confirmed_up_to,
        checkpoint.file_queues_up_to,
    )
    return fields.ljust(CHECKPOINT_SIZE, b"\0")


def decode_checkpoint(content: bytes) -> Checkpoint:
    """Decode a file of any length. RocketMQ fills a short one up with zeros; so does this function.

    The file has no checksum. A negative field is damage and counts as unknown.
    """
    fields = FIELDS.unpack(content[: FIELDS.size].ljust(FIELDS.size, b"\0"))
    log_ms, queues_ms, index_ms, *offsets = (max(0, field) for field in fields)
    return Checkpoint(log_ms, queues_ms, index_ms, *map(PhysicalOffset, offsets))
