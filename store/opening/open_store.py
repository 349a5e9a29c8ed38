"""The module opens a store: a new one, Quarry's own, or one that RocketMQ wrote.

After the lock is taken, each kind of store needs these steps:

| origin                 | queues in                 | on the first opening |
|------------------------|---------------------------|----------------------|
| new                    | `consumequeue_rocksdb/`   | nothing |
| RocketMQ, RocksDB      | `consumequeue/`, in place | metadata imported |
| RocketMQ, file queues  | `consumequeue_rocksdb/`   | metadata imported; all entries rebuilt from the log |
| RocketMQ, double write | `consumequeue/`, in place | metadata imported; entries from before double write began added |

Every step is repeatable and continues where it was killed.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import structlog

from quarry_mq.kv import EngineFull, KeyValueEngine, KvError
from quarry_mq.protocol.clock import Clock, ReportProgress
from quarry_mq.protocol.names import is_light_queue
from quarry_mq.store.commitlog import CommitLogFlusher, CommitLogReader, CommitLogWriter, SegmentList, cut
from quarry_mq.store.commitlog.segments import SegmentPins, StoreTimes
from quarry_mq.store.consumequeue import ConsumeQueueStore, RocksConsumeQueues
from quarry_mq.store.consumequeue.dispatch import UndeletedEntries
from quarry_mq.store.consumequeue.queue_offsets import LightFloor, QueueOffsets
from quarry_mq.store.engines import RocksStoreEngines, StoreEngines
from quarry_mq.store.errors import StoreLocked, StoreServed, StoreUnusable
from quarry_mq.store.fs import Disk, DiskLock
from quarry_mq.store.index.opening import IndexedLog, open_indexes, rebuild_indexes_later
from quarry_mq.store.layout.kind import FoundStore, StoreKind, inspect_store
from quarry_mq.store.layout.paths import PHYSICAL_OFFSET_MAXIMUM, StorePaths, segment_name
from quarry_mq.store.layout.queue_phase import QueuePhase
from quarry_mq.store.message import PhysicalOffset
from quarry_mq.store.message_store import MessageStore
from quarry_mq.store.metadata import ConsumerOffsetTable, GroupTable, TopicTable
from quarry_mq.store.metadata.owners import Owners
from quarry_mq.store.migration import MigrationRows, QueueMigration, delete_gone_queues
from quarry_mq.store.opening.in_flight import take_in_flight
from quarry_mq.store.opening.parts import StoreParts, open_parts, stop_of
from quarry_mq.store.opening.queues import adopt_topics, advising
from quarry_mq.store.opening.repair import NO_ORDERS, Damage, Orders, give_up_damaged, set_queues_aside
from quarry_mq.store.pending import PendingMessages, reading
from quarry_mq.store.record.layout import RECORD_SIZE_MINIMUM
from quarry_mq.store.recovery.checkpoint import StoreCheckpoint, durable_offset, known_of, read_checkpoint, taken_over
from quarry_mq.store.recovery.recovery import RecoveryReport, backfill, bring_up_to, delete_again, recover, watermark_of
from quarry_mq.store.replication import ChangeLog, ReplicatedRows, SharedKind
from quarry_mq.store.replication.change_log import open_change_log
from quarry_mq.store.retention import LogExpiry, QueueExpiry
from quarry_mq.store.rocketmq import import_metadata, read_metadata
from quarry_mq.store.security.policies import PolicyTable
from quarry_mq.store.security.sealer import Sealer
from quarry_mq.store.security.users import UserTable
from quarry_mq.store.settings import Durability, StoreSettings
from quarry_mq.store.state.deletions import Deletions
from quarry_mq.store.state.identity import DurableState, StoreIdentity
from quarry_mq.store.state.in_flight_key import delete_beyond
from quarry_mq.store.state.state_log import NO_CURSOR, delete_cursor, read_cursor

log = structlog.get_logger(__name__)


NAMED_SEGMENTS_MAX: Final = 16
"""The number of missing files that a log line names; the line also gives their total number."""


class StoreTables:
    """The object holds the metadata tables of one store."""

    def __init__(self, engine: KeyValueEngine, sealer: Sealer | None, change_log: ChangeLog | None) -> None:
        """Open the tables. `change_log` tracks their changes if the store is, or was, in a cluster."""
        topics, groups, users, policies = (
            None if change_log is None else change_log.journal(kind)
            for kind in (SharedKind.TOPIC, SharedKind.GROUP, SharedKind.USER, SharedKind.POLICY)
        )
        self.groups = GroupTable(engine, owners=Owners(engine, "group"), journal=groups)
        self.topics = TopicTable(engine, owners=Owners(engine, "topic"), journal=topics, has_group=self._has_group)
        self.offsets = ConsumerOffsetTable(engine)
        self.policies = PolicyTable(engine, policies)
        self.users = UserTable(engine, sealer, self.policies, journal=users)
        self.replicated: ReplicatedRows | None = None
        """The rows that the store shares with the other members of its cluster; None until `share`."""

    def _has_group(self, name: str) -> bool:
        return self.groups.get(name) is not None

    def share(self, change_log: ChangeLog) -> ReplicatedRows:
        """Return the tables' rows as other members of a cluster see them; from here on all of them have a version."""
        replicated = ReplicatedRows(
            change_log,
            {
                SharedKind.TOPIC: self.topics,
                SharedKind.GROUP: self.groups,
                SharedKind.USER: self.users,
                SharedKind.POLICY: self.policies,
            },
        )
        replicated.enable()
        self.replicated = replicated
        return replicated


@dataclass(frozen=True, slots=True)
class Copied:
    """A store of which another one is a copy."""

    origin: StoreKind
    """The kind of the primary's store when Quarry first opened it."""
    parts_at: PhysicalOffset | None = None
    """The end of what both logs share, if the copy's log goes on with other records; its rows are not used then."""
    is_promoted: bool = False
    """True if the copy goes on alone: nobody sends the end of its log again, for which it may not have the rows."""


@dataclass(frozen=True, slots=True)
class StartReport:
    """The report of a start: its recovery, its repairs, and how the last broker stopped."""

    recovery: RecoveryReport
    given_up: Damage | None
    """The damage that was replaced because an operator ordered it; None without an order."""
    is_after_crash: bool
    """True if the last broker on the store did not stop cleanly."""


class OpenStore:
    """An open store and what belongs to it. `close` ends it cleanly; dropping the object is like a crash."""

    def __init__(
        self,
        parts: StoreParts,
        tables: StoreTables,
        *,
        messages: MessageStore,
        checkpoint: StoreCheckpoint,
        expiry: LogExpiry,
        migration: QueueMigration,
        start: StartReport,
        ending: ExitStack,
    ) -> None:
        """Take over what was opened. `ending` closes the parts and, if nothing fails, marks the stop as clean."""
        self.messages = messages
        self.topics = tables.topics
        self.groups = tables.groups
        self.offsets = tables.offsets
        self.users = tables.users
        self.policies = tables.policies
        self.replicated = tables.replicated
        self.identity = parts.identity
        self.checkpoint = checkpoint
        self.recovery = start.recovery
        self.given_up = start.given_up
        self.segments = parts.segments
        self.pins = expiry.pins
        self.expiry = expiry
        self.queue_expiry = QueueExpiry(parts.disk, parts.identity, parts.queues)
        self.queues = parts.queues
        self.migration = migration
        self.state_engine = parts.state_engine
        self.state_log = parts.state_log
        self.is_after_crash = start.is_after_crash
        self._ending = ending

    def close(self) -> None:
        """Flush the log, dispatch and flush the rest, release everything, and mark the stop as clean.

        After a failed flush nothing more is written and the stop is not marked clean: the next start recovers. A full
        disk is no error here, but the stop is not clean either: data that did not fit is still in the log.
        """
        try:
            with self._ending:
                flushed = self.messages.flush()
                self.messages.dispatch(flushed)
                self.messages.flush_queues()
                self._close_indexes()
                self._save_checkpoint()
        except EngineFull as error:
            log.warning("stopped on a full disk, the next start makes again what found no room", error=str(error))

    def _close_indexes(self) -> None:
        for index in self.messages.indexes.followers:
            try:
                index.close()
            except OSError as error:
                log.warning("the key index could not be completed, the next start does it", error=str(error))

    def _save_checkpoint(self) -> None:
        try:
            self.checkpoint.close()
        except OSError as error:
            # an older checkpoint claims less, which costs RocketMQ time and Quarry nothing
            log.warning("the checkpoint could not be written, it stays where it was", error=str(error))


class RecoveredStore:
    """A store after recovery: log, queues and tables agree and can be read, and nothing is written yet.

    `begin_writing` makes the store of a broker of it. Until then a follower may continue the log with the bytes of
    another broker.
    """

    def __init__(
        self,
        opening: _Opening,
        parts: StoreParts,
        tables: StoreTables,
        *,
        found: FoundStore,
        start: StartReport,
        durable_up_to: PhysicalOffset,
        ending: ExitStack,
    ) -> None:
        """Take over what was opened. `ending` closes the parts and, if nothing fails, marks the stop as clean."""
        self.parts = parts
        self.tables = tables
        self.found = found
        self.start = start
        self.durable_up_to = durable_up_to
        self.end = start.recovery.end
        """The end of the last record of the log; whoever continues the log moves it."""
        self.last_stored_ms = start.recovery.findings.last_stored_ms
        """The store time of this record; None if unknown."""
        self.clock = opening.clock
        self._opening = opening
        self._ending = ending

    def begin_writing(self) -> OpenStore:
        """Open the log for writing at its `end`. This object must not be used afterwards.

        Raises StoreUnusable or OSError; then everything is closed.
        """
        with _naming_the_store(self._opening.root), self._ending as ending:
            return self._opening.begin_writing(self, ending)

    def open_pending(self, reader: CommitLogReader, closing: ExitStack) -> PendingMessages:
        """Open the pending messages, brought up to date with the log. `closing` closes them."""
        return self._opening.open_pending(self.parts, reader, closing)

    def mark_running(self) -> None:
        """Mark that the log grows: unless the store is closed, the next start treats it as after a crash."""
        self._opening.mark_running()

    def close(self) -> None:
        """Close the parts and mark the stop as clean."""
        self._ending.close()


def open_store(
    settings: StoreSettings,
    *,
    disk: Disk,
    clock: Clock,
    report: ReportProgress,
    engines: StoreEngines | None = None,
    orders: Orders = NO_ORDERS,
    sealer: Sealer | None = None,
) -> OpenStore:
    """Open the store at `settings.root`, recovered and ready; `report` is called during long steps.

    `orders` are repairs that an operator accepts; they run before recovery (`store.opening.repair`). `sealer` opens the
    secrets of users; without it no user has a secret.

    Raises StoreUnusable (one line that names the file) when an operator has to act first, OSError when the disk
    refuses. The lock comes before everything else: a store that another broker holds is not touched.
    """
    recovered = recover_store(
        settings, disk=disk, clock=clock, report=report, engines=engines, orders=orders, sealer=sealer
    )
    return recovered.begin_writing()


def recover_store(
    settings: StoreSettings,
    *,
    disk: Disk,
    clock: Clock,
    report: ReportProgress,
    engines: StoreEngines | None = None,
    orders: Orders = NO_ORDERS,
    sealer: Sealer | None = None,
    followed: StoreKind | Copied | None = None,
) -> RecoveredStore:
    """Do the first half of `open_store`, which needs no writer. Raises what `open_store` raises.

    `followed` says whose log this store continues: that of a RocketMQ broker with this kind of store, whose metadata
    are imported when the store is opened without it, or that of a primary of which this store is a copy.
    """
    engines = engines or RocksStoreEngines()
    opening = _Opening(settings, disk, clock, report, engines=engines, orders=orders, sealer=sealer, followed=followed)
    return opening.recover()


@contextmanager
def _naming_the_store(root: Path) -> Iterator[None]:
    """Turn an error of a database into one that names the store."""
    try:
        yield
    except KvError as error:
        raise StoreUnusable(root, str(error)) from error


class _Opening:
    """The object runs the steps of one opening."""

    def __init__(
        self,
        settings: StoreSettings,
        disk: Disk,
        clock: Clock,
        report: ReportProgress,
        *,
        engines: StoreEngines,
        orders: Orders,
        sealer: Sealer | None,
        followed: StoreKind | Copied | None,
    ) -> None:
        self._settings = settings
        self._copied = followed if isinstance(followed, Copied) else None
        self.followed: Final = None if isinstance(followed, Copied) else followed
        self._disk = disk
        self.clock: Final = clock
        self._report = report
        self._engines = engines
        self._orders = orders
        self._sealer = sealer
        self._paths = StorePaths(settings.root)
        self.root: Final = settings.root

    def recover(self) -> RecoveredStore:
        inspect_store(self._disk, self.root)
        self._disk.make_directories(self.root)
        with _naming_the_store(self.root), ExitStack() as ending:
            ending.callback(self._lock().release)
            ending.push(self._mark_clean)
            # inspected again: what was seen before the lock was taken may have changed since
            found = inspect_store(self._disk, self.root)
            if self._copied is not None and found.kind is StoreKind.QUARRY:
                self.mark_running()  # the end of the log may be cut off, as by a power cut
                found = inspect_store(self._disk, self.root)
            if self._orders.rebuild_queues:
                set_queues_aside(self._disk, self._paths, found, self._engines)
                found = inspect_store(self._disk, self.root)
            return self._recovered(found, ending)

    def mark_running(self) -> None:
        self._disk.replace_atomically(self._paths.abort, str(os.getpid()).encode())

    def _mark_clean(self, error: type[BaseException] | None, *_: object) -> None:
        if error is None:
            self._disk.remove(self._paths.abort)

    def _lock(self) -> DiskLock:
        try:
            return self._disk.lock(self._paths.lock)
        except BlockingIOError as error:
            raise StoreLocked(self._paths.lock, "another broker holds this store") from error

    def _recovered(self, found: FoundStore, ending: ExitStack) -> RecoveredStore:
        parts = open_parts(
            self._settings,
            self._disk,
            self._engines,
            found,
            clock=self.clock,
            closing=ending,
            origin=self.followed if self._copied is None else self._copied.origin,
        )
        identity, segments = parts.identity, parts.segments
        if self._copied is not None:
            self._begin_copy(parts, self._copied)
        if self.followed is not None and identity.metadata_imported:
            raise StoreServed(self.root, "a broker has served this store: only an empty directory can begin to follow")
        damage = None
        if self._orders.replace_damaged:
            damage = give_up_damaged(self._disk, self._paths, parts, found, report=self._report)
        warn_of_missing_begin(segments, identity.log_begin)
        durable_up_to = max(identity.flushed_up_to or segments.minimum, segments.minimum)
        recovery = self._recover(parts, found)
        if len(segments):
            segments.keep_size()
        if identity.log_begin != segments.minimum:
            identity.log_begin = segments.minimum
        change_log = open_change_log(parts.state_engine, self.clock, self._settings.member)
        tables = self._open_tables(parts, recovery.end, change_log)
        if change_log is not None and self._settings.member is not None:
            tables.share(change_log)
        start = StartReport(recovery, damage, is_after_crash=found.has_abort)
        return RecoveredStore(
            self, parts, tables, found=found, start=start, durable_up_to=durable_up_to, ending=ending.pop_all()
        )

    def _begin_copy(self, parts: StoreParts, copied: Copied) -> None:
        """End the log of a copy where its rows end, since the primary sends the rest again; or where the logs part."""
        identity, segments = parts.identity, parts.segments
        if not identity.metadata_imported:
            identity.set_metadata_imported()
        cursor = read_cursor(parts.state_engine)
        if copied.parts_at is not None:
            delete_cursor(parts.state_engine)
            end = copied.parts_at
            # what rests on the records that go, until the rows of the primary replace it: positions, and the indexes
            identity.seen_up_to = PhysicalOffset(PHYSICAL_OFFSET_MAXIMUM)
            rebuild_indexes_later(identity, above=end)
        elif cursor.run != NO_CURSOR.run and cursor.position >= 0 and not copied.is_promoted:
            end = cursor.position
        else:
            return  # not begun, or a primary until now
        if end < segments.minimum:
            raise StoreUnusable(segments.directory, f"the log begins at {segments.minimum}, and is to end at {end}")
        if end < segments.end_of_files:
            identity.flushed_up_to = PhysicalOffset(min(identity.flushed_up_to or 0, end))
            kept = cut(segments, end).kept
            for path in kept if copied.parts_at is None else ():  # nobody else has what comes after a parting
                self._disk.remove(path)

    def begin_writing(self, recovered: RecoveredStore, ending: ExitStack) -> OpenStore:
        """Open the log for writing, and mark that a broker runs on the store."""
        parts, tables = recovered.parts, recovered.tables
        messages, checkpoint = self._open_messages(recovered, ending)
        expiry = LogExpiry(
            segments=parts.segments,
            messages=messages,
            queues=parts.queues.store,
            queue_directory=lambda: parts.queues.directory,
            positions=tables.offsets,
            identity=parts.identity,
            pins=SegmentPins(self.clock),
            clock=self.clock,
        )
        self.mark_running()
        return OpenStore(
            parts,
            tables,
            messages=messages,
            checkpoint=checkpoint,
            expiry=expiry,
            migration=self._migration(parts),
            start=recovered.start,
            ending=ending.pop_all(),
        )

    def _migration(self, parts: StoreParts) -> QueueMigration:
        return QueueMigration(
            parts.queues,
            MigrationRows(parts.state_engine),
            parts.identity,
            settings=self._settings,
            segments=parts.segments,
            disk=self._disk,
            engines=self._engines,
            clock=self.clock,
        )

    def _open_messages(self, recovered: RecoveredStore, closing: ExitStack) -> tuple[MessageStore, StoreCheckpoint]:
        """Open the log for writing at its end; flush all of it and write down that it is durable."""
        parts, found, end = recovered.parts, recovered.found, recovered.end
        segments = parts.segments
        deletions = Deletions(parts.state_engine)
        deletions.drop_below(segments.minimum)
        deletions.lower_to(end)
        lays_zeros = self._settings.durability is Durability.SYNC
        writer = CommitLogWriter(segments, end, lays_zeros=lays_zeros)
        closing.callback(writer.close)
        _warn_of_little_room(segments, end)
        # the dead process may have left pages in the cache that were never flushed
        flusher = CommitLogFlusher(segments, writer, recovered.durable_up_to)
        flusher.flush()
        before = read_checkpoint(self._disk, self._paths.checkpoint)
        reader = CommitLogReader(segments, end=lambda: writer.end)
        unclean_ms = before.index_ms if found.has_abort else None
        log_now = IndexedLog(segments, end, lambda: flusher.flushed_up_to, unclean_ms)
        indexes = open_indexes(self._settings.index, self._disk, self._paths, parts.identity, log_now, clock=self.clock)
        messages = MessageStore(
            self._settings,
            times=StoreTimes(self.clock, recovered.last_stored_ms or before.log_flushed_ms),
            flusher=flusher,
            reader=reader,
            offsets=QueueOffsets(
                parts.queues.store,
                cached_max=self._settings.cached_queues_max,
                light_floor=LightFloor(parts.identity.light_floor, parts.identity.set_light_floor, deletions.settle),
            ),
            pending=self.open_pending(parts, reader, closing),
            deletions=deletions,
            indexes=indexes,
        )
        take_in_flight(parts, recovered.tables, messages.pending, reading(reader))
        if parts.state_log is not None:
            parts.state_log.rest_on(lambda: messages.dispatched_up_to)
        checkpoint = StoreCheckpoint(
            self._disk,
            self._paths.checkpoint,
            parts.identity,
            DurableState(self._disk, self._paths.quarry, parts.state_engine),
            messages,
            before=taken_over(before, clean_shutdown=not found.has_abort),
            index_full_ms=lambda: indexes.full_until_ms,
        )
        checkpoint.save()
        flusher.began_segment = checkpoint.save_if_possible
        return messages, checkpoint

    def open_pending(self, parts: StoreParts, reader: CommitLogReader, closing: ExitStack) -> PendingMessages:
        """Open the pending messages, brought up to date with the log."""
        directory = self._paths.pending_messages
        with advising(directory, "it is derived from the log: move the directory away and restart"):
            engine = self._engines.open_pending(directory, create=True)
            closing.callback(engine.close)
            before = parts.identity.pending_before
            pending = PendingMessages(
                engine, reading(reader), before=before, check_after_ms=self._settings.check_after_ms
            )
            if before is not None and before != pending.before:  # RocketMQ was followed until its metadata came
                pending.settle(before, self.clock.wall_ms())
            bring_up_to(pending, parts.segments, reader.end, self._report)
        return pending

    def _recover(self, parts: StoreParts, found: FoundStore) -> RecoveryReport:
        origin = StoreKind(parts.identity.origin)

        def save_position(position: PhysicalOffset) -> None:
            parts.identity.flushed_up_to = position

        deletions = Deletions(parts.state_engine)
        queues = parts.queues.store
        watermark = watermark_of(queues, parts.segments)
        if found.has_abort:
            delete_again(queues, deletions.since(watermark))
        if queues.dispatched_up_to() is None and len(parts.segments):
            parts.identity.queues_made_again = True
        recovery = recover(
            parts.segments,
            queues,
            UndeletedEntries(parts.queues.assignment, deletions.topics(), deletions.light_queues_since(watermark)),
            flushed_up_to=durable_offset(self._disk, self._paths, parts.segments, found, known_of(parts.identity)),
            stop=stop_of(found),
            report=self._report,
            save_position=save_position,
        )
        log.info("log recovered", start=recovery.start, end=recovery.end, dispatched=recovery.findings.dispatched)
        if recovery.removed.kept:
            log.warning("bytes behind the log's end were cut off and kept", files=list(map(str, recovery.removed.kept)))
        if origin is StoreKind.ROCKETMQ_DOUBLE_WRITE and parts.queues.phase is QueuePhase.ROCKSDB:
            assert parts.queues.rocks is not None
            self._backfill(parts, parts.queues.rocks, recovery.end)
        if found.has_abort:
            if parts.queues.files is not None and parts.queues.rocks is not None:
                delete_gone_queues(parts.queues.files, parts.queues.rocks, recovery.end)
            MigrationRows(parts.state_engine).doubt("the broker did not stop cleanly afterwards")
        return recovery

    def _backfill(self, parts: StoreParts, queues: RocksConsumeQueues, end: PhysicalOffset) -> None:
        identity, minimum = parts.identity, parts.segments.minimum
        goal = identity.backfill_end
        if goal is None:
            queues.delete_min_offsets()
            goal = identity.backfill_end = end
        start = PhysicalOffset(max(identity.backfilled_to or minimum, minimum))
        if start >= goal:
            return

        def save_position(position: PhysicalOffset) -> None:
            identity.backfilled_to = position

        backfill(parts.segments, queues, start=start, end=goal, save_position=save_position, report=self._report)
        log.info("queues of a double-write store completed", start=start, end=goal)

    def _open_tables(self, parts: StoreParts, end: PhysicalOffset, change_log: ChangeLog | None) -> StoreTables:
        """Open the metadata tables, imported if they were not yet, and in agreement with the log that recovery left."""
        engine, queues, identity = parts.state_engine, parts.queues.store, parts.identity
        tables = StoreTables(engine, self._sealer, change_log)
        if not identity.metadata_imported and self.followed is None:
            if identity.origin != StoreKind.NEW.value:
                self._import_metadata(engine, tables, identity)
                identity.seen_up_to = PhysicalOffset(end + 1)  # a log that was followed may end before its groups are
                adopt_topics(queues, tables.topics)
            identity.set_metadata_imported()
        if identity.queues_made_again and identity.metadata_imported and self._copied is None:  # else rows may come
            reserve_offsets(queues, tables, end)
            identity.queues_made_again = False
        if (identity.seen_up_to or 0) > end:
            # groups are ahead of the log by messages that the power cut took: they must not miss the messages that
            # follow
            lowered = tables.offsets.lower(engine, queues.next_offset)
            in_flight = delete_beyond(engine, queues.next_offset)
            identity.seen_up_to = end
            if lowered or in_flight:
                log.warning("groups were ahead of the log", offsets_lowered=lowered, deliveries_forgotten=in_flight)
        return tables

    def _import_metadata(self, engine: KeyValueEngine, tables: StoreTables, identity: StoreIdentity) -> None:
        metadata = read_metadata(self._disk, self._settings.root)
        for warning in metadata.warnings:
            log.warning("metadata import", problem=warning)
        identity.pending_before = metadata.pending
        import_metadata(metadata, tables.topics, tables.groups, tables.offsets, engine)
        log.info("metadata imported", topics=len(metadata.topics), groups=len(metadata.groups))


def reserve_offsets(queues: ConsumeQueueStore, tables: StoreTables, end: PhysicalOffset) -> None:
    """Let queues whose messages have all expired go on at the highest position of a group, durably.

    The log has no record of such a queue, so a queue that is made again from the log would begin at 0, and the groups
    would miss its next messages.
    """
    position_max = end // RECORD_SIZE_MINIMUM  # a log of this size cannot have had more records
    for _, queue, position in tables.offsets.all_rows():
        if position > position_max or queues.next_offset(queue) >= position:
            continue
        minimum, maximum = queues.bounds(queue)
        if minimum == maximum and (is_light_queue(queue.topic) or tables.topics.get(queue.topic) is not None):
            queues.reserve(queue, position)
    queues.flush()


def warn_of_missing_begin(segments: SegmentList, began_at: PhysicalOffset | None) -> None:
    """Log a warning about segments that are gone from the log's beginning since Quarry last ran on the store.

    The store is not refused: RocketMQ may have run on it meanwhile and let the segments expire, and the files do not
    show that.
    """
    if began_at is None or segments.minimum <= began_at:
        return
    bases = range(segments.minimum - segments.segment_size, began_at - 1, -segments.segment_size)
    names = [segment_name(PhysicalOffset(base)) for base in reversed(bases)]
    log.warning(
        "segments are missing at the log's beginning: unless RocketMQ ran on the store and let them expire, "
        "their messages are lost",
        directory=str(segments.directory),
        missing=names[:NAMED_SEGMENTS_MAX],
        missing_count=len(names),
        log_begins_at=segments.minimum,
    )


def _warn_of_little_room(segments: SegmentList, end: PhysicalOffset) -> None:
    """Log a warning if there is no free space for another segment.

    Sends will be refused as soon as the last segment is full. Receives still work, so the store opens.
    """
    free_bytes = segments.disk.free_bytes(segments.directory)
    if free_bytes is not None and free_bytes < segments.segment_size:
        log.warning(
            "there is no room for another segment: sends are refused when the last one is full",
            directory=str(segments.directory),
            needed_bytes=segments.segment_size,
            free_bytes=free_bytes,
            left_in_the_last_bytes=segments.end_of_files - end,
        )
