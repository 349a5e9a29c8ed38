"""Keeps a table of a lake with the whole history of messages: from a log, and then from live brokers.

    rows       the columns, made of records of a log or of messages of a broker
    table      the Iceberg table: its making, its position, and appends that commit rows and position together
    sources    what to append next: a range of a log, or a range of offsets of each queue
    job        the loop of batches
    maintain   compaction, expiry of snapshots

Public face of the package: other packages import from here.
"""

from quarry_mq.pipeline.lake.job import LakeRun, Landed, LandedBatch, lake
from quarry_mq.pipeline.lake.maintain import Maintained, maintain
from quarry_mq.pipeline.lake.sources import LiveWish, LogWish

__all__ = ["LakeRun", "Landed", "LandedBatch", "LiveWish", "LogWish", "Maintained", "lake", "maintain"]
