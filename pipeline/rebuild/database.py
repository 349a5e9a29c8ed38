"""Makes a database of queues from the log. `pipeline.rebuild.job` puts it in its place.

1  sample some places of the log, and choose ranges of keys with about equal numbers of entries
2  read the log in splits; every entry goes to the task of its range, which sorts its entries and writes a table
3  make a database of the tables, with the max offsets of all queues and the offset up to which the log is dispatched
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Final, NamedTuple

import pyarrow as pa
import structlog
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema

from quarry_mq.kv import WriteBatch
from quarry_mq.pipeline.rebuild.log_entries import ROW_SCHEMA, LogEntries, entry_rows, sample_keys
from quarry_mq.pipeline.rebuild.tables import RESULT_SCHEMA, table_writer
from quarry_mq.pipeline.source.log_splits import (
    LogExtent,
    LogSplit,
    end_of_records,
    log_extent,
    open_segment,
    open_segments,
    plan_splits,
    read_whole_split,
)
from quarry_mq.store.commitlog import SegmentList
from quarry_mq.store.consumequeue import open_consume_queue_engine
from quarry_mq.store.consumequeue.rocks_layout import (
    BOUND,
    CHECKPOINT_KEY,
    ENTRIES_FAMILY,
    I64,
    OFFSET_FAMILY,
    maximum_key,
    parse_entry_key,
)
from quarry_mq.store.fs import Disk, PosixDisk
from quarry_mq.store.message import PhysicalOffset, QueueId, QueueOffset
from quarry_mq.store.migration import remove_database
from quarry_mq.store.scan import first_record, scan_log

SAMPLES: Final = 64
"""Number of places of the log that are sampled; each gives some thousand records."""
ENTRIES_PER_RANGE: Final = 1_000_000
"""Entries of a range: about 100 MB in Spark's memory, and as much in a table."""


class Sample(NamedTuple):
    """Sorted keys of entries from all over the log, and an estimate of the number of all entries."""

    keys: list[bytes]
    entries_estimate: int


def sample(segments: SegmentList, extent: LogExtent) -> Sample:
    """Sample some places of the log. Damage is ignored here; the jobs that read the whole log report it."""
    keys: list[bytes] = []
    read_bytes = 0
    size = extent.end - extent.begin
    for place in range(SAMPLES if size else 0):
        start = first_record(segments, PhysicalOffset(extent.begin + size * place // SAMPLES))
        if start is None or start >= extent.end:
            continue
        for batch in islice(scan_log(segments, start, extent.end, check_crc=False), 1):
            keys += sample_keys(batch)
            read_bytes += int(batch.columns.size.sum())
    return Sample(sorted(keys), len(keys) * size // read_bytes if read_bytes else 0)


def boundaries(found: Sample, ranges_min: int) -> list[bytes]:
    """Return the keys at which the ranges after the first begin, so that all have about equal numbers of entries."""
    count = max(ranges_min, -(-found.entries_estimate // ENTRIES_PER_RANGE))
    keys: Sequence[bytes] = found.keys
    return sorted({keys[len(keys) * number // count] for number in range(1, count) if keys})


BOUNDS_PER_BATCH: Final = 10_000

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class MadeQueues:
    """The counts of a finished database, and the offset up to which the log is dispatched."""

    entries: int
    queues: int
    tables: int
    dispatched_up_to: PhysicalOffset


class QueueBuild:
    """Makes a database in a folder of its own. The caller holds the lock of the store, in whose folder it lies."""

    def __init__(self, spark: SparkSession, disk: Disk, root: Path, place: Path, split_bytes: int) -> None:
        self._spark = spark
        self._disk = disk
        self._root = root
        self._place = place
        self._tables = place.with_name(f"{place.name}-tables")
        self._split_bytes = split_bytes

    def make(
        self,
        entries: LogEntries,
        *,
        end: PhysicalOffset | None = None,
        next_offsets: Iterable[tuple[QueueId, QueueOffset]] = (),
    ) -> MadeQueues:
        """Make the database of these entries of the log, which ends at `end` if that is known.

        `next_offsets` gives the next offset of queues that have no record in the log. An old database there is removed.
        """
        segments = open_segments(self._disk, self._root)
        try:
            extent = log_extent(self._disk, self._root, segments, is_ours=True)
            splits = plan_splits(segments, extent, self._split_bytes)
            cuts = boundaries(sample(segments, extent), self._spark.sparkContext.defaultParallelism)
            end = end_of_records(segments, extent, self._split_bytes) if end is None else end
        finally:
            segments.close()
        self._clear()
        self._disk.make_directories(self._tables)
        results = self._write_tables(splits, cuts, entries)
        return self._make_database(results, end, next_offsets)

    def _write_tables(self, splits: list[LogSplit], cuts: list[bytes], entries: LogEntries) -> pa.Table:
        """Read and sort the entries, and write the tables.

        Returns the results of all tasks (`RESULT_SCHEMA`) in key order. Where a queue was deleted and recreated,
        entries of a later range may be void. If such a queue lies across a boundary, everything is read once again with
        all of that queue in one range.
        """
        while True:
            rows = _entry_rows(self._spark, self._root, splits, cuts, entries)
            ordered = rows.repartitionById(len(cuts) + 1, "part").sortWithinPartitions("key", "value")
            written = ordered.select("key", "value").mapInArrow(table_writer(self._tables), RESULT_SCHEMA)
            results = written.toArrow()
            divided = _restarted_across(results)
            if not divided:
                return results
            log.info("queues began anew where ranges meet, they are kept together", queues=len(divided))
            cuts = [cut for cut in cuts if cut[: -I64.size] not in divided]
            self._clear()
            self._disk.make_directories(self._tables)

    def _make_database(
        self, results: pa.Table, end: PhysicalOffset, next_offsets: Iterable[tuple[QueueId, QueueOffset]]
    ) -> MadeQueues:
        engine = open_consume_queue_engine(self._place, create=True)
        try:
            written = results.filter(results.column("table").is_valid())
            names = written.column("table").to_pylist()
            if names:
                engine.ingest(engine.family(ENTRIES_FAMILY), [self._tables / name for name in names])
            offsets = engine.family(OFFSET_FAMILY)
            queues = 0
            for batch_of_queues in _bounds(results):
                batch: WriteBatch = engine.batch()
                batch.put_all(offsets, batch_of_queues)
                queues += len(batch_of_queues)
                engine.write(batch)
            for queue, next_offset in next_offsets:
                if next_offset > 0 and offsets.get(maximum_key(queue)) is None:
                    batch = engine.batch()
                    batch.put(offsets, maximum_key(queue), BOUND.pack(0, next_offset - 1))
                    queues += 1
                    engine.write(batch)
            batch = engine.batch()
            batch.put(offsets, CHECKPOINT_KEY, I64.pack(end))
            engine.write(batch)
            engine.flush([ENTRIES_FAMILY, OFFSET_FAMILY])
        finally:
            engine.close()
        shutil.rmtree(self._tables)
        return MadeQueues(sum(written.column("units").to_pylist()), queues, len(names), end)

    def _clear(self) -> None:
        """Remove what an earlier run left."""
        if self._disk.exists(self._place):
            remove_database(self._disk, self._place)
        if self._disk.exists(self._tables):
            shutil.rmtree(self._tables)


def _entry_rows(
    spark: SparkSession, root: Path, splits: list[LogSplit], cuts: list[bytes], entries: LogEntries
) -> DataFrame:
    """Return the entries of the log (`ROW_SCHEMA`), made by one task for each split.

    Damage ends the job; the error names file and offset.
    """

    def read(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        with entries.opened(root) as entries_of:
            for number in (number for batch in batches for number in batch.column("id").to_pylist()):
                with closing(open_segment(PosixDisk(), root, splits[number])) as segments:
                    for found in read_whole_split(segments, splits[number]):
                        if len(found):
                            yield entry_rows(entries_of(found), cuts, counts_light=entries.counts_light)

    return spark.range(0, len(splits), 1, max(1, len(splits))).mapInArrow(read, from_arrow_schema(ROW_SCHEMA))


def _restarted_across(results: pa.Table) -> set[bytes]:
    """Return the queues where a later range holds a record that lies before one of an earlier range in the log."""
    divided: set[bytes] = set()
    last_prefix, reached = b"", 0
    for prefix, lowest, highest in _columns(results, "prefix", "lowest", "highest"):
        if prefix == last_prefix and lowest < reached:
            divided.add(prefix)
        reached = max(highest, reached) if prefix == last_prefix else highest
        last_prefix = prefix
    return divided


def _bounds(results: pa.Table) -> Iterator[list[tuple[bytes, bytes]]]:
    """Yield the max offsets of the queues as they are stored, in batches of `BOUNDS_PER_BATCH`."""
    bounds: list[tuple[bytes, bytes]] = []
    last_prefix = b""
    for prefix, offset, place in _columns(results, "prefix", "lastOffset", "lastPlace"):
        queue, _ = parse_entry_key(prefix + bytes(I64.size))
        pair = maximum_key(queue), BOUND.pack(place, offset)
        if prefix == last_prefix:
            bounds[-1] = pair
            continue
        if len(bounds) == BOUNDS_PER_BATCH:
            yield bounds
            bounds = []
        bounds.append(pair)
        last_prefix = prefix
    yield bounds


def _columns(results: pa.Table, *names: str) -> Iterator[tuple[bytes, int, int]]:
    queues = results.filter(results.column("prefix").is_valid())
    return zip(*(queues.column(name).to_pylist() for name in names), strict=True)
