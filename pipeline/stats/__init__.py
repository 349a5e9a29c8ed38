"""`stats`: what a store holds, counted on Spark: volumes, skew, repeated ids, keys, and the lag of groups.

Public face of the package: other packages import from here.
"""

from pipeline.stats.job import statistics
from pipeline.stats.messages import minutes
from pipeline.stats.model import Statistics, Wanted, as_json

__all__ = ["Statistics", "Wanted", "as_json", "minutes", "statistics"]
