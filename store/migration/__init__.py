"""The way of a store's consume queues from files to RocksDB and back (`store.queue_phase` has the phases).

Public face of the package: other packages import from here.
"""

from store.migration.agreement import AgreementReport, Comparison, ComparisonProgress, QueueDifference
from store.migration.comparison import begin_comparison
from store.migration.rows import MigrationRows, MigrationStep

__all__ = [
    "AgreementReport",
    "Comparison",
    "ComparisonProgress",
    "MigrationRows",
    "MigrationStep",
    "QueueDifference",
    "begin_comparison",
]
