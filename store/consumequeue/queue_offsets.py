"""Own the next, max and min offsets of all queues of an open store, and all caches of them."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from operator import attrgetter
from typing import Final

from quarry_mq.protocol.messages.property_names import LIGHT_QUEUES
from quarry_mq.protocol.names import LIGHT_QUEUE_PREFIX
from quarry_mq.store.consumequeue.dispatch import LIGHT_QUEUE_NUMBER, in_light_queues_alone
from quarry_mq.store.consumequeue.names import LastEntry
from quarry_mq.store.consumequeue.protocol import ConsumeQueueStore
from quarry_mq.store.message import DispatchRequest, Message, PhysicalOffset, QueueId, QueueOffset

Queue = tuple[str, int]
"""A QueueId, or a plain tuple that is equal to it."""

_physical_offset: Final = attrgetter("physical_offset")


class LightFloor:
    """The lowest first offset of a new light queue: above the offsets of all light queues that were removed."""

    def __init__(
        self,
        stored: QueueOffset | None,
        save: Callable[[QueueOffset], None],
        settle: Callable[[str], None] = lambda _name: None,
    ) -> None:
        """Begin at the stored floor. `save` makes a floor durable, and `settle` the removal of a light queue."""
        self.offset = stored or QueueOffset(0)
        self._save = save
        self.settle: Final = settle

    def raise_to(self, offset: QueueOffset) -> None:
        """Raise the floor durably. It never falls."""
        if offset > self.offset:
            self._save(offset)
            self.offset = offset


class QueueOffsets:
    """The one owner of the offsets of queues: which offset comes next, and which are the max and min offset.

    One invariant holds for each queue at every moment between two calls:

        min offset <= max offset <= next offset

    The max offset is what the queue store has stored, and the min offset is that of the first entry below it whose
    record the log still has. The next offset is one more than that of the last record that is appended and not
    dispatched. A queue without such a record continues at its max offset, and a new light queue at the light floor.

    Each cache either has the value that the layer below it would give, or has nothing. The layers, from above:

        next offsets   of queues that were written, here; queues in files and in RocksDB have them
        known queues   keys, max, stored min and first entry of queues in RocksDB: `rocks.bounds.RocksBounds`
        native table   stored max and min of up to a million queues in RocksDB: `native/src/maxima.rs`; once all rows
                       were loaded into it, a queue that it lacks never had a message
        later puts     max offsets that RocksDB gets later: `kv.engine`; visible to every reader of the database

    What happens to them (-: stays valid; files keep no cache that needs any of this):

        event                             next offsets     known queues      native table
        -------------------------------   --------------   ---------------   ------------------------------------
        append                            advanced         -                 -
        append or put fails               -                -                 -
        put, put_again, put_missing       -                max advanced      max stored
        removal of a topic, light queue   dropped          dropped           removed: nothing is stored
        queue begins again, is reserved   none yet         dropped           max stored, min unknown
        min offsets are stored            -                min stored        min stored
        min offsets are removed           none yet         all dropped       all dropped; a miss means nothing again
        log is truncated                  none yet         all dropped       all dropped; a miss means nothing again
        log begins later                  -                first searched    -
        log begins earlier                -                all dropped       all dropped; a miss means nothing again
        more queues than fit              all dropped but  old generation    one other dropped; a miss means nothing
                                          undispatched     dropped           again
        migration switches the store      -                -                 -
        restart                           empty            empty             empty until the warm-up

    "None yet": only recovery does this, and migration to a database that assigns no offsets yet. An undispatched
    record's offset is nowhere but in the next offsets: they are dropped only when the topic is deleted, and then the
    record gets no entry in its own queue. Belongs to the thread that appends and dispatches. `kv.KvError` passes
    through; then nothing has changed.
    """

    def __init__(self, queues: ConsumeQueueStore, *, cached_max: int, light_floor: LightFloor | None = None) -> None:
        """Start with no next offset cached and every record dispatched."""
        self.queues = queues
        self._cached_max = cached_max
        self._light_floor = light_floor or LightFloor(None, lambda _: None)
        self._undispatched: list[DispatchRequest] = []
        self._deleted: dict[str, PhysicalOffset] = {}
        """Topics that were deleted while they had undispatched records, and where the log ended then."""
        self.next: dict[Queue, QueueOffset] = {}
        """The cached next offsets; read-only for callers."""
        self.bounds: Final = queues.bounds
        self.extents_of_all: Final = queues.extents_of_all
        self.maximum: Final = queues.next_offset

    # -- between append and dispatch

    def next_of(self, queue: Queue) -> QueueOffset:
        """Return the offset that the next record of the queue gets."""
        known = self.next.get(queue)
        if known is None:
            self.load([queue])
            known = self.next[queue]
        return known

    def load_for(self, messages: Iterable[Message]) -> None:
        """Load the next offsets of all queues that the messages go to, in one read."""
        queues = [(message.topic, message.queue_number) for message in messages]
        for message in messages:
            if LIGHT_QUEUES in message.properties:
                names = message.properties[LIGHT_QUEUES].split(",")
                queues += [(name, LIGHT_QUEUE_NUMBER) for name in names if name.startswith(LIGHT_QUEUE_PREFIX)]
        known = self.next
        if unknown := [queue for queue in queues if queue not in known]:
            self.load(unknown)

    def load(self, unknown: Sequence[Queue]) -> None:
        """Load the next offsets of uncached queues (duplicates allowed) in one read, which takes a third of the time.

        Never pass a cached queue: the queue store may lag behind what was appended.
        """
        stored = dict(zip(unknown, self.queues.next_offsets(unknown), strict=True))
        if floor := self._light_floor.offset:
            for (name, number), offset in stored.items():
                if offset == 0 and name.startswith(LIGHT_QUEUE_PREFIX):
                    self._light_floor.settle(name)
                    self.queues.remove_lost_entries(QueueId(name, number), floor)
                    stored[name, number] = floor
        self.next.update(stored)

    def appended(self, assigned: dict[Queue, QueueOffset], requests: list[DispatchRequest]) -> None:
        """Record an append that succeeded: the next offsets that it leaves, and what is to be dispatched."""
        self.next.update(assigned)
        self._undispatched += requests

    def undispatched_below(self, end: PhysicalOffset) -> list[DispatchRequest]:
        """Return the requests of all undispatched records below `end`, in log order."""
        requests = self._undispatched
        if requests and requests[-1].physical_offset >= end:
            return requests[: bisect_left(requests, end, key=_physical_offset)]
        return requests

    def undeleted(self, requests: list[DispatchRequest]) -> list[DispatchRequest]:
        """Return what is to be put into queues of these requests: a topic may have been deleted since the append."""
        if not self._deleted:
            return requests
        return [
            kept
            for each in requests
            if (kept := in_light_queues_alone(each) if self._is_deleted(each) else each) is not None
        ]

    def _is_deleted(self, request: DispatchRequest) -> bool:
        return request.physical_offset < self._deleted.get(request.topic, 0)

    def dispatched(self, requests: list[DispatchRequest]) -> None:
        """Record that the requests of `undispatched_below` were put into the queues."""
        self._undispatched = self._undispatched[len(requests) :]
        if not self._undispatched:
            self._deleted.clear()
        self.evict()

    def evict(self) -> None:
        """Drop all next offsets except those of queues with undispatched records, if there are too many."""
        if len(self.next) >= self._cached_max:
            self.next = {queue: self.next_of(queue) for queue in _queues_of(self._undispatched)}

    def is_undispatched(self, topic: str) -> bool:
        """Return whether the log holds records of the topic that are to be dispatched."""
        return any(each.topic == topic and not self._is_deleted(each) for each in self._undispatched)

    # -- removal

    def delete_topic(self, topic: str, queues: Iterable[QueueId], end: PhysicalOffset) -> None:
        """Remove the topic's `queues`, which are all that it has, and its undispatched records; the log ends at `end`.

        The records stay in the light queues that they name.
        """
        self.queues.delete_topic(topic)
        undispatched = [QueueId(topic, each.queue_number) for each in self._undispatched if each.topic == topic]
        if undispatched:
            self._deleted[topic] = end
        self._drop([*queues, *undispatched])

    def still_ended(self, found: Sequence[LastEntry]) -> list[LastEntry]:
        """Return the light queues among these to which no message was appended since they were found."""
        pending = _queues_of(self._undispatched)
        return self.queues.still_ended([each for each in found if each.queue not in pending])

    def remove_ended(self, found: Sequence[LastEntry]) -> None:
        """Remove light queues that are `still_ended`.

        The offsets of a light queue that is created later start above those of all light queues ever removed: it may be
        one of them, and a consumer that has read the old one must not take new messages for old ones.
        """
        if not found:
            return
        self._light_floor.raise_to(QueueOffset(max(each.last.queue_offset for each in found) + 1))
        self.queues.remove_ended(found)
        self._drop([each.queue for each in found])

    def _drop(self, queues: Iterable[QueueId]) -> None:
        for queue in queues:
            self.next.pop(queue, None)


def _queues_of(requests: Iterable[DispatchRequest]) -> set[QueueId]:
    """Return the queues that get an entry from these requests."""
    queues: set[QueueId] = set()
    for request in requests:
        queues.add(QueueId(request.topic, request.queue_number))
        queues.update(QueueId(name, LIGHT_QUEUE_NUMBER) for name, _ in request.light_queues)
    return queues
