"""Runs `quarry migrate --to rocksdb` with its long step, making the queues in RocksDB, on Spark.

The tasks read the log in splits. Of each record they keep the entries that the queue files hold at the same offset with
the record's position, and write tables as a rebuild does. Size and tags of the log's records are then compared with
every entry of the files, as `quarry migrate` does; where they differ the store is left unchanged.
"""

from __future__ import annotations

from pathlib import Path

from pyspark.sql import SparkSession

from quarry_mq.pipeline.rebuild.database import QueueBuild
from quarry_mq.pipeline.rebuild.log_entries import FileEntries
from quarry_mq.pipeline.source.options import SPLIT_BYTES
from quarry_mq.protocol.clock import Clock, ReportProgress
from quarry_mq.store.consumequeue import FileConsumeQueues
from quarry_mq.store.fs import Disk
from quarry_mq.store.message import PhysicalOffset
from quarry_mq.store.tools.queue_migration import Migrated, Orders, Target
from quarry_mq.store.tools.queue_migration import migrate as migrate_store


def migrate(
    spark: SparkSession,
    disk: Disk,
    clock: Clock,
    root: Path,
    *,
    asked_by: str,
    report: ReportProgress,
    remove_old: bool = False,
    split_bytes: int = SPLIT_BYTES,
) -> Migrated:
    """Move the queues of a store from files to RocksDB. No broker may run on it, and none can start meanwhile.

    Raises what `store.tools.queue_migration.migrate` raises, and what Spark raises; the store is then unchanged.
    """

    def make(place: Path, files: FileConsumeQueues, end: PhysicalOffset) -> None:
        entries = FileEntries(files.minimum_physical_offset, end, files.units_per_file)
        next_offsets = ((queue, files.next_offset(queue)) for queue in files.queues())
        QueueBuild(spark, disk, root, place, split_bytes).make(entries, end=end, next_offsets=next_offsets)

    orders = Orders(target=Target.ROCKSDB, asked_by=asked_by, remove_old=remove_old)
    return migrate_store(disk, clock, root, orders, report=report, make_rocksdb=make)
