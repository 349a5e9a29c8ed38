"""Find the lite topics among the light queues of a database, and remove light queues from it.

As in `store.consumequeue.names`, nothing in memory lists the queues. A topic may have a million lite topics, so these
functions walk in steps and touch no key of another topic.

Queues that are removed together are usually neighbours: lite topics of one topic that went out of use at one time. So a
run of them with nothing else in between is removed by one range delete. A single queue with few entries is removed key
by key: every range delete in a memtable makes every read of it slower.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from quarry_mq.kv import Family, KeyRange, WriteBatch
from quarry_mq.kv.keys import prefix_end
from quarry_mq.store.consumequeue.names import LastEntry, end_of_topic, light_stretches, queue_of
from quarry_mq.store.consumequeue.rocks_layout import (
    ENTRY,
    entries_end,
    entry_key,
    entry_prefix,
    maximum_key,
    minimum_key,
    parse_bound,
    topic_prefix,
)
from quarry_mq.store.metadata.lite import LITE_TOPIC_PREFIX, light_queue_prefix, parse_light_queue_name

LOOKS_PER_STEP: Final = 500
ENTRIES_BY_KEY_MAX: Final = 32
_STORED_MS: Final = 3
"""Index of the store time in an unpacked entry."""


class LiteParentsStep(NamedTuple):
    """The result of one step over the lite topics."""

    parents: list[str]
    """The topics that have lite topics, perhaps with duplicates."""
    next_key: bytes | None
    """The key to continue at; None after the last lite topic."""


def lite_parents(bounds: Family, key: bytes) -> LiteParentsStep:
    """Return the next topics from `key` on that have lite topics. Costs one read for each length of their names."""
    parents: list[str] = []
    looks = 0
    for keys in light_stretches(bounds, LITE_TOPIC_PREFIX, key):
        start, end = keys
        while end is not None and start < end:
            if looks == LOOKS_PER_STEP:
                return LiteParentsStep(parents, start)
            looks += 1
            rows = bounds.scan(KeyRange(start, end), limit=1)
            if not rows:
                break
            start = rows[0][0] + b"\0"
            queue = queue_of(rows[0][0])
            if queue is None:
                continue
            named = parse_light_queue_name(queue.topic)
            start = end_of_topic(queue.topic)
            if named is not None:
                parents.append(named[0])
                start = prefix_end(rows[0][0][:5] + light_queue_prefix(named[0]).encode())  # skip this length of names
    return LiteParentsStep(parents, None)


def last_times_ms(entries: Family, found: Sequence[LastEntry]) -> list[int | None]:
    """Return when the last message of each queue was stored; None where its entry no longer exists."""
    values = entries.get_many([entry_key(each.queue, each.last.queue_offset) for each in found])
    return [None if value is None else ENTRY.unpack(value)[_STORED_MS] for value in values]


def stage_removal(batch: WriteBatch, entries: Family, bounds: Family, found: Sequence[LastEntry]) -> None:
    """Add the removal of light queues to the batch, which must be written before any other row is."""
    for run in _runs(bounds, found):
        with_entries = any(_may_hold_entries(bounds, each) for each in run)
        if len(run) == 1:
            queue = run[0].queue
            if with_entries:
                _stage_entries(batch, entries, entry_prefix(queue))
            batch.delete(bounds, maximum_key(queue))
            batch.delete(bounds, minimum_key(queue))
            continue
        keys = KeyRange(topic_prefix(run[0].queue.topic), end_of_topic(run[-1].queue.topic))
        if with_entries:
            batch.delete_range(entries, keys)
        batch.delete_range(bounds, keys)


def _runs(bounds: Family, found: Sequence[LastEntry]) -> Iterator[list[LastEntry]]:
    """Group the queues into runs, where the database has nothing else between the queues of one run."""
    wanted = {each.queue: each for each in sorted(found, key=lambda each: maximum_key(each.queue))}
    ordered = list(wanted)
    if not ordered:
        return
    keys = KeyRange(topic_prefix(ordered[0].topic), end_of_topic(ordered[-1].topic))
    run: list[LastEntry] = []
    # twice, because a queue has a min offset row, too
    for row, _ in bounds.scan(keys, limit=2 * len(ordered)):
        queue = queue_of(row)
        if queue is not None and run and queue == run[-1].queue:
            continue
        each = None if queue is None else wanted.pop(queue, None)
        if each is not None:
            run.append(each)
        elif run:
            yield run
            run = []
    if run:
        yield run
    for each in wanted.values():
        yield [each]


def _may_hold_entries(bounds: Family, each: LastEntry) -> bool:
    """Return whether the queue may still have entries, because expiry has not removed all of them."""
    row = bounds.get(minimum_key(each.queue))
    return row is None or parse_bound(row).queue_offset <= each.last.queue_offset


def _stage_entries(batch: WriteBatch, entries: Family, prefix: bytes) -> None:
    keys = KeyRange(prefix, entries_end(prefix))
    rows = entries.scan(keys, limit=ENTRIES_BY_KEY_MAX + 1)
    if len(rows) > ENTRIES_BY_KEY_MAX:
        batch.delete_range(entries, keys)
        return
    for key, _ in rows:
        batch.delete(entries, key)
