"""The job `rebuild` makes the RocksDB queues of a store again from its log on Spark.

Public face of the package: other packages import from here.
"""

from quarry_mq.pipeline.rebuild.job import Rebuilt, rebuild

__all__ = ["Rebuilt", "rebuild"]
