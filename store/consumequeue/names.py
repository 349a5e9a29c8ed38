"""List the topics and light queues of a database, from the rows of their bounds (docs/formats/consume-queue.md).

Nothing in memory lists them (rmq#9454), and a database may have millions. So these functions walk in steps, skip what
was not asked for, and may run on another thread beside the writer.

In key order, names of one length are neighbours, and so are the light queues among them:

    … 6 orders … 12 %LMQ%aaaaaaa … 12 %LMQ%zzzzzzz, 12 customer-log … 13 …
                    └────── one stretch per length ───┘
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

from quarry_mq.kv import Family, KeyRange
from quarry_mq.kv.keys import prefix_end, prefix_range
from quarry_mq.protocol.names import CHECKPOINT_TOPIC, LIGHT_QUEUE_PREFIX, is_light_queue
from quarry_mq.store.consumequeue.rocks_layout import (
    BOUND_SIZE,
    I32,
    I64,
    StoredBound,
    is_maximum,
    max_offsets_range,
    maximum_key,
    number_in,
    parse_bound,
    parse_bound_key,
    topic_prefix,
)
from quarry_mq.store.message import QUEUE_NUMBER_MAX, PhysicalOffset, QueueId

QUEUES_OF_MOST_TOPICS: Final = 16
"""Rows read first for a topic: topics seldom have more queues, and a short scan is cheaper than an unlimited one."""
ROWS_PER_SCAN: Final = 1_000
"""Rows read in one call, which keeps the interpreter's lock."""

LIGHT_ROWS_PER_STEP: Final = 128
"""Light-queue rows per step. Each takes longer to process: this many keep the lock for a millisecond altogether."""

NAME_SIZE_MAX: Final = 0x7FFF
"""The longest name in bytes: names come from a property, and all properties of a record together are no longer."""

"""The largest queue number that a key holds."""

_SEPARATOR: Final = b"\x01"


class LastEntry(NamedTuple):
    """A queue and the position of its last entry, as stored now. Compare it again before acting on it later."""

    queue: QueueId
    last: StoredBound


class QueueEnd(NamedTuple):
    """A queue of a topic and where the record of its last entry lies, even if expired; 0 when there is no entry."""

    number: int
    physical_offset: PhysicalOffset


class LightQueueStep(NamedTuple):
    """The result of one step over the light queues."""

    ended: list[LastEntry]
    """The light queues without an entry at or above the offset that was asked for."""
    looked_at: int
    next_key: bytes | None
    """The key to continue at; None after the last light queue."""


def topics_after(bounds: Family, after: str, limit: int) -> list[str]:
    """Return the next `limit` topics after `behind` with queues, in key order; no light queues, no checkpoint."""
    found: list[str] = []
    key = _end_of(after) if after else b""
    while len(found) < limit:
        rows = bounds.scan(KeyRange(key, None), limit=ROWS_PER_SCAN)
        prefix = b""
        for row, _ in rows:
            if prefix and row.startswith(prefix):
                continue
            queue = queue_of(row)
            prefix = b"" if queue is None else topic_prefix(queue.topic)
            key = row + b"\0" if queue is None else _end_of(queue.topic)
            if queue is not None and queue.topic != CHECKPOINT_TOPIC and not is_light_queue(queue.topic):
                found.append(queue.topic)
        if len(rows) < ROWS_PER_SCAN:
            break
    return found[:limit]


def max_offsets_of(bounds: Family, topic: str) -> list[tuple[bytes, bytes]]:
    """Return keys and values of the max offset rows of a topic's queues, by number."""
    keys = max_offsets_range(topic)
    rows = bounds.scan(keys, limit=QUEUES_OF_MOST_TOPICS)
    if len(rows) == QUEUES_OF_MOST_TOPICS:
        rows = bounds.scan(keys)
    return [row for row in rows if len(row[1]) == BOUND_SIZE]


def queue_ends(bounds: Family, topic: str, after: int, limit: int) -> list[QueueEnd]:
    """Return the last positions of the next `limit` queues of a topic with numbers above `behind`, by number."""
    if after >= QUEUE_NUMBER_MAX:
        return []
    keys = KeyRange(maximum_key(QueueId(topic, after + 1)), max_offsets_range(topic).end)
    return [
        QueueEnd(number_in(key), parse_bound(value).physical_offset)
        for key, value in bounds.scan(keys, limit=limit)
        if len(value) == BOUND_SIZE
    ]


def light_queues_ended(
    bounds: Family, below: PhysicalOffset, key: bytes, prefix: str = LIGHT_QUEUE_PREFIX
) -> LightQueueStep:
    """Scan the next hundred or two light queues from `key` on and return those that end below a physical offset.

    Only light queues whose names begin with `prefix` are scanned.
    """
    ended: list[LastEntry] = []
    looked_at = 0
    for keys in light_stretches(bounds, prefix, key):
        rows = bounds.scan(keys, limit=LIGHT_ROWS_PER_STEP)
        for row, value in rows:
            if not is_maximum(row, value):
                continue
            looked_at += 1
            if I64.unpack_from(value)[0] < below and (queue := queue_of(row)) is not None:
                ended.append(LastEntry(queue, parse_bound(value)))
        if len(rows) == LIGHT_ROWS_PER_STEP or looked_at >= LIGHT_ROWS_PER_STEP:
            return LightQueueStep(ended, looked_at, rows[-1][0] + b"\0" if rows else keys.end)
    return LightQueueStep(ended, looked_at, None)


def light_stretches(bounds: Family, prefix: str, key: bytes) -> Iterator[KeyRange]:
    """Yield the key ranges, from `key` on, of light queues whose names begin with `prefix`.

    The first range is the rest of one length of names; then comes one range per existing length.
    """
    length = int.from_bytes(key[: I32.size], "big") if key else len(prefix.encode())
    while length <= NAME_SIZE_MAX:
        stretch = _light_names(length, prefix)
        end = stretch.end or b""
        yield KeyRange(max(key, stretch.start), end)
        following = bounds.scan(KeyRange(end, None), limit=1)
        if not following:
            return
        length = max(length + 1, int.from_bytes(following[0][0][: I32.size], "big"))


def queue_of(key: bytes) -> QueueId | None:
    """Return the queue of a bounds key; None when the key is not one of ours. Foreign keys are not touched."""
    try:
        return parse_bound_key(key)[0]
    except ValueError:
        return None


def end_of_topic(topic: str) -> bytes:
    """Return the end, exclusive, of the topic's keys."""
    return prefix_end(topic_prefix(topic))


def _end_of(topic: str) -> bytes:
    """Return `end_of_topic`; for a light queue, return the end of all light queues with names of the same length."""
    prefix = topic_prefix(topic)
    if is_light_queue(topic):
        prefix = prefix[: I32.size + len(_SEPARATOR) + len(LIGHT_QUEUE_PREFIX)]
    return prefix_end(prefix)


def _light_names(length: int, prefix: str) -> KeyRange:
    """Return the key range of all light queues with names of `length` bytes that begin with `prefix`."""
    return prefix_range(I32.pack(length) + _SEPARATOR + prefix.encode())
