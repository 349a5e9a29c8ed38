"""The tiered key index, built from the log on Spark.

Public face of the package: other packages import from here.
"""

from quarry_mq.pipeline.index.job import Indexed, IndexWish, build_index

__all__ = ["IndexWish", "Indexed", "build_index"]
