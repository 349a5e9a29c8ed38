"""The module reads the entries to compare, queue by queue: from RocksDB, or from RocketMQ's queue files."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import chain, groupby
from pathlib import Path
from typing import Final, NamedTuple

from quarry_mq.kv import KeyRange, KeyValueEngine
from quarry_mq.store.consumequeue import ConsumeQueueEntry
from quarry_mq.store.consumequeue.rocks_layout import (
    BOUND_SIZE,
    CHECKPOINT_KEY,
    CHECKPOINT_SIZE,
    ENTRIES_FAMILY,
    ENTRY,
    ENTRY_SIZE,
    I32,
    I64,
    OFFSET_FAMILY,
    StoredBound,
    entry_prefix,
    parse_bound,
    parse_bound_key,
    parse_entry_key,
    topic_range,
)
from quarry_mq.store.message import PhysicalOffset, QueueId, QueueOffset
from quarry_mq.store.offline import ENTRIES_PER_READ, QueueReader
from quarry_mq.store.verify.report import Check, Difference, Findings

_TOPIC_AT: Final = 6
"""The position where the topic ends in a key, less its own length: the length, a separator, the topic, a separator."""
_make_entry: Final = ConsumeQueueEntry._make

ALL_KEYS: Final = KeyRange(b"", None)

Pair = tuple[bytes, bytes]


class StoredQueue(NamedTuple):
    """A stored queue is one queue as stored. `entries` must be read before the next queue is requested.

    Queue files store no bounds: `maximum` and `minimum` are None then, and in RocksDB where there is no such row.
    """

    queue: QueueId
    minimum: StoredBound | None
    maximum: StoredBound | None
    entries: Iterator[ConsumeQueueEntry]


class QueuesPart(NamedTuple):
    """A part of the queues of a source."""

    keys: KeyRange = ALL_KEYS
    """The queues in RocksDB as a range of entry keys: from the prefix of one queue (`entry_prefix`) to
    that of another.
    """
    queues: tuple[QueueId, ...] | None = None
    """The queues in files; None: all."""


ALL_QUEUES: Final = QueuesPart()


class EntrySource(NamedTuple):
    """A source is one place that holds entries, with the kinds of entries that may be missing there without being lost.

    `with_time`: entries hold the store time. `light_by_place`: light queues are numbered consecutively, so the offsets
    in the records do not count. `begins_late`: it holds what came since double write began. `ends_early`: it need not
    hold the newest entries; `light_ends_early`: nor those of light queues, which RocketMQ can be told to keep in
    RocksDB alone (`combineCQUseRocksdbForLmq`). `compared_below`: the check point; None: there is none.
    `light_removed_below`: above the offsets of all light queues that were removed, 0 when none was. `leaves_out_names`:
    it is in files, or came from files, which have no queues whose names no file can have.
    """

    records_check: Check
    entries_check: Check
    file: Path
    reader: QueueReader
    queues: Callable[[QueuesPart], Iterator[StoredQueue]]
    has_bounds: bool
    with_time: bool
    light_by_place: bool
    begins_late: bool
    ends_early: bool
    light_ends_early: bool
    compared_below: PhysicalOffset | None
    light_removed_below: QueueOffset = QueueOffset(0)
    leaves_out_names: bool = False


def rocks_queues(
    engine: KeyValueEngine, file: Path, findings: Findings, part: KeyRange = ALL_KEYS
) -> Iterator[StoredQueue]:
    """Yield the queues that have entries or bounds. Only the bounds of one topic are in memory at a time.

    `part` is explained in `QueuesPart`.
    """
    entries = _well_formed_entries(engine.family(ENTRIES_FAMILY).iterate(part), file, findings)
    bounds = _well_formed_bounds(_bounds_in(engine, part), file, findings)
    for entries_of_topic, bounds_of_topic in _side_by_side(entries, bounds):
        min_offsets: dict[QueueId, StoredBound] = {}
        max_offsets: dict[QueueId, StoredBound] = {}
        for key, value in bounds_of_topic:
            queue, of_maximum = parse_bound_key(key)
            (max_offsets if of_maximum else min_offsets)[queue] = parse_bound(value)
        for _, pairs in groupby(entries_of_topic, key=_queue_of):
            first = next(pairs)
            try:
                queue, _ = parse_entry_key(first[0])
            except ValueError:
                findings.differ(_stranger(Check.ENTRIES, file, "the key of an entry", first))
                continue
            yield StoredQueue(
                queue, min_offsets.pop(queue, None), max_offsets.pop(queue, None), _entries(chain((first,), pairs))
            )
        for queue in sorted(min_offsets.keys() | max_offsets.keys()):
            yield StoredQueue(queue, min_offsets.get(queue), max_offsets.get(queue), iter(()))


def file_queues(reader: QueueReader, part: Iterable[QueueId] | None = None) -> Iterator[StoredQueue]:
    """Yield the queues that have a file: all, or those of a part."""
    for queue in reader.queues() if part is None else part:
        yield StoredQueue(queue, None, None, entries_from(reader, queue, reader.bounds(queue).minimum))


def entries_from(reader: QueueReader, queue: QueueId, start: QueueOffset) -> Iterator[ConsumeQueueEntry]:
    while found := reader.entries(queue, start, ENTRIES_PER_READ):
        yield from found
        start = QueueOffset(found[-1].queue_offset + 1)


def entry_at(reader: QueueReader, queue: QueueId, at: QueueOffset) -> ConsumeQueueEntry | None:
    """Return the visible entry with exactly this queue offset."""
    found = reader.entries(queue, at, 1)
    return found[0] if found and found[0].queue_offset == at else None


def entry_of_record(reader: QueueReader, queue: QueueId, at: PhysicalOffset) -> ConsumeQueueEntry | None:
    """Return the visible entry that points at `at`, found by bisection: positions ascend with queue offsets."""
    low, high = reader.bounds(queue)
    while low < high:
        middle = QueueOffset((low + high) // 2)
        found = reader.entries(queue, middle, 1)
        if not found or found[0].queue_offset >= high or found[0].physical_offset > at:
            high = middle
        elif found[0].physical_offset == at:
            return found[0]
        else:
            low = QueueOffset(found[0].queue_offset + 1)
    return None


def _bounds_in(engine: KeyValueEngine, part: KeyRange) -> Iterator[Pair]:
    """Yield the bounds of the queues in a range of entry keys. A malformed row belongs to the range
    that holds its key.
    """
    if part == ALL_KEYS:
        yield from engine.family(OFFSET_FAMILY).iterate(ALL_KEYS)
        return
    begin = b"" if not part.start else topic_range(_queue_at(part.start).topic).start
    end = None if part.end is None else topic_range(_queue_at(part.end).topic).end
    for pair in engine.family(OFFSET_FAMILY).iterate(KeyRange(begin, end)):
        try:
            place = entry_prefix(parse_bound_key(pair[0])[0])
        except ValueError:
            place = pair[0]
        if part.start <= place and (part.end is None or place < part.end):
            yield pair


def _queue_at(prefix: bytes) -> QueueId:
    return parse_entry_key(prefix + bytes(I64.size))[0]


def _well_formed_entries(pairs: Iterable[Pair], file: Path, findings: Findings) -> Iterator[Pair]:
    for pair in pairs:
        key, value = pair
        size = len(key)
        if size > 19 and I32.unpack_from(key)[0] == size - 19 and len(value) == ENTRY_SIZE:
            yield pair
        else:
            findings.differ(_stranger(Check.ENTRIES, file, "an entry of 28 bytes under its key", pair))


def _well_formed_bounds(pairs: Iterable[Pair], file: Path, findings: Findings) -> Iterator[Pair]:
    for pair in pairs:
        key, value = pair
        if key == CHECKPOINT_KEY and len(value) == CHECKPOINT_SIZE:
            continue
        try:
            parse_bound_key(key)
        except ValueError:
            well_formed = False
        else:
            well_formed = len(value) == BOUND_SIZE
        if well_formed:
            yield pair
        else:
            findings.differ(_stranger(Check.OFFSETS, file, "16 bytes under the key of a min or max offset", pair))


def _stranger(check: Check, file: Path, expected: str, pair: Pair) -> Difference:
    key, value = pair
    return Difference(
        check=check, file=file, expected=expected, found=f"{len(value)} bytes under the key {key[:64].hex()}"
    )


def _topic_of(pair: Pair) -> bytes:
    key = pair[0]
    return key[: _TOPIC_AT + int(I32.unpack_from(key)[0])]


def _queue_of(pair: Pair) -> bytes:
    return pair[0][: -I64.size]


def _side_by_side(entries: Iterator[Pair], bounds: Iterator[Pair]) -> Iterator[tuple[Iterator[Pair], Iterator[Pair]]]:
    """Yield entries and bounds topic by topic: they are sorted by the same beginnings of keys."""
    by_entry, by_bound = groupby(entries, key=_topic_of), groupby(bounds, key=_topic_of)
    of_entries, of_bounds = next(by_entry, None), next(by_bound, None)
    while of_entries is not None or of_bounds is not None:
        topic = min(each[0] for each in (of_entries, of_bounds) if each is not None)
        mine: Iterator[Pair] = iter(())
        theirs: Iterator[Pair] = iter(())
        has_entries = of_entries is not None and of_entries[0] == topic
        has_bounds = of_bounds is not None and of_bounds[0] == topic
        if of_entries is not None and has_entries:
            mine = of_entries[1]
        if of_bounds is not None and has_bounds:
            theirs = of_bounds[1]
        yield mine, theirs
        if has_entries:
            of_entries = next(by_entry, None)
        if has_bounds:
            of_bounds = next(by_bound, None)


def _entries(pairs: Iterable[Pair]) -> Iterator[ConsumeQueueEntry]:
    unpack_offset, unpack_entry = I64.unpack, ENTRY.unpack
    for key, value in pairs:
        yield _make_entry(unpack_offset(key[-8:]) + unpack_entry(value))
