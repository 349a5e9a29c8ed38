"""Keys and values of consume queues in RocksDB, byte for byte RocketMQ's (docs/formats/consume-queue.md).

All integers are big-endian and signed. Separator bytes: 01 between fields; 00 and 02 bound a range.

    family `default`  key    i32 topic length, 01, topic, 01, i32 queue number, 01, i64 queue offset
                      value  i64 physical offset, i32 record size, i64 tags code, i64 store timestamp in ms
    family `offset`   key    i32 topic length, 01, topic, 01, `max` or `min`, 01, i32 queue number
                      value  i64 physical offset, i64 queue offset      max: of the last entry, inclusive
                      key    of the topic CHECKPOINT_TOPIC, `max`, queue number 0
                      value  i64 end of what is dispatched, exclusive

So one queue is one ascending run of keys, and the length of a value in `offset` tells bounds from the checkpoint.
"""

from __future__ import annotations

from struct import Struct
from typing import Final, NamedTuple

import numpy as np

from quarry_mq.kv import KeyRange
from quarry_mq.protocol.names import CHECKPOINT_TOPIC
from quarry_mq.store.consumequeue.search import EntryColumns, Integers
from quarry_mq.store.message import PhysicalOffset, QueueId, QueueOffset

ENTRIES_FAMILY: Final = "default"
OFFSET_FAMILY: Final = "offset"

I32: Final = Struct(">i")
I64: Final = Struct(">q")
ENTRY: Final = Struct(">qiqq")  # physical offset, record size, tags code, store timestamp
BOUND: Final = Struct(">qq")  # physical offset, queue offset
ENTRY_SIZE: Final = 28
BOUND_SIZE: Final = 16
CHECKPOINT_SIZE: Final = 8
assert ENTRY.size == ENTRY_SIZE, "table and struct disagree"
assert BOUND.size == BOUND_SIZE, "table and struct disagree"
assert I64.size == CHECKPOINT_SIZE, "table and struct disagree"

ENTRY_DTYPE: Final = np.dtype(
    [("physical_offset", ">i8"), ("size", ">i4"), ("tags_code", ">i8"), ("store_timestamp_ms", ">i8")]
)
"""The numpy layout of an entry."""
assert ENTRY_DTYPE.itemsize == ENTRY_SIZE, "struct and numpy disagree"

_SEPARATOR: Final = b"\x01"
_AFTER_SEPARATOR: Final = b"\x02"
_MAX: Final = b"max"
_MIN: Final = b"min"
_MARKER_FROM_END: Final = len(_MAX) + len(_SEPARATOR) + I32.size
"""The position of `max` or `min` in the key of a bound, counted from its end."""
_SEPARATOR_MAX_SEPARATOR: Final = _SEPARATOR + _MAX + _SEPARATOR

_pack_i32: Final = I32.pack


class StoredBound(NamedTuple):
    """A min or max offset as stored: queue offset and physical offset of one entry."""

    physical_offset: PhysicalOffset
    queue_offset: QueueOffset


def topic_prefix(topic: str) -> bytes:
    """Return the bytes with which all keys of the topic begin, in both families."""
    name = topic.encode()
    return I32.pack(len(name)) + _SEPARATOR + name + _SEPARATOR


def topic_range(topic: str) -> KeyRange:
    """Return the range of all keys of the topic, in both families."""
    prefix = topic_prefix(topic)
    return KeyRange(prefix, prefix[:-1] + _AFTER_SEPARATOR)


def entry_prefix(queue: QueueId) -> bytes:
    """Return the bytes with which the keys of all entries of the queue begin; a packed queue offset completes a key."""
    return topic_prefix(queue.topic) + I32.pack(queue.number) + _SEPARATOR


def entry_key(queue: QueueId, at: QueueOffset) -> bytes:
    return entry_prefix(queue) + I64.pack(at)


def pack_offsets(offsets: Integers) -> list[bytes]:
    """Return the bytes that complete the `entry_prefix` of each entry."""
    packed: list[bytes] = offsets.astype(">i8").view(f"V{I64.size}").tolist()
    return packed


def pack_entries(entries: EntryColumns) -> list[bytes]:
    """Return the stored value of each entry."""
    packed = np.empty(len(entries), ENTRY_DTYPE)
    for name in ENTRY_DTYPE.fields or ():
        packed[name] = getattr(entries, name)
    values: list[bytes] = packed.view(f"V{ENTRY_SIZE}").tolist()
    return values


def entries_end(prefix: bytes) -> bytes:
    """Return the end, exclusive, of all entries whose keys begin with this `entry_prefix`."""
    return prefix[:-1] + _AFTER_SEPARATOR


def maximum_key(queue: QueueId) -> bytes:
    return topic_prefix(queue.topic) + _MAX + _SEPARATOR + I32.pack(queue.number)


def keys_of(queue: tuple[str, int]) -> tuple[bytes, bytes]:
    """Return `entry_prefix` and `maximum_key` of the queue, for callers that need both of very many queues.

    Raises ValueError for the name that no topic can have.
    """
    topic, number = queue
    if topic == CHECKPOINT_TOPIC:
        require_no_checkpoint(topic)
    name = topic.encode()
    of_topic = _pack_i32(len(name)) + _SEPARATOR + name
    packed = _pack_i32(number)
    return of_topic + _SEPARATOR + packed + _SEPARATOR, of_topic + _SEPARATOR_MAX_SEPARATOR + packed


def minimum_key(queue: QueueId) -> bytes:
    return topic_prefix(queue.topic) + _MIN + _SEPARATOR + I32.pack(queue.number)


def minimum_key_beside(maximum: bytes) -> bytes:
    """Return the min offset key of the queue with this `maximum_key`."""
    return maximum[:-_MARKER_FROM_END] + _MIN + maximum[len(_MAX) - _MARKER_FROM_END :]


def maximum_key_beside(minimum: bytes) -> bytes:
    """Return the `maximum_key` of the queue with this min offset key."""
    return minimum[:-_MARKER_FROM_END] + _MAX + minimum[len(_MIN) - _MARKER_FROM_END :]


def number_in(maximum: bytes) -> int:
    """Return the number of the queue with this `maximum_key`."""
    number: int = I32.unpack_from(maximum, len(maximum) - I32.size)[0]
    return number


def is_maximum(key: bytes, value: bytes) -> bool:
    """Return whether a row of the offset family is a max offset; the checkpoint's key looks like one, too."""
    return len(value) == BOUND_SIZE and key[-_MARKER_FROM_END : -I32.size] == _MAX + _SEPARATOR


def is_minimum(key: bytes, value: bytes) -> bool:
    """Return whether a row of the offset family is a min offset."""
    return len(value) == BOUND_SIZE and key[-_MARKER_FROM_END : -I32.size] == _MIN + _SEPARATOR


def entry_prefix_beside(maximum: bytes) -> bytes:
    """Return the `entry_prefix` of the queue with this `maximum_key`."""
    return maximum[:-_MARKER_FROM_END] + maximum[-I32.size :] + _SEPARATOR


CHECKPOINT_KEY: Final = maximum_key(QueueId(CHECKPOINT_TOPIC, 0))


def require_no_checkpoint(topic: str) -> None:
    if topic == CHECKPOINT_TOPIC:
        raise ValueError(f"{CHECKPOINT_TOPIC} is the name of the dispatch checkpoint, not of a topic")


def max_offsets_range(topic: str) -> KeyRange:
    """Return the key range of the max offsets of all queues of the topic, ascending by queue number."""
    prefix = topic_prefix(topic) + _MAX
    return KeyRange(prefix + _SEPARATOR, prefix + _AFTER_SEPARATOR)


def parse_entry_key(key: bytes) -> tuple[QueueId, QueueOffset]:
    """Parse the key of an entry. Raises ValueError for any other key."""
    topic, at = _parse_topic(key)
    if len(key) != at + 13 or key[at + 4 : at + 5] != _SEPARATOR:
        raise ValueError(f"not the key of an entry: {key.hex()}")
    return QueueId(topic, I32.unpack_from(key, at)[0]), QueueOffset(I64.unpack_from(key, at + 5)[0])


def parse_maximum_key(key: bytes) -> QueueId | None:
    """Return the queue whose max offset the key holds; None for a min offset key. Raises ValueError for another key.

    The checkpoint's key looks like one; its value does not (see `BOUND_SIZE`).
    """
    queue, is_maximum = parse_bound_key(key)
    return queue if is_maximum else None


def parse_bound_key(key: bytes) -> tuple[QueueId, bool]:
    """Return the queue, and whether the key is that of its max offset (else: of its min offset). Raises ValueError."""
    topic, at = _parse_topic(key)
    kind = key[at : at + 3]
    if len(key) != at + 8 or key[at + 3 : at + 4] != _SEPARATOR or kind not in (_MAX, _MIN):
        raise ValueError(f"not the key of a max or min offset: {key.hex()}")
    return QueueId(topic, I32.unpack_from(key, at + 4)[0]), kind == _MAX


def _parse_topic(key: bytes) -> tuple[str, int]:
    length = I32.unpack_from(key)[0] if len(key) >= 6 else -1
    at = 5 + length
    if length < 0 or key[4:5] != _SEPARATOR or key[at : at + 1] != _SEPARATOR:
        raise ValueError(f"no topic at the start of the key: {key.hex()}")
    return key[5:at].decode(), at + 1


def parse_bound(value: bytes) -> StoredBound:
    physical_offset, queue_offset = BOUND.unpack(value)
    return StoredBound(PhysicalOffset(physical_offset), QueueOffset(queue_offset))
