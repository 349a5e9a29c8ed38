"""The job `export` writes messages of a store as Parquet, or in any other format that Spark writes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

import structlog
from pyspark.sql import Column, DataFrame, Observation, SparkSession
from pyspark.sql import functions as sql
from pyspark.sql.types import DataType, TimestampType

from quarry_mq.pipeline.body_form import BodyForm
from quarry_mq.pipeline.damage import NO_DAMAGE, DamagedPlaces, LogTable, beside_damage
from quarry_mq.pipeline.export.body import PROBLEM, plain_bodies, with_problem
from quarry_mq.pipeline.export.commits import Commit, Destination
from quarry_mq.pipeline.export.parquet_files import (
    CODECS,
    FOLDER_SIZE_MAX,
    TOPIC_FOLDER,
    ParquetFiles,
)
from quarry_mq.pipeline.session import shuffles_for
from quarry_mq.pipeline.source.log_splits import readable_range
from quarry_mq.pipeline.source.message_columns import COLUMNS
from quarry_mq.pipeline.source.options import SPLIT_BYTES
from quarry_mq.pipeline.source.times import TimeForm
from quarry_mq.pipeline.wanted import Wanted
from quarry_mq.protocol.times import TIME_MS_MAX
from quarry_mq.store.errors import Invalid
from quarry_mq.store.fs import Disk

LAYOUT: Final = 3
"""Version of the files' layout, kept beside them.

Layout 1 was not written down; it lacks `topicName` and `bodyProblem`. In layouts 1 and 2 the folders have the column
`topic`, and times are milliseconds.
"""

_TOPIC_NAME: Final = "topicName"
"""Column of layout 2 that holds the topic's name: `topic` is then the folder's name."""

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection(Wanted):
    """Describes which messages are exported, and in which form."""

    body: BodyForm = BodyForm.STORED
    file_format: str = "parquet"

    def as_json(self) -> dict[str, object]:
        """Return the selection in the form in which it is kept beside the files."""
        return {
            "topics": sorted(self.topics),
            "tags": sorted(self.tags),
            "from": self.from_ms,
            "to": self.to_ms,
            "where": self.where,
            "body": self.body.value,
            "format": self.file_format,
        }


@dataclass(frozen=True, slots=True)
class Exported:
    """The result of one run: counts of the messages in [begin, end) that were selected and exported."""

    begin: int
    end: int
    messages: int
    files: int
    expired: int
    """Bytes of the log that expired between the last run and this one."""
    without_body: int = 0
    """Messages whose body could not be uncompressed: their body is null, and `bodyProblem` says why."""
    first_without_body: int | None = None
    """The physical offset of the first message without a body."""
    damage: DamagedPlaces = NO_DAMAGE
    """Damaged places of the log in [begin, end); nothing of them is exported."""


def export(
    spark: SparkSession,
    disk: Disk,
    root: Path,
    destination: str,
    selection: Selection,
    *,
    goes_on: bool = False,
    split_bytes: int = SPLIT_BYTES,
) -> Exported:
    """Export all of the log, or with `goes_on` what was stored since the last run. See `pipeline.export.commits`.

    Raises Invalid when something else lies at the destination, or an export of something else; StoreUnusable, OSError,
    and what Spark raises.
    """
    place = Destination(spark, destination)
    commits, layout = _begin(place, selection, goes_on=goes_on)
    log_begin, end = readable_range(disk, root, split_bytes)
    begin = commits[-1].end if commits else log_begin
    expired = max(0, log_begin - begin)
    if end <= begin:
        return Exported(begin, begin, 0, 0, expired)

    def write(log: LogTable) -> _Staged:
        place.clear()
        if layout == LAYOUT and (found := _written(log, place, selection, begin, end)) is not None:
            return found
        times = TimeForm.MILLIS if layout < LAYOUT else TimeForm.TIMESTAMP
        selected = _selected(log.rows(_columns(selection), times=times), selection, begin, end)
        with shuffles_for(spark, end - begin):
            return _sorted(selected, place, selection.file_format, layout)

    found, damage = beside_damage(LogTable(spark, root, split_bytes=split_bytes), write, begin, end)
    commit = Commit(begin, end, found.messages, found.files)
    place.commit(commit)
    return Exported(begin, end, found.messages, len(found.files), expired, found.problems, found.first, damage)


class _Staged(NamedTuple):
    """The files in the staging folder, and the counts of `Exported`."""

    files: list[str]
    messages: int
    problems: int
    first: int | None


def _written(log: LogTable, place: Destination, selection: Selection, begin: int, end: int) -> _Staged | None:
    """Let tasks write the files themselves; return None if rows have to go through Spark.

    They have to for conditions and formats of Spark, for file systems that only Java knows, and if tasks would have
    files of their own for too many topics.
    """
    codec = CODECS.get(str(log.spark.conf.get("spark.sql.parquet.compression.codec")))
    local = place.local_staging
    if selection.file_format != "parquet" or selection.where is not None or codec is None or local is None:
        return None
    files = ParquetFiles(local, selection.body, codec)
    found = files.write(log, _columns(selection), selection.filters(begin, end), selection.topics)
    if found is None:
        return None
    return _Staged(
        sorted(each.file for each in found),
        sum(each.messages for each in found),
        sum(each.problems for each in found),
        min((each.first for each in found if each.first is not None), default=None),
    )


def _sorted(selected: DataFrame, place: Destination, file_format: str, layout: int) -> _Staged:
    """Write the rows to the staging folder by Spark, the messages of each topic and day together."""
    counted = Observation()
    has_problem = sql.col(PROBLEM).isNotNull() if PROBLEM in selected.columns else sql.lit(False)  # noqa: FBT003
    rows = selected.observe(
        counted,
        sql.count("*").alias("messages"),
        sql.count_if(has_problem).alias("problems"),
        sql.min(sql.when(has_problem, sql.col("phyOffset"))).alias("first"),
    )
    folders = ("topic" if layout < LAYOUT else TOPIC_FOLDER, "day")
    ordered = _laid_out(rows, layout).hint("rebalance", *folders).sortWithinPartitions(*folders, "phyOffset")
    ordered.write.partitionBy(*folders).format(file_format).save(place.staging)
    files = place.staged_files()
    if not files:  # Spark drops an observation from a plan when it finds that there are no rows
        return _Staged([], 0, 0, None)
    found = counted.get
    messages = int(found["messages"])
    return _Staged(files if messages else [], messages, int(found["problems"]), found["first"])


def _begin(place: Destination, selection: Selection, *, goes_on: bool) -> tuple[list[Commit], int]:
    """Return the commits of earlier runs, whose files are then all at their places, and the layout of the files."""
    if place.is_strange():
        raise Invalid(f"{place.place}: holds something else than an export")
    before = place.selection()
    wanted = selection.as_json()
    layout = LAYOUT if before is None else int(str(before.pop("layout", 1)))
    if before is None:
        place.set_selection({**wanted, "layout": LAYOUT})
    elif layout > LAYOUT:
        raise Invalid(f"{place.place}: layout {layout} of a newer version")
    elif not goes_on:
        raise Invalid(f"{place.place}: holds an export already; --incremental goes on with it")
    elif before != wanted:
        raise Invalid(f"{place.place}: holds an export of something else: {_difference(before, wanted)}")
    commits = place.commits()
    if commits:
        place.complete(commits[-1])
    place.clear()
    return commits, layout


def _difference(before: Mapping[str, object], wanted: Mapping[str, object]) -> str:
    return ", ".join(
        f"{name} {before.get(name)!r}, not {wanted[name]!r}" for name in wanted if before.get(name) != wanted[name]
    )


def _columns(selection: Selection) -> str:
    return ",".join(name for name in COLUMNS if name != "body" or selection.body is not BodyForm.NONE)


def _selected(table: DataFrame, selection: Selection, begin: int, end: int) -> DataFrame:
    """Return the rows to be written, with the column `day` of the store time in UTC."""
    rows = selection.rows(table, begin, end)
    if selection.body not in (BodyForm.NONE, BodyForm.STORED):
        rows = rows.mapInArrow(plain_bodies, with_problem(rows.schema))
        rows = rows.withColumn("body", _formed(selection.body))
    return rows.withColumn("day", stored_day(rows.schema["storeTimestamp"].dataType))


def _laid_out(rows: DataFrame, layout: int) -> DataFrame:
    """Return the columns that files at the destination have, and those that become folders."""
    if layout == 1:
        return rows.drop(PROBLEM)
    if layout == LAYOUT:
        return rows.withColumn(TOPIC_FOLDER, topic_folder())
    return rows.withColumn(_TOPIC_NAME, sql.col("topic")).withColumn("topic", topic_folder())


def topic_folder() -> Column:
    """Return the topic as a folder's name, cut and with a digest where a folder cannot have it:

    Spark writes `%25` for `%`.
    """
    topic = sql.col("topic")
    size = sql.length(sql.regexp_replace(topic, "[^A-Za-z0-9_-]", "xxxx"))
    cut = sql.concat(sql.substring(topic, 1, 40), sql.lit("~"), sql.substring(sql.sha2(topic, 256), 1, 32))
    return sql.when(size <= FOLDER_SIZE_MAX, topic).otherwise(cut)


def stored_day(time_type: DataType) -> Column:
    """Return the day in UTC of `storeTimestamp`, which is of this type.

    The number that is stored may be any: the last day stands for one that no calendar reaches.
    """
    if isinstance(time_type, TimestampType):
        stored = sql.coalesce("storeTimestamp", sql.timestamp_millis(sql.lit(TIME_MS_MAX)))
    else:
        stored = sql.timestamp_millis(sql.greatest(sql.lit(0), sql.least(sql.lit(TIME_MS_MAX), "storeTimestamp")))
    return sql.date_format(stored, "yyyy-MM-dd")


def _formed(form: BodyForm) -> Column:
    match form:
        case BodyForm.TEXT:
            return sql.make_valid_utf8(sql.col("body").cast("string"))
        case BodyForm.BASE64:
            # Spark breaks it into lines
            return sql.translate(sql.base64("body"), "\r\n", "")
    return sql.col("body")
