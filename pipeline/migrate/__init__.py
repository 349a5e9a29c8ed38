"""The job `migrate` moves file queues to RocksDB on Spark.

Public face of the package: other packages import from here.
"""

from quarry_mq.pipeline.migrate.job import migrate

__all__ = ["migrate"]
