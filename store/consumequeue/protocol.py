"""The contract of consume queue storage.

Implementations: `RocksConsumeQueues` (any `kv.KeyValueEngine`) and `FileConsumeQueues`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol

from quarry_mq.protocol.names import LIGHT_QUEUE_PREFIX
from quarry_mq.store.consumequeue.light_queues import LiteParentsStep
from quarry_mq.store.consumequeue.names import LastEntry, LightQueueStep, QueueEnd
from quarry_mq.store.message import (
    ConsumeQueueEntry,
    DispatchRequest,
    PhysicalOffset,
    QueueBounds,
    QueueExtent,
    QueueId,
    QueueOffset,
)


class OneByOne(Protocol):
    """Default implementations for part of a `store.consumequeue.protocol.ConsumeQueueStore`, queue by queue."""

    def bounds(self, queue: QueueId) -> QueueBounds: ...

    def next_offset(self, queue: QueueId) -> QueueOffset: ...

    def queues(self, topic: str | None = None) -> Iterator[QueueId]: ...

    def entries(self, queue: QueueId, start: QueueOffset, limit: int) -> list[ConsumeQueueEntry]: ...

    def extents_of_all(self, queues: Sequence[QueueId]) -> list[QueueExtent]:
        extents = []
        for queue in queues:
            minimum, maximum = self.bounds(queue)
            first = self.entries(queue, minimum, 1) if minimum < maximum else []
            extents.append(QueueExtent(minimum, maximum, first[0].physical_offset if first else None))
        return extents

    def next_offsets(self, queues: Sequence[tuple[str, int]]) -> list[QueueOffset]:
        return [self.next_offset(QueueId(*queue)) for queue in queues]

    def queues_of(self, topic: str) -> list[QueueId]:
        return list(self.queues(topic))


class ConsumeQueueStore(Protocol):
    """Keep all consume queues of one store: derived data, always rebuildable from the commit log."""

    may_hold_more: bool
    """True if entries of records at or above the watermark may count after a crash, until they are truncated."""

    def put(self, requests: Sequence[DispatchRequest], dispatched_up_to: PhysicalOffset) -> None:
        """Store the entries of the records, the new max offsets and the watermark.

        After a crash either all of it is there, or the watermark makes recovery put it again: repeating a request
        writes the same again. Requests come in log order. After an error (`kv.KvError`) nothing of it counts.
        """

    def put_missing(self, requests: Sequence[DispatchRequest]) -> None:
        """Store entries of records from below the watermark, which does not move. For queues that began in mid-log."""

    def put_again(self, requests: Sequence[DispatchRequest], dispatched_up_to: PhysicalOffset) -> None:
        """Do the same as `put` for requests read back from the log, in which a queue may begin again at a lower offset.

        If a record's offset is not above that of the record before it in its queue, the queue was deleted between the
        two: entries of the queue at this offset and above are removed. A crash can undo the deletion, but not what was
        stored after it.
        """

    def reserve(self, queue: QueueId, next_offset: QueueOffset) -> None:
        """Let offsets of an empty queue begin at `next_offset`, as in a queue whose entries have all expired.

        The log does not show the next offset of such a queue. A queue whose max offset is already that high stays as it
        is. Durable with the next flush.
        """

    def remove_lost_entries(self, queue: QueueId, end: QueueOffset) -> None:
        """Remove entries from the max offset up to `end`, durably: a power cut took their records and the max offset.

        They are not counted, and the queue's next entries replace them. So this is needed only before the queue goes on
        at a higher offset than its max offset: at `end`.
        """

    def entries(self, queue: QueueId, start: QueueOffset, limit: int) -> list[ConsumeQueueEntry]:
        """Return at most `limit` entries with offset >= start, ascending, none below the log's min offset.

        Offsets without an entry (holes left by duplicate light-queue names) are skipped.
        """

    def last_entry_below(self, queue: QueueId, at: PhysicalOffset) -> ConsumeQueueEntry | None:
        """Return the entry with the largest physical offset below `at`; None when the queue has none in the log."""

    def unread_below(self, queue: QueueId, start: QueueOffset, at: PhysicalOffset) -> int:
        """Return how many entries from `start` on have records below `at` that the log still has.

        May be called from any thread. Offsets without an entry are counted, too.
        """

    def bounds(self, queue: QueueId) -> QueueBounds:
        """Return the current bounds; (0, 0) for a queue never written. Never inverted (rmq#10417)."""

    def extents_of_all(self, queues: Sequence[QueueId]) -> list[QueueExtent]:
        """Return bounds and first physical offset of some distinct queues; reading them together is faster."""

    def next_offset(self, queue: QueueId) -> QueueOffset:
        """Return the max offset as stored: offset assignment continues here after a restart."""

    def next_offsets(self, queues: Sequence[tuple[str, int]]) -> list[QueueOffset]:
        """Return `next_offset` of many queues, QueueIds or plain tuples: in one read each takes a third of the time."""

    def dispatched_up_to(self) -> PhysicalOffset | None:
        """Return the exclusive end of the log range whose entries are stored; None when nothing was ever dispatched."""

    def may_have(self, topic: str) -> bool:
        """Return whether queues of this name can exist: not every name of a light queue can be a file name.

        Entries of queues that cannot exist are left out.
        """

    def queues(self, topic: str | None = None) -> Iterator[QueueId]:
        """Yield every queue that has a stored max offset, in key order."""

    def queues_of(self, topic: str) -> list[QueueId]:
        """Return the queues of one topic, for a caller that reads their bounds next. On the thread that puts."""

    def ends(self, topic: str, after: int, limit: int) -> list[QueueEnd]:
        """Return the last positions of the next `limit` queues of a topic numbered above `behind`; -1 begins.

        They are ordered by number. Costs one range read however many queues there are: nothing is kept of them.
        """

    def topics_after(self, after: str, limit: int) -> list[str]:
        """Return the next `limit` topics in key order that may have queues; "" begins. No light queues. Any thread."""

    def light_queues_ended(self, below: PhysicalOffset, key: bytes, prefix: str = LIGHT_QUEUE_PREFIX) -> LightQueueStep:
        """Scan the next light queues and return those whose last entry lies below the offset; b"" begins. Any thread.

        Only light queues whose names begin with `prefix` are scanned. None are found while queues are kept in files:
        there they stay, as in RocketMQ.
        """

    def lite_parents(self, key: bytes) -> LiteParentsStep:
        """Return some more topics that have lite topics; b"" begins. None while queues are in files. Any thread."""

    def last_times_ms(self, found: Sequence[LastEntry]) -> list[int | None]:
        """Return when the last message of each light queue was stored; None where its entry is gone. Any thread."""

    def still_ended(self, found: Sequence[LastEntry]) -> list[LastEntry]:
        """Return the light queues that got no entry since they were found."""

    def remove_ended(self, found: Sequence[LastEntry]) -> None:
        """Remove light queues that are `still_ended`, including their next offsets."""

    def delete_topic(self, topic: str) -> None:
        """Remove entries and bounds of all queues of the topic (rmq#9454: also those never touched since start)."""

    def truncate(self, end: PhysicalOffset) -> None:
        """Remove every entry of a record at or above `end`; max offsets and watermark are lowered accordingly."""

    def set_minimum_physical_offset(self, minimum: PhysicalOffset) -> None:
        """Set the log's min offset; entries below it are invisible at once."""

    def flush_entries(self) -> None:
        """Make the entries put so far durable; bounds and watermark follow with `flush`. May run beside puts.

        This is the long part of a flush, done first so that dispatch need not stop for it. Whenever a crash comes, the
        watermark on disk is never ahead of the entries on disk.
        """

    def flush(self) -> None:
        """Make all puts so far durable, entries before max offsets and watermark. No put may run meanwhile."""

    def close(self) -> None: ...
