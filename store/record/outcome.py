"""Every way that reading a record can end, as types (docs/formats/commit-log.md, "Reading a record")."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from quarry_mq.store.message import Host
from quarry_mq.store.offsets import PhysicalOffset, QueueOffset
from quarry_mq.store.record.properties import decode_properties


class StoredMessage(NamedTuple):
    """One whole record of the commit log. `body` is a view into the segment, everything else is a copy.

    A NamedTuple because one is made per record read: a frozen dataclass of seventeen fields takes four times
    as long to build.
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
        """The decoded properties; decoded at each access."""
        return decode_properties(self.raw_properties)


@dataclass(frozen=True, slots=True)
class Blank:
    """The filler at the end of a segment: reading goes on at the next segment's start."""

    physical_offset: PhysicalOffset
    size: int


@dataclass(frozen=True, slots=True)
class EndOfData:
    """Zero bytes: nothing was ever written here."""

    physical_offset: PhysicalOffset


@dataclass(frozen=True, slots=True)
class Torn:
    """A record of which a part is missing: still zero, or beyond the end of the segment."""

    physical_offset: PhysicalOffset
    reason: str


@dataclass(frozen=True, slots=True)
class Corrupt:
    """Bytes that are no record, or a record whose checks fail."""

    physical_offset: PhysicalOffset
    reason: str


Decoded = StoredMessage | Blank | EndOfData | Torn | Corrupt
