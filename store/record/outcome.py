"""The module has a type for every way that reading a record can end (see "Reading a record" in
docs/formats/commit-log.md).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from quarry_mq.store.message import Host
from quarry_mq.store.offsets import PhysicalOffset, QueueOffset
from quarry_mq.store.record.properties import decode_properties


class StoredMessage(NamedTuple):
    """A stored message is one whole record of the commit log. `body` is a view into the segment, everything else is a
    copy.

    It is a NamedTuple because one is made per record read: a frozen dataclass of seventeen fields takes four times as
    long to build.
    """

    size: int
    magic: int
    body_crc: int
    queue_number: int
    flag: int
    queue_offset: QueueOffset
    physical_offset: PhysicalOffset
    system_flag: int
    born_timestamp_ms: int
    born_host: Host
    store_timestamp_ms: int
    store_host: Host
    reconsume_times: int
    prepared_transaction_offset: int
    body: memoryview
    topic: str
    raw_properties: bytes

    @property
    def properties(self) -> dict[str, str]:
        """Return the decoded properties; they are decoded at each access."""
        return decode_properties(self.raw_properties)


@dataclass(frozen=True, slots=True)
class Blank:
    """A blank is the filler at the end of a segment: reading continues at the next segment's start."""

    physical_offset: PhysicalOffset
    size: int


@dataclass(frozen=True, slots=True)
class EndOfData:
    """The bytes are zero: nothing was ever written here."""

    physical_offset: PhysicalOffset


@dataclass(frozen=True, slots=True)
class Torn:
    """A part of the record is missing: still zero, or beyond the end of the segment."""

    physical_offset: PhysicalOffset
    reason: str


@dataclass(frozen=True, slots=True)
class Corrupt:
    """The bytes are no record, or a record whose checks fail."""

    physical_offset: PhysicalOffset
    reason: str


Decoded = StoredMessage | Blank | EndOfData | Torn | Corrupt
