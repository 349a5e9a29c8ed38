"""The messages that the store takes in and gives out, and a type for each kind of offset and address.

The types keep offsets and addresses of different kinds from being mixed up.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from ipaddress import IPv4Address, ip_address
from typing import Final, NamedTuple, NewType

PhysicalOffset = NewType("PhysicalOffset", int)
"""A physical offset is a byte address in the endless commit log."""

QueueOffset = NewType("QueueOffset", int)
"""A queue offset is the index of an entry in one consume queue."""

QUEUE_NUMBER_MAX: Final = 2**31 - 1
"""Queue numbers are signed 32-bit integers on the wire and on disk."""


class QueueId(NamedTuple):
    """A queue id names one consume queue: a topic and the number of the queue in it (light queues: always 0)."""

    topic: str
    number: int


class QueueBounds(NamedTuple):
    """The bounds of a queue are its min offset (first kept entry, inclusive) and max offset (next free index,
    exclusive).

    The queue is empty when they are equal.
    """

    minimum: QueueOffset
    maximum: QueueOffset


class QueueExtent(NamedTuple):
    """The extent of a queue is its bounds, and where the record of its first entry lies: None when the
    queue is empty.
    """

    minimum: QueueOffset
    maximum: QueueOffset
    begins_at: PhysicalOffset | None


class Host(NamedTuple):
    """A peer address as records hold it: 4 or 16 address bytes and a port."""

    address: bytes
    port: int


@lru_cache(maxsize=4096)
def host_text(host: Host) -> str:
    """Return `address:port`, with an IPv6 address in brackets."""
    address = ip_address(host.address)
    return f"{address}:{host.port}" if isinstance(address, IPv4Address) else f"[{address}]:{host.port}"


class Message(NamedTuple):
    """A message is what a producer hands in, complete but for what the append decides.

    The append decides queue offset, physical offset, store time and light-queue offsets. It is a NamedTuple because one
    is made per send: building it costs a third of building a frozen dataclass.
    """

    topic: str
    queue_number: int
    body: bytes
    properties: Mapping[str, str]
    born_timestamp_ms: int
    born_host: Host
    store_host: Host
    flag: int = 0
    system_flag: int = 0
    reconsume_times: int = 0
    prepared_transaction_offset: int = 0


class MessageCopy(Message):
    """A message copy is made by the broker from a stored message: it may be as large as a segment allows."""

    __slots__ = ()


class EncodedMessage(NamedTuple):
    """An encoded message has its properties in their stored form (`store.record.properties`) already.

    It gets an entry in the queue that it names and in no other: no transaction, no light queues. `tags_code` is that of
    the properties.
    """

    topic: str
    queue_number: int
    body: bytes
    raw_properties: bytes
    born_timestamp_ms: int
    born_host: Host
    store_host: Host
    system_flag: int
    tags_code: int
    flag: int = 0


class Appended(NamedTuple):
    """The result of an append has offsets, size and store time of one message."""

    queue_offset: QueueOffset
    physical_offset: PhysicalOffset
    size: int
    store_timestamp_ms: int


class DispatchRequest(NamedTuple):
    """A dispatch request describes one record; all derived entries are made from it. It is immutable.

    `light_queues` holds (name, queue offset) of each distinct light queue the record is dispatched to. The `properties`
    are those of the stored record.
    """

    topic: str
    queue_number: int
    queue_offset: QueueOffset
    physical_offset: PhysicalOffset
    size: int
    tags_code: int
    store_timestamp_ms: int
    system_flag: int
    properties: Mapping[str, str]
    light_queues: tuple[tuple[str, QueueOffset], ...]


class ConsumeQueueEntry(NamedTuple):
    """A consume queue entry points at one record (docs/formats/consume-queue.md). `store_timestamp_ms` is None in file
    queues.
    """

    queue_offset: QueueOffset
    physical_offset: PhysicalOffset
    size: int
    tags_code: int
    store_timestamp_ms: int | None


EncodedBatch = tuple[bytes, list[DispatchRequest], list[Appended], dict[tuple[str, int], QueueOffset]]
"""A batch is its concatenated records, a dispatch request and a result per message, and the next
offsets of its queues.
"""

UnknownQueues = list[tuple[str, int]]
"""The queues whose next offsets are not known and have to be loaded before a batch is made; some may be
listed twice.
"""
