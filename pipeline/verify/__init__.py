"""The verification of `quarry verify`, with its long steps done by the tasks of Spark.

Public face of the package: other packages import from here.
"""

from quarry_mq.pipeline.verify.job import verify

__all__ = ["verify"]
