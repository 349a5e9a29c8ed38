"""The contract of consume queue storage.

Implementations: `RocksConsumeQueues` (any `kv.KeyValueEngine`) and `FileConsumeQueues`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol

from quarry_mq.store.consumequeue.light_queues import LiteParentsStep
from quarry_mq.store.consumequeue.names import LastEntry, LightQueueStep, QueueEnd
from quarry_mq.store.message import ConsumeQueueEntry, DispatchRequest
from quarry_mq.store.metadata.names import LIGHT_QUEUE_PREFIX
from quarry_mq.store.offsets import PhysicalOffset, QueueBounds, QueueExtent, QueueId, QueueOffset


class OneByOne(Protocol):
    """Part of a `store.consumequeue.protocol.ConsumeQueueStore`."""

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
    """All consume queues of one store: derived data, always rebuildable from the commit log."""

    may_hold_more: bool
    """Whether entries of records at or above the watermark may count after a crash, until they are truncated."""

    def put(self, requests: Sequence[DispatchRequest], dispatched_up_to: PhysicalOffset) -> None:
        """Store the entries of the records, the new maxima and the watermark.

        A crash leaves all of it, or a watermark that makes recovery put it again: repeating a request writes the
        same again. Requests come in log order. After an error (`kv.KvError`) nothing of it counts.
        """

    def put_missing(self, requests: Sequence[DispatchRequest]) -> None:
        """Store entries of records from below the watermark, which stays. For queues that began in mid-log."""

    def put_again(self, requests: Sequence[DispatchRequest], dispatched_up_to: PhysicalOffset) -> None:
        """`put` for requests read back from the log, which may tell of a queue that began anew.

        A record whose offset is not above that of the record before it in its queue tells that the queue was
        deleted between the two: what the queue had at this offset and above goes. A crash can take the deletion
        back, but not what was stored after it.
        """

    def entries(self, queue: QueueId, start: QueueOffset, limit: int) -> list[ConsumeQueueEntry]:
        """At most `limit` entries with offset >= start, ascending, none below the log's minimum.

        Offsets without an entry (holes left by doubled light-queue names) are passed over.
        """

    def last_entry_below(self, queue: QueueId, at: PhysicalOffset) -> ConsumeQueueEntry | None:
        """The entry with the largest physical offset below `at`; None when the queue has none in the log."""

    def unread_below(self, queue: QueueId, start: QueueOffset, at: PhysicalOffset) -> int:
        """How many entries from `start` on have records below `at` that the log still has.

        May be called from any thread. Offsets without an entry are counted too.
        """

    def bounds(self, queue: QueueId) -> QueueBounds:
        """Bounds now; (0, 0) for a queue never written. Never inverted (rmq#10417)."""

    def extents_of_all(self, queues: Sequence[QueueId]) -> list[QueueExtent]:
        """Bounds and begin of each of some different queues: read together, each takes a part of the time."""

    def next_offset(self, queue: QueueId) -> QueueOffset:
        """The maximum as stored: where numbering goes on after a restart."""

    def next_offsets(self, queues: Sequence[tuple[str, int]]) -> list[QueueOffset]:
        """The same of many queues: read together, each takes a third of the time. QueueIds or plain tuples."""

    def dispatched_up_to(self) -> PhysicalOffset | None:
        """Exclusive end of the log range whose entries are stored; None when nothing was ever dispatched."""

    def may_have(self, topic: str) -> bool:
        """Whether there can be queues of the name: files cannot have every name of a light queue. Entries of the others
        are left out.
        """

    def queues(self, topic: str | None = None) -> Iterator[QueueId]:
        """Every queue that has a stored maximum, in key order."""

    def queues_of(self, topic: str) -> list[QueueId]:
        """Those of one topic, for who is about to ask for their bounds. On the thread that puts."""

    def ends(self, topic: str, behind: int, limit: int) -> list[QueueEnd]:
        """The next `limit` queues of a topic with numbers above `behind`, by number; -1 begins.

        Costs one range read however many there are: nothing is kept of the queues.
        """

    def topics_behind(self, behind: str, limit: int) -> list[str]:
        """The next `limit` topics in key order that may have queues, light queues left out; "" begins. Any thread."""

    def light_queues_ended(self, below: PhysicalOffset, key: bytes, prefix: str = LIGHT_QUEUE_PREFIX) -> LightQueueStep:
        """Look at some more light queues for such whose last entry lies below the offset; b"" begins. Any thread.

        `prefix` is how their names begin. None are found while queues are kept in files: there they stay, as RocketMQ
        lets them.
        """

    def lite_parents(self, key: bytes) -> LiteParentsStep:
        """Some more of the topics that have lite topics; b"" begins. None while queues are in files. Any thread."""

    def last_times_ms(self, found: Sequence[LastEntry]) -> list[int | None]:
        """When the last message of each light queue was stored; None where its entry is gone. Any thread."""

    def still_ended(self, found: Sequence[LastEntry]) -> list[LastEntry]:
        """Those of the light queues that got no entry since they were found."""

    def remove_ended(self, found: Sequence[LastEntry]) -> None:
        """Remove light queues that are `still_ended`, numbering and all."""

    def delete_topic(self, topic: str) -> None:
        """Remove entries and bounds of all queues of the topic (rmq#9454: also those never touched since start)."""

    def truncate(self, end: PhysicalOffset) -> None:
        """Remove every entry of a record at or above `end`; maxima and watermark are lowered accordingly."""

    def set_minimum_physical_offset(self, minimum: PhysicalOffset) -> None:
        """Tell where the log begins now; entries below are invisible at once."""

    def flush_entries(self) -> None:
        """Make the entries put so far durable; bounds and watermark follow with `flush`. May run beside puts.

        The long part of a flush, done first so that dispatch need not stop for it. Whenever a crash comes, the
        watermark on disk is never ahead of the entries on disk.
        """

    def flush(self) -> None:
        """Make all puts so far durable, entries before maxima and watermark. No put may run meanwhile."""

    def close(self) -> None: ...
