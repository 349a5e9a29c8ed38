"""Which topics and light queues a database has, from the rows of their bounds (docs/formats/consume-queue.md).

Nothing in memory knows (rmq#9454), and a database may have millions. So these walk in steps, skip what was not asked
for, and may run on another thread beside the writer.

In key order names of one length stand together, and among them the light queues:

    … 6 orders … 12 %LMQ%aaaaaaa … 12 %LMQ%zzzzzzz, 12 customer-log … 13 …
                 └────── one stretch per length ───┘
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

from quarry_mq.kv import Family, KeyRange
from quarry_mq.kv.keys import prefix_end, prefix_range
from quarry_mq.store.consumequeue.rocks_layout import (
    BOUND_SIZE,
    CHECKPOINT_TOPIC,
    I32,
    I64,
    StoredBound,
    is_maximum,
    maxima_range,
    maximum_key,
    number_in,
    parse_bound,
    parse_bound_key,
    topic_prefix,
)
from quarry_mq.store.metadata.names import LIGHT_QUEUE_PREFIX, is_light_queue
from quarry_mq.store.offsets import PhysicalOffset, QueueId

QUEUES_OF_MOST_TOPICS: Final = 16
"""Topics seldom have more, and to read so many is cheaper than to read any number of them."""
ROWS_PER_SCAN: Final = 1_000
"""Read in one call, which keeps the interpreter's lock."""

LIGHT_ROWS_PER_STEP: Final = 128
"""What is done with each takes longer: so many keep the lock for a millisecond altogether."""

NAME_SIZE_MAX: Final = 0x7FFF
"""Bytes: names come from a property, and all properties of a record together are no longer."""

NUMBER_MAX: Final = (1 << 31) - 1
"""Of a queue: a key holds no larger one."""

_SEPARATOR: Final = b"\x01"


class LastEntry(NamedTuple):
    """A queue and where its last entry points, as stored now: whoever acts on it later compares."""

    queue: QueueId
    last: StoredBound


class QueueEnd(NamedTuple):
    """A queue of a topic and where the record of its last entry lies, also one that has expired; 0 when it has none."""

    number: int
    physical_offset: PhysicalOffset


class LightQueueStep(NamedTuple):
    """What one step over the light queues found."""

    ended: list[LastEntry]
    """Those without an entry at or above the offset that was asked for."""
    looked_at: int
    next_key: bytes | None
    """Where to go on; None behind the last light queue."""


def topics_behind(bounds: Family, behind: str, limit: int) -> list[str]:
    """The next `limit` topics with queues in key order; light queues and the checkpoint are passed over."""
    found: list[str] = []
    key = _end_of(behind) if behind else b""
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


def maxima_of(bounds: Family, topic: str) -> list[tuple[bytes, bytes]]:
    """Keys and values of the maxima of a topic's queues, by number."""
    keys = maxima_range(topic)
    rows = bounds.scan(keys, limit=QUEUES_OF_MOST_TOPICS)
    if len(rows) == QUEUES_OF_MOST_TOPICS:
        rows = bounds.scan(keys)
    return [row for row in rows if len(row[1]) == BOUND_SIZE]


def queue_ends(bounds: Family, topic: str, behind: int, limit: int) -> list[QueueEnd]:
    """Where the next `limit` queues of a topic end whose numbers are above `behind`, by number."""
    if behind >= NUMBER_MAX:
        return []
    keys = KeyRange(maximum_key(QueueId(topic, behind + 1)), maxima_range(topic).end)
    return [
        QueueEnd(number_in(key), parse_bound(value).physical_offset)
        for key, value in bounds.scan(keys, limit=limit)
        if len(value) == BOUND_SIZE
    ]


def light_queues_ended(
    bounds: Family, below: PhysicalOffset, key: bytes, prefix: str = LIGHT_QUEUE_PREFIX
) -> LightQueueStep:
    """Look at the next light queues from `key` on, a hundred or two, for such that end below a physical offset.

    `prefix` is how their names begin: no others are looked at.
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
    """Where light queues whose names begin so may stand from `key` on.

    The rest of one length of names, then each length that there is.
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
    """None for a key of nobody's making: a stranger is left alone."""
    try:
        return parse_bound_key(key)[0]
    except ValueError:
        return None


def end_of_topic(topic: str) -> bytes:
    """The end, exclusive, of the topic's keys."""
    return prefix_end(topic_prefix(topic))


def _end_of(topic: str) -> bytes:
    """The same; for a light queue the end of all with names as long."""
    prefix = topic_prefix(topic)
    if is_light_queue(topic):
        prefix = prefix[: I32.size + len(_SEPARATOR) + len(LIGHT_QUEUE_PREFIX)]
    return prefix_end(prefix)


def _light_names(length: int, prefix: str) -> KeyRange:
    """The keys of all light queues with names of so many bytes that begin so."""
    return prefix_range(I32.pack(length) + _SEPARATOR + prefix.encode())
