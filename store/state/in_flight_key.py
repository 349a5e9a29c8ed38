"""The module encodes the keys of in-flight rows, family `inflight` of `quarry/` (docs/formats/delivery-state.md).

    u16 group length, group, u16 topic length, topic, i32 queue number, i64 queue offset      big-endian

The keys tell which messages the rows are about; `server.delivery.state.inflight` defines the values.
"""

from __future__ import annotations

from collections.abc import Callable
from struct import Struct
from typing import Final

from quarry_mq.kv import KeyRange, KeyValueEngine, WriteBatch
from quarry_mq.store.message import QueueId, QueueOffset
from quarry_mq.store.state.identity import INFLIGHT

INDEX_BEGIN: Final = b"\xff\xff"
"""The prefix of the keys that are no rows but the index of `server.delivery.state.inflight`; no name is that long."""

ROWS: Final = KeyRange(b"", INDEX_BEGIN)
"""The key range of the rows, without the index."""

VALUE: Final = Struct(">qqqi")
"""The numbers of a row's value: visible again at (ms), delivery id, lease ends at (ms), attempt."""

_LENGTH: Final = Struct(">H")
_POSITION: Final = Struct(">iq")
_TIME: Final = Struct(">q")


def group_prefix(group: str) -> bytes:
    """Return the common prefix of all rows of one group."""
    return _text(group)


def prefix_of_group(key: bytes) -> bytes:
    """Return the part of a row's key, or of any prefix, that is its group's prefix. Raises struct.error for other
    bytes.
    """
    return key[: _LENGTH.size + _LENGTH.unpack_from(key)[0]]


def group_of(prefix: bytes) -> str:
    """Return the group whose rows have this prefix. Raises struct.error or UnicodeDecodeError for other bytes."""
    return _read_text(prefix, 0)[0]


def subscription_prefix(group: str, topic: str) -> bytes:
    """Return the common prefix of all rows of one group on one topic."""
    return _text(group) + _text(topic)


def pack_position(number: int, offset: int) -> bytes:
    """Return what completes a subscription's prefix to a key: queue number and queue offset."""
    return _POSITION.pack(number, offset)


def parse_position(key: bytes, at: int) -> tuple[int, QueueOffset]:
    """Return the queue number and queue offset that stand at position `at` of the key."""
    number, offset = _POSITION.unpack_from(key, at)
    return number, QueueOffset(offset)


def index_key(key: bytes, value: bytes) -> bytes:
    """Return the key of a row's entry in the index. Raises struct.error for bytes that are no row."""
    at = len(key) - _POSITION.size
    (visible_at_ms,) = _TIME.unpack_from(value)
    return INDEX_BEGIN + key[:at] + _TIME.pack(visible_at_ms) + key[at:]


def put_unleased(engine: KeyValueEngine, batch: WriteBatch, key: bytes, visible_at_ms: int) -> None:
    """Add the row of a message that another broker delivered once, and that is to come again at this time."""
    family, value = engine.family(INFLIGHT), VALUE.pack(visible_at_ms, 0, 0, 1)
    batch.put(family, key, value)
    batch.put(family, index_key(key, value), b"")


def parse_key(key: bytes) -> tuple[str, QueueId, QueueOffset]:
    """Return group, queue and offset of a row. Raises struct.error or UnicodeDecodeError for other bytes."""
    group, at = _read_text(key, 0)
    topic, at = _read_text(key, at)
    number, offset = _POSITION.unpack_from(key, at)
    return group, QueueId(topic, number), QueueOffset(offset)


def delete_beyond(engine: KeyValueEngine, maximum_of: Callable[[QueueId], QueueOffset]) -> int:
    """Delete the rows of messages that their queues do not have, durably; return how many. Costs a step per row."""
    family, batch, deleted = engine.family(INFLIGHT), engine.batch(), 0
    for key, _ in family.iterate(ROWS):
        _, queue, offset = parse_key(key)
        if offset >= maximum_of(queue):
            batch.delete(family, key)
            deleted += 1
    engine.write(batch, sync=True)
    return deleted


def _text(text: str) -> bytes:
    raw = text.encode()
    return _LENGTH.pack(len(raw)) + raw


def _read_text(key: bytes, at: int) -> tuple[str, int]:
    (length,) = _LENGTH.unpack_from(key, at)
    end = at + _LENGTH.size + length
    return key[at + _LENGTH.size : end].decode(), end
