"""The Iceberg table of a lake. Rows and the position after them are committed together.

A batch is written to a branch that starts at the table's current snapshot. Then one commit moves the table to the
branch, removes the branch and sets the property `quarry.position`. It fails unless the current snapshot is still the
one that the branch started at, so no two jobs append after the same position. A job that is killed before this commit
leaves a branch that no reader sees.

The position is in the summary of the batch's snapshot, and in the property. The newest snapshot that has a position
counts, so the position follows the table when an operator rolls it back. Compactions make snapshots without a position.
If the snapshot with the position has expired, the property counts.
"""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from py4j.java_gateway import JavaPackage
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sql
from pyspark.sql.types import StructType

from quarry_mq.pipeline.lake.rows import SCHEMA
from quarry_mq.protocol.clock import Clock
from quarry_mq.store.errors import Invalid

RUNTIME: Final = "org.apache.iceberg:iceberg-spark-runtime-4.1_2.13:1.12.0"
LAYOUT: Final = 1
_LAYOUT_PROPERTY: Final = "quarry.layout"
POSITION: Final = "quarry.position"
"""Name of the table's property, and of the field of a snapshot's summary, that has the position as JSON."""
BRANCH: Final = "quarry-"
BRANCH_AGE_MAX_MS: Final = 24 * 60 * 60 * 1000
_MAIN: Final = "main"
_SORTED_BY: Final = ("topic", "broker", "queueId", "queueOffset")
_OFFSETS: Final = "version string, topic string, broker string, queueId int, nextOffset bigint, at timestamp"
_POSITIONS: Final = (
    "`group` string, topic string, broker string, queueId int, nextOffset bigint, inFlight bigint, at timestamp"
)
_WRONG_SPARK: Final = (
    "IncompatibleClassChangeError",
    "NoSuchMethodError",
    "NoClassDefFoundError",
    "AbstractMethodError",
)


class TableChanged(Exception):
    """The table got another snapshot while a batch was written, so the batch was not appended."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Position:
    """The position tells which messages the table has: those of a log up to an offset, or of each queue."""

    offsets: str | None = None
    """Version of the rows of the offsets table that have the next offset of each queue; None: nothing yet."""
    log_end: int | None = None
    """The physical offset after the last batch of a log; None: the table follows brokers, or is empty."""
    topics: tuple[str, ...] = ()
    """The topics that are appended of a log; none: all."""
    broker: str | None = None
    """The broker's name in the rows of a log."""
    mark: tuple[int, str] | None = None
    """Offset and digest of a record of the last batch, by which the log is recognized."""

    def to_json(self) -> str:
        fields = {
            "offsets": self.offsets,
            "logEnd": self.log_end,
            "topics": list(self.topics),
            "broker": self.broker,
            "mark": self.mark,
        }
        return json.dumps({name: value for name, value in fields.items() if value not in (None, [])})

    @classmethod
    def from_json(cls, text: str) -> Position:
        fields = json.loads(text)
        mark = fields.get("mark")
        return cls(
            offsets=fields.get("offsets"),
            log_end=fields.get("logEnd"),
            topics=tuple(fields.get("topics", ())),
            broker=fields.get("broker"),
            mark=None if mark is None else (mark[0], mark[1]),
        )


class Staged(NamedTuple):
    """Rows on a branch, which no reader of the table sees yet."""

    branch: str
    begin: int
    """The snapshot at which the branch started."""
    snapshot: int
    rows: int


@dataclass(frozen=True)
class LakeTable:
    """The table, and the tables beside it, by the three parts of its name in Spark."""

    spark: SparkSession
    name: str
    clock: Clock
    _parts: tuple[str, ...] = field(init=False)

    def __post_init__(self) -> None:
        parts = tuple(self.name.split("."))
        if len(parts) < 3 or not all(parts) or set("`'") & set(self.name):
            raise Invalid(f"{self.name}: a table's name has three parts: CATALOG.NAMESPACE.TABLE")
        object.__setattr__(self, "_parts", parts)

    # -- names

    @property
    def catalog(self) -> str:
        return self._parts[0]

    @property
    def offsets(self) -> str:
        """The name of the table with the next offset of each queue, by version."""
        return f"{self.name}_offsets"

    @property
    def positions(self) -> str:
        """The name of the table with the positions of consumer groups."""
        return f"{self.name}_positions"

    # -- opening

    def check(self) -> None:
        """Raise Invalid, with what to set, if the session cannot have the table."""
        spark, catalog = self.spark, self.catalog
        kind = spark.conf.get(f"spark.sql.catalog.{catalog}", None)
        if kind is not None and ".delta." in kind:
            raise Invalid(
                f"{self.name}: tables of Delta are not supported: a commit of Delta cannot depend on the snapshot that "
                "it follows; use a catalog of Iceberg"
            )
        if isinstance(_jvm(spark).org.apache.iceberg.spark.Spark3Util, JavaPackage):
            raise Invalid(
                f"Iceberg's jar is missing: --conf spark.jars.packages={RUNTIME} (Iceberg has jars for Spark 4.0 and "
                f"4.1, not yet for later versions; this is Spark {spark.version})"
            )
        if kind is None:
            raise Invalid(
                f"{self.name}: there is no catalog {catalog}: --conf spark.sql.catalog.{catalog}="
                f"org.apache.iceberg.spark.SparkCatalog --conf spark.sql.catalog.{catalog}.type=hadoop --conf "
                f"spark.sql.catalog.{catalog}.warehouse=FOLDER"
            )

    def open(self, buckets: int) -> None:
        """Make the table and those beside it, unless they exist, and add the columns that an older one lacks.

        Raises Invalid for a table that is something else, or if the session cannot have it.
        """
        self.check()
        with self._explained():
            self._make(buckets)

    def open_existing(self) -> None:
        """Check that the table of a lake is there. Raises Invalid."""
        self.check()
        with self._explained():
            if not self.spark.catalog.tableExists(self.name):
                raise Invalid(f"{self.name}: there is no such table")
            self._check_layout(self.load())

    @contextmanager
    def _explained(self) -> Iterator[None]:
        """Raise Invalid for an error of a jar that does not fit."""
        try:
            yield
        except Py4JError as error:
            if any(name in str(error) for name in _WRONG_SPARK):
                raise Invalid(
                    f"Iceberg's jar is for another version of Spark than {self.spark.version}: with PySpark 4.1 "
                    f"(pip install 'pyspark>=4.1,<4.2') it is {RUNTIME}"
                ) from error
            raise

    def _make(self, buckets: int) -> None:
        spark = self.spark
        if not spark.catalog.tableExists(self.name):
            spark.sql(f"CREATE NAMESPACE IF NOT EXISTS {quoted('.'.join(self._parts[:-1]))}")
            columns = ", ".join(f"`{each.name}` {each.dataType.simpleString()}" for each in SCHEMA)
            self._create(
                self.name,
                columns,
                f"days(storeTimestamp), bucket({buckets}, topic)",
                {"write.distribution-mode": "none", _LAYOUT_PROPERTY: str(LAYOUT)},
            )
        table = self.load()
        self._check_layout(table)
        if table.currentSnapshot() is None and table.sortOrder().isUnsorted():
            self._sort(table)
        self._add_columns(SCHEMA)
        own = {"write.distribution-mode": "hash"}
        self._create(self.offsets, _OFFSETS, "version", own)
        self._create(self.positions, _POSITIONS, "days(at)", own)

    def _check_layout(self, table: Any) -> None:
        layout = table.properties().get(_LAYOUT_PROPERTY)
        if layout is None:
            raise Invalid(f"{self.name}: this table was not made by `quarry pipeline lake`")
        if int(layout) > LAYOUT:
            raise Invalid(f"{self.name}: layout {layout} of a newer version")

    def _create(self, name: str, columns: str, partitions: str, properties: dict[str, str]) -> None:
        told = ", ".join(f"'{key}'='{value}'" for key, value in properties.items())
        self.spark.sql(
            f"CREATE TABLE IF NOT EXISTS {quoted(name)} ({columns}) USING iceberg "
            f"PARTITIONED BY ({partitions}) TBLPROPERTIES ({told})"
        )

    def _sort(self, table: Any) -> None:
        """Let each task sort what it writes: files are sorted, and no rows are exchanged."""
        iceberg = _jvm(self.spark).org.apache.iceberg
        order = table.replaceSortOrder()
        for column in _SORTED_BY:
            order.asc(iceberg.expressions.Expressions.ref(column), iceberg.NullOrder.NULLS_FIRST)
        order.commit()

    def _add_columns(self, schema: StructType) -> None:
        have = {each.name.lower() for each in self.spark.table(quoted(self.name)).schema}
        lacking = [each for each in schema if each.name.lower() not in have]
        if lacking:
            told = ", ".join(f"`{each.name}` {each.dataType.simpleString()}" for each in lacking)
            self.spark.sql(f"ALTER TABLE {quoted(self.name)} ADD COLUMNS ({told})")

    def load(self) -> Any:
        """Return the table as Iceberg has it now."""
        return self._load(self.name)

    def _load(self, name: str) -> Any:
        return _jvm(self.spark).org.apache.iceberg.spark.Spark3Util.loadIcebergTable(
            self.spark._jsparkSession,  # noqa: SLF001 - Spark gives no other way to the table's branches
            quoted(name),
        )

    # -- the position

    def position(self) -> Position:
        """Return the position of what readers see."""
        table = self.load()
        text = next(_positions_of(table), None) or table.properties().get(POSITION)
        return Position() if text is None else Position.from_json(text)

    def next_offsets(self, position: Position) -> DataFrame:
        """Return the next offset of each queue: `topic`, `broker`, `queueId`, `nextOffset`."""
        rows = self.spark.table(quoted(self.offsets)).where(sql.col("version") == (position.offsets or ""))
        return rows.select("topic", "broker", "queueId", "nextOffset")

    # -- appending

    def begin(self, expected: Position) -> Staged:
        """Start a branch at the table's current snapshot. Raises TableChanged if the position is another by now."""
        table = self.load()
        branch = f"{BRANCH}{self.clock.wall_ms()}-{uuid.uuid4().hex}"
        current, change = table.currentSnapshot(), table.manageSnapshots()
        if current is None:
            change.createBranch(branch).commit()  # with an empty snapshot
        else:
            change.createBranch(branch, current.snapshotId()).commit()
        start = self.load().refs().get(branch).snapshotId()
        begun = Staged(branch, start, start, 0)
        if self.position() != expected:
            self.abandon(begun)
            raise TableChanged(f"{self.name}: another job has appended to the table")
        return begun

    def stage(self, begun: Staged, rows: DataFrame, position: Position) -> Staged:
        """Write rows of `SCHEMA`, and the position after them, to the branch. Columns that the user added are null."""
        ours = set(SCHEMA.names)
        wanted = [
            sql.col(each.name) if each.name in ours else sql.lit(None).cast(each.dataType).alias(each.name)
            for each in self.spark.table(quoted(self.name)).schema
        ]
        writer = rows.select(wanted).writeTo(f"{quoted(self.name)}.`branch_{begun.branch}`")
        writer.option(f"snapshot-property.{POSITION}", position.to_json()).append()
        table = self.load()
        snapshot = table.refs().get(begun.branch).snapshotId()
        return begun._replace(snapshot=snapshot, rows=int(table.snapshot(snapshot).summary().get("added-records") or 0))

    def staged_rows(self, staged: Staged) -> DataFrame:
        """Return the rows that were written to the branch."""
        reader = self.spark.read.format("iceberg").option("start-snapshot-id", str(staged.begin))
        return reader.option("end-snapshot-id", str(staged.snapshot)).load(quoted(self.name))

    def add_offsets(self, offsets: DataFrame, version: str) -> None:
        """Write the next offset of each queue as a version, which counts once a published position names it."""
        rows = offsets.select(
            sql.lit(version).alias("version"),
            *("topic", "broker", "queueId", "nextOffset"),
            sql.timestamp_millis(sql.lit(self.clock.wall_ms())).alias("at"),
        )
        rows.coalesce(1).writeTo(quoted(self.offsets)).append()

    def remove_offsets_before(self, time_ms: int) -> None:
        """Remove the versions of offsets that were written before a time, except the one that counts.

        A batch that is not published yet keeps its version: its branch is removed before the version is.
        """
        time_ms = min(time_ms, self.clock.wall_ms() - BRANCH_AGE_MAX_MS)
        current = self.position().offsets or ""
        self.spark.sql(
            f"DELETE FROM {quoted(self.offsets)} WHERE at < timestamp_millis({time_ms}) AND version <> '{current}'"
        )

    def append_positions(self, rows: DataFrame) -> int:
        """Append positions of groups. Returns how many they are."""
        rows.coalesce(1).writeTo(quoted(self.positions)).append()
        snapshot = self._load(self.positions).currentSnapshot()
        return int(snapshot.summary().get("added-records") or 0)

    def publish(self, staged: Staged, position: Position) -> None:
        """Commit what was staged, and the position after it. Raises TableChanged if the table has another snapshot."""
        try:
            change = self.load().newTransaction()
            change.manageSnapshots().fastForwardBranch(_MAIN, staged.branch).removeBranch(staged.branch).commit()
            change.updateProperties().set(POSITION, position.to_json()).commit()
            change.commitTransaction()
        except (Py4JError, PySparkException) as error:
            # an answer may be lost after the commit
            if self._is_published(staged):
                return
            if any(name in str(error) for name in _CONFLICTS):
                self.abandon(staged)
                raise TableChanged(f"{self.name}: the table got another snapshot meanwhile") from error
            raise

    def abandon(self, staged: Staged) -> None:
        """Remove the branch of a batch that is not published. If this fails, a later run removes it."""
        with suppress(Py4JError, PySparkException):
            table = self.load()
            if table.refs().get(staged.branch) is not None:
                table.manageSnapshots().removeBranch(staged.branch).commit()

    def _is_published(self, staged: Staged) -> bool:
        return any(each.snapshotId() == staged.snapshot for each in _ancestors(self.load()))

    def remove_old_branches(self) -> int:
        """Remove the branches of batches that can no longer be published, or began a day ago: their jobs were killed.

        Returns how many they were.
        """
        table, now_ms, removed = self.load(), self.clock.wall_ms(), 0
        current = table.currentSnapshot()
        for name, reference in [(entry.getKey(), entry.getValue()) for entry in table.refs().entrySet()]:
            told = _BRANCH_NAME.fullmatch(name)
            if told is None:
                continue
            starts = {reference.snapshotId(), table.snapshot(reference.snapshotId()).parentId()}
            is_late = current is not None and current.snapshotId() not in starts
            if is_late or now_ms - int(told[1]) > BRANCH_AGE_MAX_MS:
                table.manageSnapshots().removeBranch(name).commit()
                removed += 1
        return removed


_BRANCH_NAME: Final = re.compile(rf"{BRANCH}(\d+)-[0-9a-f]{{32}}")
_CONFLICTS: Final = ("CommitFailedException", "not an ancestor", "does not exist")


def _ancestors(table: Any) -> Iterator[Any]:
    """Yield the current snapshot of the table and those before it, as far as they have not expired."""
    snapshot = table.currentSnapshot()
    while snapshot is not None:
        yield snapshot
        parent = snapshot.parentId()
        snapshot = None if parent is None else table.snapshot(parent)


def _positions_of(table: Any) -> Iterator[str]:
    return (text for each in _ancestors(table) if (text := each.summary().get(POSITION)) is not None)


def quoted(name: str) -> str:
    return ".".join(f"`{part}`" for part in name.split("."))


def _jvm(spark: SparkSession) -> Any:
    return spark.sparkContext._jvm  # noqa: SLF001 - Spark gives no other way to Iceberg's own functions
