"""The job `stats` counts what a store holds on Spark: volumes, skew, repeated ids, keys, and the lag of groups.

Public face of the package: other packages import from here.
"""

from quarry_mq.pipeline.stats.job import statistics
from quarry_mq.pipeline.stats.messages import minutes
from quarry_mq.pipeline.stats.model import Statistics, Wanted, as_document
from quarry_mq.pipeline.stats.report import report_html

__all__ = ["Statistics", "Wanted", "as_document", "minutes", "report_html", "statistics"]
