"""A store whose log is written by another broker.

Three offsets of the log, in this order; the first and the second may lie inside a record, the third never does:

    received     the bytes are in the segment: they survive the death of the process
    flushed      fdatasync has returned: the bytes survive power loss
    dispatched   the queues have the entries of all whole records below

Dispatch follows the flush, so queues never refer to bytes that a power cut takes back.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from contextlib import ExitStack
from itertools import groupby
from pathlib import Path
from struct import Struct
from typing import Final

from quarry_mq.protocol.names import is_light_queue, is_system_topic
from quarry_mq.store.commitlog import CommitLogFlusher, CommitLogReader, CommitLogReceiver, KeptSize, cut
from quarry_mq.store.consumequeue.dispatch import DenseAssignment, OffsetAssignment, UndeletedEntries
from quarry_mq.store.errors import StoreDamaged, StoreUnusable
from quarry_mq.store.follower.points import PointsOnRequest
from quarry_mq.store.fs import CopyingDisk
from quarry_mq.store.layout.paths import StorePaths
from quarry_mq.store.layout.queue_phase import QueuePhase
from quarry_mq.store.message import PhysicalOffset, QueueId, QueueOffset
from quarry_mq.store.opening.open_store import OpenStore, RecoveredStore
from quarry_mq.store.pending import PendingBefore, PendingMessages
from quarry_mq.store.record import Blank
from quarry_mq.store.recovery.recovery import bring_up_to
from quarry_mq.store.retention import SegmentRemover
from quarry_mq.store.scan import RecordBatch, found_in, pending_requests, scan_log
from quarry_mq.store.state.deletions import Deletion, Deletions

_SIZE: Final = Struct(">i")
_ZERO: Final = PhysicalOffset(0)


class FollowedStore:
    """The log of another broker with queues of its own. One thread calls everything."""

    def __init__(
        self,
        recovered: RecoveredStore,
        *,
        receiver: CommitLogReceiver,
        flusher: CommitLogFlusher[CommitLogReceiver],
        pending: PendingMessages,
        assignment: OffsetAssignment,
        remover: SegmentRemover,
        points: PointsOnRequest | None,
        closing: ExitStack,
    ) -> None:
        """Take over a recovered store. `closing` closes what was opened in addition to its parts."""
        self._recovered = recovered
        self._receiver = receiver
        self._flusher = flusher
        self._pending = pending
        self._deletions = Deletions(recovered.parts.state_engine)
        self._deleted = self._deletions.topics()
        self._removed_light: dict[str, PhysicalOffset] = {}
        self._assignment = UndeletedEntries(assignment, self._deleted, self._removed_light)
        self._topics: Collection[str] = ()
        self._topics_up_to = _ZERO
        self._remover = remover
        self._points = points
        self._closing = closing
        self._segments = recovered.parts.segments
        self._queues = recovered.parts.queues.store
        self._dispatched_up_to = receiver.end

    @property
    def received_up_to(self) -> PhysicalOffset:
        return self._receiver.end

    @property
    def flushed_up_to(self) -> PhysicalOffset:
        return self._flusher.flushed_up_to

    @property
    def dispatched_up_to(self) -> PhysicalOffset:
        return self._dispatched_up_to

    @property
    def minimum(self) -> PhysicalOffset:
        """The offset where the log begins."""
        return self._segments.minimum

    @property
    def segment_size(self) -> int:
        """The size of the log's segments in bytes."""
        return self._segments.segment_size

    def receive(self, offset: PhysicalOffset, data: bytes | memoryview) -> None:
        """Write bytes of the other log at the end of this one; see `CommitLogReceiver.receive` for what it raises.

        Bytes below the end must be those that are here. Raises StoreUnusable otherwise.
        """
        known = max(0, self._receiver.end - offset)
        rest = memoryview(data)
        self._require_equal(offset, rest[:known])
        if rest[known:]:
            self._receiver.receive(PhysicalOffset(offset + known), rest[known:])

    def _require_equal(self, offset: PhysicalOffset, data: memoryview) -> None:
        """Raise StoreUnusable unless the log has these bytes at the offset."""
        while data:
            segment, position = self._segments.segment_at(offset), offset - self._segments.base_of(offset)
            here = segment.view()[position : position + len(data)]
            if here != data[: len(here)]:
                raise StoreUnusable(
                    segment.path,
                    f"the other broker has other bytes at offset {offset} or within {len(here)} bytes after it: "
                    "it has lost the end of its log since; begin with an empty directory",
                )
            offset, data = PhysicalOffset(offset + len(here)), data[len(here) :]

    def commit(self) -> None:
        """Make everything received durable, and fill the queues with the whole records of it. Raises what `flush_log`
        and `dispatch` raise.
        """
        self.dispatch(self.flush_log())

    def flush_log(self) -> PhysicalOffset:
        """Make everything received durable, and return the end of it. Raises StorePoisoned."""
        return self._flusher.flush()

    def dispatch(self, end: PhysicalOffset) -> None:
        """Fill the queues with the whole records below `end`, which must be flushed.

        Raises StoreDamaged if the other broker sent what is no record, and kv.KvError.
        """
        while self._dispatched_up_to < end:
            for batch in scan_log(self._segments, self._dispatched_up_to, end):
                self._note_missing(batch.topics)
                found = found_in(batch, self._dispatched_up_to, self._assignment)
                self._queues.put_again(found.requests, batch.end)
                self._pending.put(pending_requests(batch), batch.end)
                self._dispatched_up_to = self._recovered.end = batch.end
                self._recovered.last_stored_ms = found.last_stored_ms or self._recovered.last_stored_ms
                if batch.ended_by is not None and not isinstance(batch.ended_by, Blank):
                    self._require_incomplete(batch, end)
                    return
        for name in [name for name, below in self._removed_light.items() if below <= self._dispatched_up_to]:
            del self._removed_light[name]  # no record below it will come any more

    def flush_queues(self) -> None:
        """Make the entries, and then how far they go, durable; and write down how far the log is.

        Damage in the log below is refused by the next start, and not cut off.
        """
        self._queues.flush_entries()
        self._queues.flush()
        self._pending.flush()
        self._recovered.parts.identity.flushed_up_to = self._dispatched_up_to

    def make_wanted_point(self) -> None:
        """Make a point of the store if a command wants one, and remove the last one if none does; call it often.

        Raises OSError if the folder of points cannot be written.
        """
        if self._points is not None:
            self._points.look(self._make_point)

    def _make_point(self, disk: CopyingDisk, directory: Path) -> PhysicalOffset:
        """Make a store in an empty folder that is equal to this one as it is now, and return where its log ends."""
        self.flush_queues()
        parts, paths = self._recovered.parts, StorePaths(directory)
        if parts.queues.phase is not QueuePhase.ROCKSDB or parts.queues.engine is None:
            raise StoreUnusable(parts.queues.file_directory, "there are queues in files, which have no second names")
        parts.queues.engine.checkpoint(directory / parts.queues.rocks_directory.name)
        self._pending.checkpoint(paths.pending_messages)
        parts.state_engine.checkpoint(paths.quarry)
        KeptSize(disk, paths.quarry).keep(self._segments.segment_size)
        disk.make_directories(paths.commit_log)
        for base in self._segments.bases:
            source = self._segments.path_of(base)
            disk.link_file(source, paths.commit_log / source.name)
        return self._dispatched_up_to

    def settle(self, before: PendingBefore, now_ms: int) -> None:
        """Drop the pending messages that the other broker has delivered by now; see `PendingMessages.settle`.

        A broker that was killed may have forgotten some of its progress, and delivers these messages again. They are
        made pending again from the log.
        """
        forgotten = self._pending.before is not None and before.is_earlier_than(self._pending.before)
        if forgotten:
            self._pending.delete_all()
        self._pending.settle(before, now_ms)
        if forgotten:
            bring_up_to(self._pending, self._segments, self._dispatched_up_to, lambda _: None)

    def take_topics(self, names: Collection[str], up_to: PhysicalOffset) -> None:
        """Leave out what the other broker has deleted: the messages below `up_to` of topics that are not in `names`.

        The names were read when the other broker's log ended at `up_to`, or later.
        """
        self._topics, self._topics_up_to = names, up_to
        for topic, queues in groupby(self._queues.queues(), key=lambda queue: queue.topic):
            if self._is_missing(topic) and not any(self._has_newer(queue, up_to) for queue in list(queues)):
                self._note_missing([topic])
                self._queues.delete_topic(topic)

    def _is_missing(self, topic: str) -> bool:
        return not (topic in self._topics or is_light_queue(topic) or is_system_topic(topic))

    def _has_newer(self, queue: QueueId, offset: PhysicalOffset) -> bool:
        last = self._queues.entries(queue, QueueOffset(self._queues.bounds(queue).maximum - 1), 1)
        return any(entry.physical_offset >= offset for entry in last)

    def _note_missing(self, topics: Iterable[str]) -> None:
        """Note durably that those of the topics which are missing are deleted, before their entries are left out."""
        for topic in topics:
            if self._is_missing(topic) and self._deleted.get(topic, 0) < self._topics_up_to:
                self._deletions.topic_deleted(topic, self._topics_up_to)
                self._deleted[topic] = self._topics_up_to

    def retire(self, minimum: PhysicalOffset) -> None:
        """Remove the segments below `minimum`, as the other broker has done. Raises OSError, kv.KvError.

        The segment that is being filled stays.
        """
        minimum = self._segments.base_of(min(minimum, self._dispatched_up_to))
        if minimum <= self._segments.minimum:
            return
        self.flush_queues()
        self._recovered.parts.identity.log_begin = minimum
        self._deletions.drop_below(self._segments.minimum)
        self._queues.set_minimum_physical_offset(minimum)
        self._remover.take(self._segments.retire_before(minimum))
        self._remover.run()

    def delete(self, name: str, below: PhysicalOffset) -> bool:
        """Delete the queues of a topic, or a light queue, as the other broker did when its log ended at `below`.

        Return False if the queues have records at or above `below` already; then nothing is deleted. Raises kv.KvError.
        """
        if any(self._has_newer(queue, below) for queue in list(self._queues.queues(name))):
            return False
        (self._removed_light if is_light_queue(name) else self._deleted)[name] = below
        if isinstance(rule := self._recovered.parts.queues.assignment, DenseAssignment):
            rule.forget(name)
        self._queues.delete_topic(name)
        return True

    def lower_deletion(self, old: Deletion, new: Deletion | None) -> None:
        """Let records above the new end of a deletion have entries: the other broker has lowered or dropped it."""
        noted = self._removed_light if is_light_queue(old.name) else self._deleted
        if noted.get(old.name) == old.below:
            if new is None:
                del noted[old.name]
            else:
                noted[old.name] = new.below

    def begin_writing(self) -> OpenStore:
        """Make this the store of a broker: end the log after its last whole record, and open it for writing.

        This object must not be used afterwards. Bytes of a record that is not complete are kept as `cut` keeps them.
        """
        self._end_following()
        return self._recovered.begin_writing()

    def close(self, *, up_to: PhysicalOffset | None = None) -> None:
        """Close the store. The log ends after its last whole record, or at `up_to` if this is a record's end below."""
        self._end_following(up_to)
        self._recovered.close()

    def _end_following(self, up_to: PhysicalOffset | None = None) -> None:
        """Make everything durable, and end the log after its last whole record."""
        end = self.flush_log()
        self.dispatch(end if up_to is None else min(end, up_to))
        self.flush_queues()
        self._closing.close()
        kept = cut(self._segments, self._dispatched_up_to).kept
        if up_to is not None:  # the other broker sends these bytes again
            for path in kept:
                self._segments.disk.remove(path)

    def _require_incomplete(self, batch: RecordBatch, end: PhysicalOffset) -> None:
        """Raise StoreDamaged unless more bytes can make a record of what lies after the batch."""
        at = batch.end
        if end - at < _SIZE.size:
            return
        segment = self._segments.segment_at(at)
        position = at - self._segments.base_of(at)
        (size,) = _SIZE.unpack_from(segment.view(), position)
        if size < 0 or at + size <= end or position + size > self._segments.segment_size:
            raise StoreDamaged(segment.path, f"what was received at offset {at} is no record: {batch.ended_by}")


def follow(
    recovered: RecoveredStore, *, begin: PhysicalOffset = _ZERO, points: PointsOnRequest | None = None
) -> FollowedStore:
    """Continue the log of a recovered store with the bytes of another broker.

    `begin` is where the log of an empty store begins. `points` makes points for commands.

    Raises OSError, kv.KvError, StoreUnusable.
    """
    parts = recovered.parts
    if not len(parts.segments):
        parts.segments.begin_at(begin)
        parts.queues.store.set_minimum_physical_offset(begin)
        parts.identity.log_begin = begin
        parts.identity.queues_made_again = True
        recovered.end = recovered.durable_up_to = begin
    end = recovered.end
    receiver = CommitLogReceiver(parts.segments, end)
    flusher = CommitLogFlusher(parts.segments, receiver, recovered.durable_up_to)
    flusher.flush()
    reader = CommitLogReader(parts.segments, end=lambda: receiver.end)
    recovered.mark_running()
    with ExitStack() as closing:
        if points is not None:
            closing.callback(points.close)
        pending = recovered.open_pending(reader, closing)
        return FollowedStore(
            recovered,
            receiver=receiver,
            flusher=flusher,
            pending=pending,
            assignment=parts.queues.assignment,
            remover=SegmentRemover(parts.segments.disk, parts.segments.directory, reader, clock=recovered.clock),
            points=points,
            closing=closing.pop_all(),
        )
