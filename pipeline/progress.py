"""How far Spark is, for who watches: the tasks of each stage."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from threading import Event, Thread
from typing import Final

from pyspark.sql import SparkSession

from store.recovery import Progress, ReportProgress

INTERVAL_S: Final = 0.5


@contextmanager
def reported(spark: SparkSession, phases: Sequence[str], report: ReportProgress) -> Iterator[None]:
    """Report tasks that have ended, of all that a stage has, while the block runs.

    `phases` are the names of stages in the order in which they begin; further ones share the last name.
    """
    ended = Event()
    watcher = Thread(target=_watch, args=(spark, phases, report, ended), name="spark-progress", daemon=True)
    watcher.start()
    try:
        yield
    finally:
        ended.set()
        watcher.join()


def _watch(spark: SparkSession, phases: Sequence[str], report: ReportProgress, ended: Event) -> None:
    tracker = spark.sparkContext.statusTracker()
    names: dict[int, str] = {}
    while not ended.wait(INTERVAL_S):
        for stage in sorted(tracker.getActiveStageIds()):
            info = tracker.getStageInfo(stage)
            if info is None:
                continue
            name = names.setdefault(stage, phases[min(len(names), len(phases) - 1)])
            report(Progress(name, info.numCompletedTasks, info.numTasks))
