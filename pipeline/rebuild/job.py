"""Rebuilds everything that a store derives from its log.

    1  a database of queues, in a directory of its own (`pipeline.rebuild.database`)
    2  the old database is set aside, and the new one moves to its place
    3  scheduled and prepared messages are looked for in the part of the log that was not searched for them yet
    4  if requested, the key index is rebuilt (`pipeline.index`)

Nothing of the store is changed before step 2. After a kill before it the store is unchanged; in 2, it has no database,
and a broker makes one, or this job when it is run again; after a later kill, a broker does the rest.
"""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from pyspark.sql import SparkSession

from quarry_mq.pipeline.index.job import EVERYTHING, IndexBuild, Indexed
from quarry_mq.pipeline.progress import silent
from quarry_mq.pipeline.rebuild.database import MadeQueues, QueueBuild
from quarry_mq.pipeline.rebuild.log_entries import StatedEntries
from quarry_mq.pipeline.source.log_splits import open_segments
from quarry_mq.pipeline.source.options import SPLIT_BYTES
from quarry_mq.pipeline.store_lock import locked
from quarry_mq.store.commitlog import CommitLogReader
from quarry_mq.store.engines import RocksStoreEngines
from quarry_mq.store.errors import StoreUnusable
from quarry_mq.store.fs import Disk
from quarry_mq.store.index.opening import TIERED_ROW
from quarry_mq.store.layout.kind import StoreKind, inspect_store
from quarry_mq.store.layout.paths import StorePaths
from quarry_mq.store.layout.queue_phase import QueuePhase, phase_of
from quarry_mq.store.message import PhysicalOffset
from quarry_mq.store.opening.parts import open_identity
from quarry_mq.store.opening.repair import free_database_place
from quarry_mq.store.pending import PendingMessages, reading
from quarry_mq.store.recovery.recovery import bring_up_to
from quarry_mq.store.state.deletions import Deletions
from quarry_mq.store.state.identity import StoreIdentity


@dataclass(frozen=True, slots=True)
class Rebuilt:
    """The result of a rebuild."""

    queues: MadeQueues
    waiting: int | None
    """Scheduled messages that are pending; None: a broker's first start on the store counts them."""
    index: Indexed | None
    """The rebuilt index; None if the store has no index."""
    aside: Path | None
    """The path where the old database is kept; None if there was none."""


def rebuild(
    spark: SparkSession, disk: Disk, root: Path, *, with_index: bool | None = None, split_bytes: int = SPLIT_BYTES
) -> Rebuilt:
    """Rebuild what a store derives from its log. No broker may run on it, and none can start meanwhile.

    `with_index` None rebuilds the tiered index if the store has one. Raises StoreUnusable (locked, damaged, or its
    queues are in files), OSError, kv.KvError, and what Spark raises.
    """
    paths = StorePaths(root)
    with locked(disk, root):
        found = inspect_store(disk, root)
        engine, identity = open_identity(RocksStoreEngines(), paths.quarry, disk, found)
        with closing(engine):
            # written down before a database makes the store look like another
            phase = phase_of(identity.queue_phase, found.layout, None, root)
            if phase is not QueuePhase.ROCKSDB:
                raise StoreUnusable(root, f"its queues are in files (phase {phase.value}): `quarry pipeline migrate`")
            identity.queue_phase = phase.value
            # see `store.opening.queues`: in a store that had file queues, light queues get consecutive offsets
            deletions = Deletions(engine)
            entries = StatedEntries(
                counts_light=identity.origin == StoreKind.ROCKETMQ_FILE.value,
                topics=deletions.topics(),
                light_queues=deletions.light_queues_since(PhysicalOffset(0)),
            )
            place = paths.consume_queue_rocksdb.with_name("consumequeue_rocksdb.rebuilding")
            made = QueueBuild(spark, disk, root, place, split_bytes).make(entries)
            # where queues without messages go on: a broker's next start finds it from the positions of groups
            identity.queues_made_again = True
            aside = free_database_place(disk, paths)
            disk.move(place, paths.consume_queue_rocksdb)
            waiting = _find_waiting(disk, root, identity, made.dispatched_up_to)
            index = None
            if with_index or (with_index is None and identity.index_row(TIERED_ROW) is not None):
                index = IndexBuild(spark, disk, root, identity, split_bytes).run(EVERYTHING)
    return Rebuilt(made, waiting, index, aside)


def _find_waiting(disk: Disk, root: Path, identity: StoreIdentity, end: PhysicalOffset) -> int | None:
    """Apply every record to the pending messages, as a start of a broker does. Returns how many are pending."""
    if not identity.metadata_imported:
        return None  # with them comes how far RocketMQ had got with its own
    engine = RocksStoreEngines().open_pending(StorePaths(root).pending_messages, create=True)
    with closing(engine), closing(open_segments(disk, root)) as segments:
        pending = PendingMessages(engine, reading(CommitLogReader(segments)), before=identity.pending_before)
        bring_up_to(pending, segments, end, silent)
        return sum(1 for _ in pending.waiting_messages())
