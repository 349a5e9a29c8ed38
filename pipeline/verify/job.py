"""Verifies stores that are too large for one core: the same comparisons and verdict as `quarry verify`, on Spark.

    1  tasks of one job read queues, index files and splits of the log, and compute checksums of the entries
    2  the checksums are added up; a second job examines the pieces of the log where they differ

Metadata and pending messages are compared on the driver, as in `store.verify`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from pyspark import RDD, StorageLevel
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sql
from pyspark.sql.window import Window

from quarry_mq.pipeline.files import Folder
from quarry_mq.pipeline.progress import silent
from quarry_mq.pipeline.source.log_splits import log_extent, plan_splits
from quarry_mq.pipeline.source.options import SPLIT_BYTES
from quarry_mq.pipeline.verify.parts import (
    EntriesCompared,
    IndexCompared,
    IndexRead,
    Job,
    LogRead,
    Outcome,
    Part,
    QueuesRead,
    RecordsCompared,
    divided,
    queue_parts,
    run_part,
)
from quarry_mq.store.errors import Invalid
from quarry_mq.store.fs import Disk
from quarry_mq.store.index.indexes import KeyIndexes
from quarry_mq.store.message import PhysicalOffset, QueueId, QueueOffset
from quarry_mq.store.offline import OfflineStore
from quarry_mq.store.verify import DIFFERENCES_MAX, Check, Difference, VerifyReport
from quarry_mq.store.verify.index import indexes_to_compare
from quarry_mq.store.verify.metadata import MetadataComparison
from quarry_mq.store.verify.report import Findings
from quarry_mq.store.verify.sums import new_key
from quarry_mq.store.verify.verification import LogDamage, LogReading, Verification

ENTRIES_PER_PART: Final = 1_000_000
DIFFERENCES: Final = "differences"
VERDICT: Final = "verdict.json"

Found = tuple[int, Outcome | Difference]
"""The number of a part, and one of its results."""
_SCHEMA: Final = (
    "check string, file string, topic string, queueId int, queueOffset bigint, phyOffset bigint, expected string, "
    "found string"
)


def verify(
    spark: SparkSession,
    disk: Disk,
    root: Path,
    *,
    output: str | None = None,
    differences_max: int = DIFFERENCES_MAX,
    split_bytes: int = SPLIT_BYTES,
    entries_per_part: int = ENTRIES_PER_PART,
) -> VerifyReport:
    """Compare all data that a store holds twice. No broker may run on it, and nothing is changed.

    The report holds the first `differences_max` differences of each check; `output`, a folder in any file system that
    Spark knows, gets all of them as Parquet, and the verdict. Raises Invalid when the folder is not empty, what
    `store.verify.verify` raises, and what Spark raises.
    """
    folder = None if output is None else Folder(spark, output)
    if folder is not None and folder.list():
        raise Invalid(f"{folder.place}: is not empty")
    findings = Findings(None if folder else differences_max)
    with OfflineStore.open(disk, root) as store, indexes_to_compare(store, findings) as indexes:
        run = _Verification(spark, store, indexes, findings, split_bytes=split_bytes, entries_per_part=entries_per_part)
        report = run.run()
        try:
            if folder is not None:
                run.differences(report.differences).write.parquet(f"{folder.place}/{DIFFERENCES}")
                folder.write_text(VERDICT, json.dumps(report.as_json(), indent=2), staged_as=f".{VERDICT}")
            first = [*report.differences, *run.first_differences(differences_max)]
        finally:
            run.unpersist()
    return replace(report, differences=_first_of(first, differences_max))


class _Verification(Verification):
    """A verification whose long steps are Spark jobs."""

    def __init__(
        self,
        spark: SparkSession,
        store: OfflineStore,
        indexes: KeyIndexes,
        findings: Findings,
        *,
        split_bytes: int,
        entries_per_part: int,
    ) -> None:
        key = new_key()
        super().__init__(store, indexes, silent, findings, key)
        self._spark = spark
        self._split_bytes = split_bytes
        self._job = Job(store.paths.root, key, findings.kept_max, frozenset())
        self._queue_parts = [list(queue_parts(each.source, entries_per_part)) for each in self.comparisons]
        self._found: list[RDD[Found]] = []

    def read_queues(self) -> None:
        """Do nothing: the queues are read in one job with the log."""

    def read_log(self, claims: MetadataComparison | None) -> LogReading:
        store = self._store
        self._job = self._job._replace(wanted=frozenset() if claims is None else claims.open_queues)
        self.findings.count(Check.LOG, 0)
        reading = LogReading(store.minimum, store.minimum)
        for outcome in self._run([*self._log_parts(), *self._parts_of_queues(), *self._parts_of_indexes()]):
            self._absorb(outcome)
            if outcome.reading is not None:
                reading.absorb(outcome.reading)
            if claims is not None:
                claims.add_undispatched(outcome.ends)
        return reading

    def compare(self, damage: Sequence[LogDamage]) -> None:
        places = tuple(each[:2] for each in damage)
        for outcome in self._run([*self._parts_to_compare(), *self._items_to_compare(places)]):
            self.findings.absorb(outcome.findings)

    # -- parts

    def _log_parts(self) -> list[Part]:
        store = self._store
        extent = log_extent(store.disk, store.paths.root, store.segments, is_ours=True)
        # a torn end is reported with all other damage
        splits = plan_splits(store.segments, replace(extent, torn_from=None), self._split_bytes)
        return [LogRead(split) for split in splits]

    def _parts_of_queues(self) -> Iterator[Part]:
        for number, parts in enumerate(self._queue_parts):
            for part in parts:
                yield QueuesRead(number, part)

    def _parts_of_indexes(self) -> Iterator[Part]:
        for number, comparison in enumerate(self.index_comparisons):
            for file in comparison.files:
                yield IndexRead(number, file)

    def _parts_to_compare(self) -> Iterator[Part]:
        tasks = self._spark.sparkContext.defaultParallelism
        for number, comparison in enumerate(self.comparisons):
            pieces = comparison.differing()
            for some in divided(pieces, 4 * tasks):
                starts = self._starts_of(some)
                if starts:
                    yield RecordsCompared(number, starts)
            for part in self._queue_parts[number] if pieces else ():
                yield EntriesCompared(number, part, frozenset(pieces))

    def _items_to_compare(self, damage: tuple[tuple[PhysicalOffset, PhysicalOffset], ...]) -> Iterator[Part]:
        tasks = self._spark.sparkContext.defaultParallelism
        for number, comparison in enumerate(self.index_comparisons):
            for some in divided(comparison.differing(), tasks):
                yield IndexCompared(number, frozenset(some), self._starts_of(some), damage)

    def _starts_of(self, pieces: Sequence[int]) -> dict[int, PhysicalOffset]:
        return {piece: self.first_records[piece] for piece in pieces if piece in self.first_records}

    def _absorb(self, outcome: Outcome) -> None:
        self.findings.absorb(outcome.findings)
        if outcome.stored is not None:
            number, side = outcome.stored
            self.comparisons[number].stored.absorb(side)
        if outcome.stored_items is not None:
            number, items = outcome.stored_items
            self.index_comparisons[number].stored.absorb(items)
        for comparison, sums in zip(self.comparisons, outcome.expected, strict=False):
            comparison.expected.absorb(sums)
        for index, item_sums in zip(self.index_comparisons, outcome.expected_items, strict=False):
            index.expected.absorb(item_sums)
        for piece, at in outcome.first_records.items():
            self.first_records[piece] = min(at, self.first_records.get(piece, at))

    # -- jobs

    def _run(self, parts: Sequence[Part]) -> Iterator[Outcome]:
        """Run the parts as a job, and yield their outcomes in order. The differences stay with Spark."""
        if not parts:
            return
        given = self._spark.sparkContext.parallelize(list(enumerate(parts)), len(parts))
        found = given.flatMap(_task(self._job)).persist(StorageLevel.DISK_ONLY)
        self._found.append(found)
        for _, outcome in sorted(found.filter(_is_outcome).collect(), key=_number):
            assert isinstance(outcome, Outcome)
            yield outcome

    def differences(self, more: Sequence[Difference]) -> DataFrame:
        """Return all differences: those that tasks found, and `more`."""
        context = self._spark.sparkContext
        kept = [context.parallelize([_row(each) for each in more], 1)] if more else []
        rows = [each.flatMap(_rows) for each in self._found]
        return self._spark.createDataFrame(context.union([*kept, *rows]), _SCHEMA)

    def first_differences(self, limit: int) -> list[Difference]:
        """Return the first differences that tasks found, `limit` of each check."""
        if not any(self.findings.differing.values()):
            return []
        by_check = Window.partitionBy("check").orderBy(*_PLACE)
        first = self.differences(()).withColumn("rank", sql.row_number().over(by_check)).filter(f"rank <= {limit}")
        return [difference_of(row.asDict()) for row in first.collect()]

    def unpersist(self) -> None:
        """Release the results that Spark keeps."""
        for each in self._found:
            each.unpersist()


_PLACE: Final = ("phyOffset", "topic", "queueId", "queueOffset")


def _task(job: Job) -> Callable[[tuple[int, Part]], Iterator[Found]]:
    def run(enumerated: tuple[int, Part]) -> Iterator[Found]:
        number, part = enumerated
        for found in run_part(part, job):
            yield number, found

    return run


def _number(found: Found) -> int:
    return found[0]


def _is_outcome(found: Found) -> bool:
    return isinstance(found[1], Outcome)


def _rows(found: Found) -> list[tuple[str | int | None, ...]]:
    return [_row(found[1])] if isinstance(found[1], Difference) else []


def _row(difference: Difference) -> tuple[str | int | None, ...]:
    return tuple(difference.as_json().values())


def difference_of(row: dict[str, object]) -> Difference:
    """Return the difference of a row that `as_json` has made."""
    topic, number, at, place = (row[name] for name in ("topic", "queueId", "queueOffset", "phyOffset"))
    return Difference(
        check=Check(row["check"]),
        file=Path(str(row["file"])),
        expected=str(row["expected"]),
        found=str(row["found"]),
        queue=QueueId(topic, number) if isinstance(topic, str) and isinstance(number, int) else None,
        queue_offset=QueueOffset(at) if isinstance(at, int) else None,
        physical_offset=PhysicalOffset(place) if isinstance(place, int) else None,
    )


def _first_of(differences: Sequence[Difference], limit: int) -> list[Difference]:
    """Return the first `limit` differences of each check, in the order of the checks."""
    return [each for check in Check for each in [one for one in differences if one.check is check][:limit]]
