"""The job `verify` is the verification of `quarry verify` with its long steps on Spark.

Public face of the package: other packages import from here.
"""

from quarry_mq.pipeline.verify.job import verify

__all__ = ["verify"]
