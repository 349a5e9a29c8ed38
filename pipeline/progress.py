"""Reports how far Spark is: the finished tasks of each stage, and the rows and bytes that they have handed on."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from threading import Event, Thread
from typing import Any, Final

from pyspark.sql import SparkSession

from quarry_mq.kv.options import MIB
from quarry_mq.protocol.clock import Progress, ReportProgress

INTERVAL_S: Final = 0.5


def silent(progress: Progress) -> None:
    """Report nothing: for steps where the progress of Spark's tasks is reported instead."""


@contextmanager
def reported(spark: SparkSession, phases: Sequence[str], report: ReportProgress) -> Iterator[None]:
    """Report how many tasks of each stage have ended, out of how many, while the block runs.

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
    stages: Any = spark.sparkContext._jsc.sc().statusStore()  # noqa: SLF001 - the tracker tells of tasks only
    names: dict[int, str] = {}
    while not ended.wait(INTERVAL_S):
        for stage in sorted(tracker.getActiveStageIds()):
            info = tracker.getStageInfo(stage)
            if info is None:
                continue
            name = names.setdefault(stage, phases[min(len(names), len(phases) - 1)])
            report(Progress(name, info.numCompletedTasks, info.numTasks, _handed_on(stages.lastStageAttempt(stage))))


def _handed_on(stage: Any) -> str:
    """Return what the stage has written so far, to a shuffle or to files, as Spark counts it; "" if nothing yet."""
    rows = stage.shuffleWriteRecords() + stage.outputRecords()
    size = stage.shuffleWriteBytes() + stage.outputBytes()
    return f"{rows:,} rows, {size / MIB:,.1f} MiB" if rows else ""
