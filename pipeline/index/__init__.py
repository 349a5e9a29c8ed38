"""The job `index` builds the tiered key index of a store from its log on Spark.

Public face of the package: other packages import from here.
"""

from quarry_mq.pipeline.index.job import Indexed, IndexWish, build_index

__all__ = ["IndexWish", "Indexed", "build_index"]
