"""`rebuild`: the RocksDB queues of a store, made anew from its log on Spark.

Public face of the package: other packages import from here.
"""

from quarry_mq.pipeline.rebuild.job import Rebuilt, rebuild

__all__ = ["Rebuilt", "rebuild"]
