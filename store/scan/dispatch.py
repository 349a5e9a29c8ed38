"""The module makes dispatch requests from columns, and finds the records that change pending messages.

The requests equal those of `store.consumequeue.dispatch.dispatch_request`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import Final, overload

import numpy as np

from quarry_mq.protocol.messages.property_names import DEQUEUED_MS
from quarry_mq.protocol.messages.system_flag import TRANSACTION_MASK, TransactionState
from quarry_mq.protocol.names import SCHEDULE_TOPIC
from quarry_mq.store.consumequeue import ColumnRequests, EntryColumns
from quarry_mq.store.consumequeue.dispatch import (
    LIGHT_QUEUE_NUMBER,
    OffsetAssignment,
    StoredAssignment,
    in_light_queues_alone,
    is_queued,
    light_queues,
)
from quarry_mq.store.message import DispatchRequest, PhysicalOffset, QueueId, QueueOffset
from quarry_mq.store.pending.rows import PENDING_TOPICS
from quarry_mq.store.record import decode_properties, tags_code
from quarry_mq.store.scan.columns import Flags, Integers, RecordBatch
from quarry_mq.store.scan.tags import stored_properties

_STATES_QUEUED: Final = np.array([is_queued(state) for state in range(TRANSACTION_MASK + 1)])
"""Flags by the transaction bits of the system flag: whether queues hold such records."""
_PAIRS_COUNTED_MAX: Final = 1 << 16
"""Pairs of topic and queue number up to which they are told apart by counting; above, by sorting."""


class ScannedRequests(ColumnRequests):
    """The requests of those records among some rows of a batch that queues hold.

    `numbering` is called when this object is made, so the requests of everything before must have been stored by then.
    """

    def __init__(self, batch: RecordBatch, rows: slice | Flags, assignment: OffsetAssignment) -> None:
        columns = batch.columns.select(rows)
        queued = _STATES_QUEUED[columns.system_flag & TRANSACTION_MASK]
        if not queued.all():
            columns = columns.select(queued)
        self._batch = batch
        self._columns = columns
        properties = stored_properties(batch, columns)
        self._tags_codes = properties.tags_hashes()
        self._correct_scheduled()
        self._light_queues = self._find_light_queues(properties.may_name_light_queues(), assignment)
        self._deleted = self._leave_out_deleted(assignment.deleted_topics)

    def _leave_out_deleted(self, deleted_topics: Mapping[str, PhysicalOffset]) -> Flags:
        """Leave out the rows that no queue has an entry of, and return which of the rest were deleted with their
        topic: they are in light queues alone.
        """
        columns = self._columns
        if not deleted_topics:
            return np.zeros(len(columns), np.bool_)
        ends = np.array([deleted_topics.get(topic, 0) for topic in self._batch.topics], np.int64)
        deleted = columns.physical_offset < ends[columns.topic_index]
        kept = ~deleted
        kept[list(self._light_queues)] = True
        renumbered = np.cumsum(kept) - 1
        self._columns, self._tags_codes = columns.select(kept), self._tags_codes[kept]
        self._light_queues = {int(renumbered[row]): named for row, named in self._light_queues.items()}
        return deleted[kept]

    def __len__(self) -> int:
        return len(self._columns)

    @overload
    def __getitem__(self, index: int) -> DispatchRequest: ...

    @overload
    def __getitem__(self, index: slice) -> list[DispatchRequest]: ...

    def __getitem__(self, index: int | slice) -> DispatchRequest | list[DispatchRequest]:
        return self._requests[index]

    def __iter__(self) -> Iterator[DispatchRequest]:
        return iter(self._requests)

    @cached_property
    def _requests(self) -> list[DispatchRequest]:
        columns, topics, light_queues = self._columns, self._batch.topics, self._light_queues
        requests = [
            DispatchRequest(
                topics[topic],
                number,
                QueueOffset(queue_offset),
                PhysicalOffset(physical_offset),
                size,
                code,
                stored_ms,
                system_flag,
                self._properties(row),
                light_queues.get(row, ()),
            )
            for row, topic, number, queue_offset, physical_offset, size, code, stored_ms, system_flag in zip(
                range(len(self)),
                columns.topic_index.tolist(),
                columns.queue_number.tolist(),
                columns.queue_offset.tolist(),
                columns.physical_offset.tolist(),
                columns.size.tolist(),
                self._tags_codes.tolist(),
                columns.store_timestamp_ms.tolist(),
                columns.system_flag.tolist(),
                strict=True,
            )
        ]
        for row in np.flatnonzero(self._deleted).tolist():
            alone = in_light_queues_alone(requests[row])
            assert alone is not None, "rows without any queue were left out"
            requests[row] = alone
        return requests

    @cached_property
    def entries(self) -> EntryColumns:
        columns = self._columns
        queues, queue_index = self._queues()
        own = EntryColumns(
            tuple(queues),
            queue_index,
            columns.queue_offset,
            columns.physical_offset,
            columns.size,
            self._tags_codes,
            columns.store_timestamp_ms,
        )
        return _with_light_queues(own, self._light_queues, self._deleted) if self._light_queues else own

    def _queues(self) -> tuple[list[QueueId], Integers]:
        """Return the distinct queues, and the index of each record's queue."""
        columns, topics = self._columns, self._batch.topics
        numbers = columns.queue_number
        if not len(numbers):
            return [], numbers
        width = int(numbers.max()) + 1
        pairs = columns.topic_index * width + numbers
        if len(topics) * width <= _PAIRS_COUNTED_MAX:
            present = np.flatnonzero(np.bincount(pairs))
            places = np.empty(len(topics) * width, np.int64)
            places[present] = np.arange(len(present))
            index = places[pairs]
        else:
            present, index = np.unique(pairs, return_inverse=True)
        return [QueueId(topics[pair // width], pair % width) for pair in present.tolist()], index

    def _correct_scheduled(self) -> None:
        """Replace the tags codes of records in the schedule topic, where the code is a time."""
        columns, topics = self._columns, self._batch.topics
        if SCHEDULE_TOPIC in topics:
            for row in np.flatnonzero(columns.topic_index == topics.index(SCHEDULE_TOPIC)).tolist():
                stored_ms = int(columns.store_timestamp_ms[row])
                self._tags_codes[row] = tags_code(SCHEDULE_TOPIC, self._properties(row), stored_ms)

    def _find_light_queues(
        self, candidates: Flags, assignment: OffsetAssignment
    ) -> dict[int, tuple[tuple[str, QueueOffset], ...]]:
        """Return the light queues that a record goes to, by row."""
        columns, topics = self._columns, self._batch.topics
        found = {}
        for row in np.flatnonzero(candidates).tolist():
            topic, at = topics[columns.topic_index[row]], PhysicalOffset(int(columns.physical_offset[row]))
            if named := tuple(light_queues(topic, self._properties(row), at, assignment)):
                found[row] = named
        return found

    def _properties(self, row: int) -> dict[str, str]:
        start = int(self._columns.properties_position[row])
        return decode_properties(bytes(self._batch.segment[start : start + int(self._columns.properties_length[row])]))


def _with_light_queues(
    own: EntryColumns, light: dict[int, tuple[tuple[str, QueueOffset], ...]], deleted: Flags
) -> EntryColumns:
    """Return each record's entry, unless it is deleted, and one more for each light queue that it goes to."""
    counts = np.ones(len(own), np.int64)
    counts[list(light)] += [len(named) for named in light.values()]
    first = np.cumsum(counts) - counts
    rows = np.repeat(np.arange(len(own)), counts)
    queue_index, queue_offset = own.queue_index[rows], own.queue_offset[rows]
    numbers = {queue: number for number, queue in enumerate(own.queues)}
    for row, named in light.items():
        for at, (name, offset) in enumerate(named, start=int(first[row]) + 1):
            queue_index[at] = numbers.setdefault(QueueId(name, LIGHT_QUEUE_NUMBER), len(numbers))
            queue_offset[at] = offset
    entries = EntryColumns(
        tuple(numbers),
        queue_index,
        queue_offset,
        own.physical_offset[rows],
        own.size[rows],
        own.tags_code[rows],
        own.store_timestamp_ms[rows],
    )
    if not deleted.any():
        return entries
    kept = np.ones(len(entries), np.bool_)
    kept[first[deleted]] = False
    return entries.select(kept).compact()


_DEQUEUED: Final = DEQUEUED_MS.encode()


def pending_requests(batch: RecordBatch) -> Sequence[DispatchRequest]:
    """Return the requests of records that change pending messages, in log order; some may change nothing."""
    columns = batch.columns
    marked = stored_properties(batch, columns).may_have(_DEQUEUED)
    marked |= columns.system_flag & TRANSACTION_MASK == TransactionState.COMMIT
    of_topic = np.array([topic in PENDING_TOPICS for topic in batch.topics], np.bool_)
    if of_topic.any():
        marked |= of_topic[columns.topic_index]
    return ScannedRequests(batch, marked, StoredAssignment()) if marked.any() else ()
