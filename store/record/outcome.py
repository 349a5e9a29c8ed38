"""Every way that reading a record can end, as types (formats §2.12)."""

from __future__ import annotations

from dataclasses import dataclass

from store.message import Host
from store.offsets import PhysicalOffset, QueueOffset


@dataclass(frozen=True, slots=True)
class StoredMessage:
    """One whole record of the commit log (formats §2.2). `body` and `raw_properties` are views of the record."""

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
        """The decoded properties (formats §2.6); decoded at each access."""
        from store.record.properties import decode_properties

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
    """A record that is cut short: its beginning is there, its end is missing or still zero."""

    physical_offset: PhysicalOffset
    reason: str


@dataclass(frozen=True, slots=True)
class Corrupt:
    """Bytes that are no record, or a record whose checks fail."""

    physical_offset: PhysicalOffset
    reason: str


Decoded = StoredMessage | Blank | EndOfData | Torn | Corrupt
