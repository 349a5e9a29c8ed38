"""The broker's own copies of messages: delayed deliveries, returns to a group, dead letters.

An accepted message always leaves enough space for the properties that its copies add (`server.wire.validate`).
Messages of older stores and of RocketMQ may fill their records completely. Such a message must not wait for ever for a
copy that cannot be written. So its copy first leaves out those of the broker's own properties that are not needed, then
properties of the user, the largest first.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final, Protocol

import structlog

from quarry_mq.protocol.messages.property_names import (
    DEAD_LETTER_MESSAGE_ID,
    DEAD_LETTER_TOPIC,
    DELIVER_AT_MS,
    DEQUEUED_MS,
    LIGHT_QUEUE_OFFSETS,
    LIGHT_QUEUES,
    REAL_QUEUE,
    REAL_TOPIC,
    RECALLED_KEY,
    RESERVED_PROPERTIES,
    ROLL_TIMES,
    TIMER_OUT_MS,
    TRANSACTION_ID,
    UNIQUE_KEY,
)
from quarry_mq.server.append.group_commit import Stored
from quarry_mq.server.wire.validate import LIGHT_QUEUE_OFFSET_SIZE
from quarry_mq.store.consumequeue.dispatch import may_name_light_queues
from quarry_mq.store.errors import Invalid
from quarry_mq.store.message import Host, Message, MessageCopy
from quarry_mq.store.pending.rows import PENDING_TOPICS
from quarry_mq.store.record import StoredMessage, encode_properties
from quarry_mq.store.record.layout import CRC_PROPERTY_SIZE, PROPERTIES_LENGTH_MAXIMUM

log = structlog.get_logger(__name__)

SIZE_MAX: Final = PROPERTIES_LENGTH_MAXIMUM - CRC_PROPERTY_SIZE
SHOWN_MAX: Final = 60

_SAID_ELSEWHERE: Final = (DEAD_LETTER_MESSAGE_ID, TRANSACTION_ID, TIMER_OUT_MS, REAL_QUEUE, REAL_TOPIC)
"""Properties that a copy can do without: it says the same elsewhere, or it has arrived where they point to."""
_NEEDED: Final = frozenset({DEAD_LETTER_TOPIC, DELIVER_AT_MS, DEQUEUED_MS, ROLL_TIMES, RECALLED_KEY, UNIQUE_KEY})
"""Properties that identify the copy. Together they always fit, except perhaps with an id made by another broker."""
_WHERE_IT_GOES: Final = frozenset({REAL_TOPIC, REAL_QUEUE})
"""Properties that are needed as long as the message is pending."""


class Commit(Protocol):
    """The part of the group commit that sends copies."""

    def send(self, messages: Sequence[Message], stored: Stored) -> None: ...

    def send_durably(self, messages: Sequence[Message], stored: Stored) -> None: ...


def copy_of(
    record: StoredMessage, *, topic: str, queue_number: int, properties: Mapping[str, str], store_host: Host
) -> Message:
    """Return the message of a record as a message for another queue. The result does not name its original."""
    return Message(
        topic=topic,
        queue_number=queue_number,
        body=bytes(record.body),
        properties=properties,
        born_timestamp_ms=record.born_timestamp_ms,
        born_host=record.born_host,
        store_host=store_host,
        flag=record.flag,
        system_flag=record.system_flag,
        reconsume_times=record.reconsume_times,
    )


def is_final(error: Exception) -> bool:
    """Return whether a copy refused with this error will always be refused, rather than only for now."""
    return isinstance(error, (Invalid, ValueError, TypeError, ArithmeticError, struct.error))


class CopyMetrics(Protocol):
    def left_out(self, properties: int) -> None: ...

    def dead_letter_refused(self) -> None: ...


class Copies:
    """Sends copies of messages after making each of them fit into a record."""

    def __init__(self, commit: Commit, store_host: Callable[[], Host], metrics: CopyMetrics) -> None:
        self._commit = commit
        self.store_host: Final = store_host
        """Returns the broker's address, which each copy names as the place where it was stored."""
        self.metrics = metrics

    def send(self, messages: Sequence[Message], stored: Stored) -> None:
        """Send copies of messages that stay in the log until the copies are on the disk."""
        self._commit.send([self._fitted(message) for message in messages], stored)

    def move(self, messages: Sequence[Message], stored: Stored) -> None:
        """Send copies that replace the originals for a group; `stored` is called when the copies are on the disk."""
        self._commit.send_durably([self._fitted(message) for message in messages], stored)

    def _fitted(self, message: Message) -> Message:
        properties, left_out = fitted(message.topic, message.properties)
        if left_out:
            names = ", ".join(name[:SHOWN_MAX] for name in left_out)
            message_id = message.properties.get(UNIQUE_KEY, "")[:SHOWN_MAX]
            log.warning("a copy goes without some properties", topic=message.topic, message_id=message_id, names=names)
            self.metrics.left_out(len(left_out))
        # a copy may be larger than a message that senders may send
        return MessageCopy(*message._replace(properties=properties))


def fitted(topic: str, properties: Mapping[str, str]) -> tuple[Mapping[str, str], list[str]]:
    """Return the properties that fit a message of the topic, and the names of those that are left out."""
    size = _encoded_size(properties)
    if size is not None and size + _offsets_size(topic, properties) <= SIZE_MAX:
        return properties, []
    each = {name: _encoded_size({name: value}) for name, value in properties.items()}
    sizes = {name: size for name, size in each.items() if size is not None}
    kept = {name: properties[name] for name in sizes}
    size = sum(sizes.values()) + _offsets_size(topic, kept)
    for name in _in_turn(topic, sizes):
        if size <= SIZE_MAX:
            break
        size -= sizes[name] + (_offsets_size(topic, kept) if name == LIGHT_QUEUES else 0)
        del kept[name]
    return kept, [name for name in properties if name not in kept]


def _in_turn(topic: str, sizes: Mapping[str, int]) -> Iterator[str]:
    """Yield the names of the properties in the order in which they are left out."""
    waits = topic in PENDING_TOPICS and RECALLED_KEY not in sizes
    first = [name for name in _SAID_ELSEWHERE if name in sizes and not (waits and name in _WHERE_IT_GOES)]
    largest = sorted((name for name in sizes if name not in first), key=lambda name: -sizes[name])
    of_user = [name for name in largest if name not in RESERVED_PROPERTIES and name != LIGHT_QUEUES]
    needed = _NEEDED | (_WHERE_IT_GOES if waits else frozenset())
    others = [name for name in largest if name not in of_user and name not in needed]
    last = [] if waits else [UNIQUE_KEY] if UNIQUE_KEY in sizes else []
    yield from (*first, *of_user, *others, *last)


def _encoded_size(properties: Mapping[str, str]) -> int | None:
    """Return the encoded size, or None if the properties are too long or one of them cannot be encoded."""
    try:
        return len(encode_properties(properties))
    except Invalid:
        return None


def _offsets_size(topic: str, properties: Mapping[str, str]) -> int:
    """Return the bytes that the record needs for the offsets of its light queues, beside their names."""
    if LIGHT_QUEUES not in properties or not may_name_light_queues(topic):
        return 0
    names = properties[LIGHT_QUEUES].split(",")
    return len(LIGHT_QUEUE_OFFSETS) + 2 + LIGHT_QUEUE_OFFSET_SIZE * len(names)
