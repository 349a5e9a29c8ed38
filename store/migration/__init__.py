"""Move a store's consume queues from files to RocksDB and back (`store.layout.queue_phase` has the phases).

Public face of the package: other packages import from here.
"""

from quarry_mq.store.migration.backfill import Backfill, Portion
from quarry_mq.store.migration.comparison import (
    AgreementReport,
    Comparison,
    ComparisonProgress,
    QueueDifference,
    begin_comparison,
)
from quarry_mq.store.migration.machine import MigrationStats, QueueMigration
from quarry_mq.store.migration.rows import (
    FileQueueRemoval,
    MigrationRows,
    MigrationStep,
    Removing,
    delete_gone_queues,
    remove_database,
)

__all__ = [
    "AgreementReport",
    "Backfill",
    "Comparison",
    "ComparisonProgress",
    "FileQueueRemoval",
    "MigrationRows",
    "MigrationStats",
    "MigrationStep",
    "Portion",
    "QueueDifference",
    "QueueMigration",
    "Removing",
    "begin_comparison",
    "delete_gone_queues",
    "remove_database",
]
