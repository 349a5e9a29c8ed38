"""The loop of batches that keeps the table of a lake up to date.

A batch reads the table's position, takes what follows it from the source, and appends it with the new position. So
each message is in the table once, whatever is killed: nothing else has the position.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from threading import Event
from typing import Final

from pyspark.sql import SparkSession
from pyspark.sql import functions as sql

from quarry_mq.pipeline.damage import FIRST_DAMAGED, NO_DAMAGE, DamagedPlaces
from quarry_mq.pipeline.export.body import PROBLEM
from quarry_mq.pipeline.lake.groups import append_positions
from quarry_mq.pipeline.lake.sources import Batch, LiveSource, LiveWish, LogSource, LogWish, Source
from quarry_mq.pipeline.lake.table import LakeTable, Position, Staged, TableChanged
from quarry_mq.pipeline.session import shuffles_for
from quarry_mq.protocol.clock import Clock, SystemClock
from quarry_mq.store.errors import Invalid

POSITIONS_INTERVAL_S: Final = 600
"""Seconds between two looks for the positions of groups: a call for each pair of group and topic takes time."""
ATTEMPTS_MAX: Final = 5
"""Attempts to append one batch while compactions or users change the table."""


@dataclass(frozen=True, slots=True)
class LandedBatch:
    """The result of one commit: how many messages it appended, and what was wrong with them."""

    messages: int
    without_body: int = 0
    """Messages whose body could not be uncompressed: their body is null, and `bodyProblem` says why."""
    damage: DamagedPlaces = NO_DAMAGE
    """Damaged places of the log; nothing of them was appended."""


@dataclass(frozen=True, slots=True)
class Landed:
    """The result of one run."""

    messages: int
    commits: int
    expired: int
    """Bytes of the log, or messages of live queues, that were gone before they could be appended."""
    without_body: int
    damage: DamagedPlaces
    positions: int | None
    """Positions of groups that were noted last; None: they are not known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LakeRun:
    """Describes how long a run goes on, and how it makes a new table."""

    buckets: int = 16
    """Buckets of topics in a new table."""
    interval_s: float | None = None
    """Seconds between two looks for new messages; None: the run ends with the messages that exist when it looks."""
    stop: Event
    """Set when the run has to end after its current batch."""
    report: Callable[[LandedBatch], None]
    """Called after each commit."""


def lake(
    spark: SparkSession, name: str, wish: LogWish | LiveWish, run: LakeRun, *, clock: Clock | None = None
) -> Landed:
    """Append what follows the table's position, batch by batch.

    Raises Invalid if the table is something else, has another source, or another job appends to it at the same time;
    StoreUnusable, MessagesLost, CallRefused, OSError, and what Spark raises.
    """
    clock = clock or SystemClock()
    table = LakeTable(spark, name, clock)
    table.open(run.buckets)
    table.remove_old_branches()
    source: Source = LogSource(spark, wish) if isinstance(wish, LogWish) else LiveSource(spark, wish)
    done: list[LandedBatch] = []
    positions: int | None = None
    look_s = float("-inf")
    try:
        with shuffles_for(spark, wish.batch_bytes):
            while True:
                landed = _append_next(table, source)
                if landed is not None:
                    done.append(landed)
                    run.report(landed)
                    if not run.stop.is_set():
                        continue
                if clock.monotonic_s() >= look_s or run.stop.is_set():
                    positions = append_positions(table, wish)
                    look_s = clock.monotonic_s() + POSITIONS_INTERVAL_S
                if run.interval_s is None or run.stop.wait(run.interval_s):
                    break
    finally:
        source.close()
    return Landed(
        messages=sum(each.messages for each in done),
        commits=len(done),
        expired=source.expired,
        without_body=sum(each.without_body for each in done),
        damage=DamagedPlaces(
            sum(each.damage.count for each in done),
            tuple(place for each in done for place in each.damage.first)[:FIRST_DAMAGED],
        ),
        positions=positions,
    )


def _append_next(table: LakeTable, source: Source) -> LandedBatch | None:
    """Append one batch; None if there is nothing to append. Raises Invalid if another job has appended meanwhile."""
    position = table.position()
    for attempt in range(1, ATTEMPTS_MAX + 1):
        batch = source.next(table, position)
        if batch is None:
            return None
        try:
            return _append(table, position, batch)
        except TableChanged as changed:
            if table.position() != position:
                raise Invalid(f"{table.name}: another job has appended to the table; run only one at a time") from None
            if attempt == ATTEMPTS_MAX:
                raise Invalid(f"{changed}; {ATTEMPTS_MAX} attempts to append a batch failed") from changed
    raise AssertionError("the last attempt returns or raises")


def _append(table: LakeTable, before: Position, batch: Batch) -> LandedBatch:
    """Append a batch: nothing of it can be seen before `publish`, and all of it, with its position, after."""
    begun = table.begin(before)
    version = batch.position.offsets
    assert version is not None
    try:
        staged, damage = batch.stage(lambda rows: table.stage(begun, rows, batch.position))
        table.add_offsets(batch.next_offsets(table, before, staged), version)
        without_body = _without_body(table, staged)
        table.publish(staged, batch.position)
    except TableChanged:
        raise
    except Exception:
        table.abandon(begun)
        raise
    return LandedBatch(staged.rows, without_body, damage)


def _without_body(table: LakeTable, staged: Staged) -> int:
    return table.staged_rows(staged).where(sql.col(PROBLEM).isNotNull()).count()
