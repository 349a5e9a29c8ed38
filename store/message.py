"""Messages as the store takes them in and gives them out."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from ipaddress import IPv4Address, ip_address
from typing import NamedTuple

from quarry_mq.store.offsets import PhysicalOffset, QueueOffset


class Host(NamedTuple):
    """A peer address as records hold it: 4 or 16 address bytes and a port."""

    address: bytes
    port: int


@lru_cache(maxsize=4096)
def host_text(host: Host) -> str:
    """`address:port`, an IPv6 address in brackets."""
    address = ip_address(host.address)
    return f"{address}:{host.port}" if isinstance(address, IPv4Address) else f"[{address}]:{host.port}"


class Message(NamedTuple):
    """What a producer hands in, complete but for what the append decides.

    The append decides queue offset, physical offset, store time and light-queue offsets.
    A NamedTuple because one is made per send: building it costs a third of a frozen dataclass.
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
    """A message that the broker makes of one that is stored: it may be as large as a segment takes."""

    __slots__ = ()


class EncodedMessage(NamedTuple):
    """A message whose properties are in their stored form (`store.record.properties`) already.

    It is queued where it says and nowhere else: no transaction, no light queues. `tags_code` is that of the properties.
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


class Appended(NamedTuple):
    """Where one message went."""

    queue_offset: QueueOffset
    physical_offset: PhysicalOffset
    size: int
    store_timestamp_ms: int


class DispatchRequest(NamedTuple):
    """The immutable description of one record from which all derived entries are made.

    `light_queues` holds (name, queue offset) of each distinct light queue the record is dispatched to.
    `properties` are those of the stored record.
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
    """One unit of a consume queue (docs/formats/consume-queue.md). `store_timestamp_ms` is None in file queues."""

    queue_offset: QueueOffset
    physical_offset: PhysicalOffset
    size: int
    tags_code: int
    store_timestamp_ms: int | None


Round = tuple[bytes, list[DispatchRequest], list[Appended], dict[tuple[str, int], QueueOffset]]
"""Records behind each other; of each message what is dispatched and where it went; the next offsets of their queues."""

UnknownQueues = list[tuple[str, int]]
"""What is missing for a round: the queues whose next offsets are not known, some perhaps doubled."""
