"""Finds what to append next: a range of a log, or a range of offsets of each queue of live brokers."""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, Protocol

import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sql

from quarry_mq.client.queues import Start
from quarry_mq.pipeline.damage import NO_DAMAGE, DamagedPlaces, LogTable, places_of, sound
from quarry_mq.pipeline.export.parquet_files import task_count
from quarry_mq.pipeline.lake.rows import LIVE_SCHEMA, LOG_COLUMNS, SCHEMA, rows_of_log, rows_of_received, visible
from quarry_mq.pipeline.lake.table import LakeTable, Position, Staged
from quarry_mq.pipeline.source.log_splits import LogExtent, LogSplit, open_segments, plan_splits, readable_range
from quarry_mq.pipeline.source.messages import DAMAGE
from quarry_mq.pipeline.source.options import SPLIT_BYTES, DamageMode
from quarry_mq.pipeline.source.times import TimeForm
from quarry_mq.pipeline.stream.batch import read_ranges
from quarry_mq.pipeline.stream.live import LiveQueues, QueueRanges
from quarry_mq.pipeline.stream.offsets import Offsets, Queue, limited, waiting
from quarry_mq.pipeline.stream.options import MessagesLost
from quarry_mq.pipeline.stream.source_options import SourceOptions, Use, source_options
from quarry_mq.store.commitlog import CommitLogReader, SegmentList
from quarry_mq.store.errors import Invalid, StoreDamaged, StoreLocked, StoreUnusable
from quarry_mq.store.fs import PosixDisk
from quarry_mq.store.layout.kind import StoreKind
from quarry_mq.store.message import PhysicalOffset
from quarry_mq.store.offline import OfflineStore
from quarry_mq.store.record import StoredMessage
from quarry_mq.store.state.deletions import Deletions

USERS_TOPICS: Final = "(?!%|rmq_sys_).*"
"""Topics of users, among those that the admin port lists."""
_MESSAGES_PER_TASK: Final = 200_000
_TASK_MIN: Final = 5_000
_MESSAGE_OVERHEAD: Final = 200
"""Bytes of a message beside its body, about."""


Stage = Callable[[DataFrame], Staged]
"""Writes rows to the branch of a batch. The branch has the rows of all calls that succeed."""


class Batch(Protocol):
    """A part of the source, which is appended by one commit."""

    @property
    def position(self) -> Position:
        """Return the position after the batch."""

    def stage(self, stage: Stage) -> tuple[Staged, DamagedPlaces]:
        """Write the rows of the batch."""

    def next_offsets(self, table: LakeTable, before: Position, staged: Staged) -> DataFrame:
        """Return the next offset of each queue after the batch: `topic`, `broker`, `queueId`, `nextOffset`."""


class Source(Protocol):
    """The source gives what is appended, batch by batch."""

    @property
    def expired(self) -> int:
        """Return how much was gone before it could be appended: bytes of a log, or messages of queues."""

    def next(self, table: LakeTable, position: Position) -> Batch | None:
        """Return what follows the position; None if there is nothing now."""

    def close(self) -> None:
        """Close the connections."""


# -- a log


@dataclass(frozen=True, slots=True, kw_only=True)
class LogWish:
    """Describes what is appended of a log."""

    root: Path
    topics: tuple[str, ...] = ()
    """The only topics; none: all of users."""
    broker: str = "quarry"
    """The name of the broker that has written the log, or will."""
    batch_bytes: int
    """Bytes of the log that one commit appends, about."""
    split_bytes: int = SPLIT_BYTES


@dataclass(frozen=True)
class LogBatch:
    """Successive splits of a log."""

    spark: SparkSession
    wish: LogWish
    splits: tuple[LogSplit, ...]
    deleted: Mapping[str, int]
    position: Position

    def stage(self, stage: Stage) -> tuple[Staged, DamagedPlaces]:
        """Write the rows of the batch. If the log is damaged, write everything except the damaged places."""
        try:
            return stage(self._rows(DamageMode.FAIL)), NO_DAMAGE
        except PySparkException as error:
            if StoreDamaged.__name__ not in str(error):
                raise
        return stage(self._rows(DamageMode.QUARANTINE)), places_of(self._damage())

    def next_offsets(self, table: LakeTable, before: Position, staged: Staged) -> DataFrame:
        new = table.staged_rows(staged).select(*_QUEUE, (sql.col("queueOffset") + 1).alias("nextOffset"))
        return table.next_offsets(before).union(new).groupBy(*_QUEUE).agg(sql.max("nextOffset").alias("nextOffset"))

    def _rows(self, mode: DamageMode) -> DataFrame:
        wish, splits, deleted = self.wish, self.splits, self.deleted
        conditions = visible(wish.topics)
        log = LogTable(self.spark, wish.root, mode, wish.split_bytes)
        reader = log.reader(",".join(LOG_COLUMNS), conditions, times=TimeForm.MILLIS)

        def read(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            for number in _numbers(batches):
                yield from rows_of_log(sound(reader, splits[number], conditions), wish.broker, deleted)

        tasks = task_count(self.spark, splits)
        return self.spark.range(0, len(splits), 1, tasks).mapInArrow(read, SCHEMA)

    def _damage(self) -> DataFrame:
        splits = self.splits
        log = LogTable(self.spark, self.wish.root, DamageMode.QUARANTINE, self.wish.split_bytes)
        reader = log.reader("phyOffset", ())
        schema = reader.schema

        def read(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            for number in _numbers(batches):
                for batch in reader.read(splits[number]):
                    yield batch.filter(batch.column(DAMAGE).is_valid())

        return self.spark.range(0, len(splits), 1, task_count(self.spark, splits)).mapInArrow(read, schema)


class LogSource:
    """A store directory or a backup, whose log is appended in its order."""

    def __init__(self, spark: SparkSession, wish: LogWish) -> None:
        self._spark = spark
        self._wish = wish
        self._deleted = _deleted_topics(wish.root)
        self.expired = 0

    def next(self, table: LakeTable, position: Position) -> LogBatch | None:
        """Return the next part of the log.

        Raises Invalid if the table has something else, StoreUnusable if the log is not the one that the table has.
        """
        wish = self._wish
        self._check(table, position)
        log_begin, end = readable_range(PosixDisk(), wish.root, wish.split_bytes)
        begin = PhysicalOffset(log_begin if position.log_end is None else position.log_end)
        with closing(open_segments(PosixDisk(), wish.root)) as segments:
            _check_log(segments, wish.root, position, end)
            splits = _splits(segments, max(begin, log_begin), end, wish)
            if not splits:
                return None
            self.expired += max(0, log_begin - begin)
            mark = _mark(segments, splits[-1].begin) or position.mark
        after = Position(
            offsets=uuid.uuid4().hex, log_end=splits[-1].end, topics=wish.topics, broker=wish.broker, mark=mark
        )
        return LogBatch(self._spark, wish, splits, self._deleted, after)

    def close(self) -> None:
        """Do nothing: files are closed after each batch."""

    def _check(self, table: LakeTable, position: Position) -> None:
        if position.offsets is None:
            return
        if position.log_end is None:
            raise Invalid(f"{table.name}: it follows a live broker already; continue with the address of the broker")
        wanted = (self._wish.topics, self._wish.broker)
        if (position.topics, position.broker) != wanted:
            raise Invalid(
                f"{table.name}: it has the topics {', '.join(position.topics) or '(all)'} of the broker "
                f"{position.broker}, not {', '.join(wanted[0]) or '(all)'} of {wanted[1]}"
            )


def _deleted_topics(root: Path) -> Mapping[str, int]:
    """Return the physical offset below which the records of each deleted topic are gone for consumers.

    A store that a broker uses does not tell.
    """
    try:
        with OfflineStore.open(PosixDisk(), root) as store:
            return Deletions(store.state_engine()).topics() if store.found.kind is StoreKind.QUARRY else {}
    except StoreLocked:
        return {}


def _check_log(segments: SegmentList, root: Path, position: Position, end: PhysicalOffset) -> None:
    """Raise StoreUnusable if the log is another one than the table has."""
    if position.log_end is None:
        return
    reason = "" if end >= position.log_end else f"the log ends at {end}"
    if not reason and position.mark is not None:
        at, digest = position.mark
        if at >= segments.minimum and _mark(segments, PhysicalOffset(at)) != (at, digest):
            reason = f"the record at offset {at} is another one"
    if reason:
        raise StoreUnusable(
            root,
            f"the table has messages up to offset {position.log_end}, but {reason}: it is another store, an older "
            "backup, or the broker lost its last messages",
        )


def _mark(segments: SegmentList, at: PhysicalOffset) -> tuple[int, str] | None:
    """Return the offset and digest of the record at an offset, which identify the log; None where no record is."""
    found = CommitLogReader(segments).decode(at)
    if not isinstance(found, StoredMessage):
        return None
    place = f"{found.topic}/{found.queue_number}/{found.queue_offset}/{found.store_timestamp_ms}/"
    return at, hashlib.sha256(place.encode() + bytes(found.body)).hexdigest()


def _splits(segments: SegmentList, begin: PhysicalOffset, end: PhysicalOffset, wish: LogWish) -> tuple[LogSplit, ...]:
    """Return the splits of the next batch. Only the segments of the batch are looked at."""
    if begin >= end:
        return ()
    size = segments.segment_size
    base = segments.base_of(begin)
    limit = min(end, PhysicalOffset(base + -(-(begin - base + wish.batch_bytes) // size) * size))
    found: list[LogSplit] = []
    split_bytes = min(wish.split_bytes, wish.batch_bytes)
    for split in plan_splits(segments, LogExtent(begin, limit, None), split_bytes):
        # the end of the batch is not that of the log
        found.append(replace(split, log_end=end))
        if split.end - begin >= wish.batch_bytes:
            break
    # the next batch begins where this one ends
    return (*found[:-1], found[-1].located(segments))


# -- live brokers


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveWish:
    """Describes what is appended of live brokers."""

    options: Mapping[str, str]
    """Options of the connection, as `spark.read.format("quarry")` has them: docs/pipeline.md."""
    topics: tuple[str, ...] = ()
    """The only topics; none: all of users, which the option `adminEndpoint` lists."""
    batch_bytes: int
    """Bytes of messages that one commit appends, about."""


@dataclass(frozen=True)
class LiveBatch:
    """A range of offsets of each queue."""

    spark: SparkSession
    options: SourceOptions
    parts: tuple[QueueRanges, ...]
    messages: int
    after: Offsets
    position: Position

    def stage(self, stage: Stage) -> tuple[Staged, DamagedPlaces]:
        """Write the rows of the batch."""
        options, parts = self.options, self.parts

        def read(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            for number in _numbers(batches):
                for received in read_ranges(parts[number], options, LIVE_SCHEMA):
                    yield rows_of_received(received)

        cores = self.spark.sparkContext.defaultParallelism
        # few tasks make few files
        tasks = min(len(parts), max(cores, -(-self.messages // _MESSAGES_PER_TASK)), -(-self.messages // _TASK_MIN))
        return stage(self.spark.range(0, len(parts), 1, max(1, tasks)).mapInArrow(read, SCHEMA)), NO_DAMAGE

    def next_offsets(self, table: LakeTable, before: Position, staged: Staged) -> DataFrame:  # noqa: ARG002 - as planned
        queues = list(self.after)
        return self.spark.createDataFrame(
            pa.table(
                {
                    "topic": pa.array([each.topic for each in queues], pa.string()),
                    "broker": pa.array([each.broker for each in queues], pa.string()),
                    "queueId": pa.array([each.number for each in queues], pa.int32()),
                    "nextOffset": pa.array(list(self.after.values()), pa.int64()),
                }
            )
        )


class LiveSource:
    """Topics of live brokers, each queue of which is appended in its order."""

    def __init__(self, spark: SparkSession, wish: LiveWish) -> None:
        """Raises InvalidOption for unusable options."""
        self._spark = spark
        self._wish = wish
        what = {"subscribe": ",".join(wish.topics)} if wish.topics else {"subscribePattern": USERS_TOPICS}
        self._options = source_options({**wish.options, **what}, Use.BATCH)
        self._live = LiveQueues(self._options)
        self._known: Offsets = {}
        self._version: str | None = None
        self._planned: tuple[str, Offsets] = "", {}
        """The version of the next offsets after the last planned batch, and these offsets."""
        self._earliest: Offsets = {}
        self.expired = 0

    def next(self, table: LakeTable, position: Position) -> LiveBatch | None:
        """Return the next messages. Raises MessagesLost if a queue ends before the position, Invalid, CallRefused."""
        queues = self._live.find()
        self._remember(table, position, queues)
        self._find_earliest([each for each in queues if each not in self._earliest])
        ends = self._live.offsets(queues, Start.LATEST)
        begins = {queue: max(self._known.get(queue, 0), self._earliest[queue]) for queue in queues}
        for queue in queues:
            if ends[queue] < begins[queue]:
                raise MessagesLost(
                    f"{queue}: the table has it up to offset {begins[queue]}, but it ends at {ends[queue]}: the topic "
                    "was created again, or the broker lost its last messages; begin with a new table"
                )
        count = waiting(begins, ends)
        if not count:
            return None
        size = self._live.body_bytes(begins, ends) + _MESSAGE_OVERHEAD
        ends = limited(begins, ends, max(1, int(self._wish.batch_bytes / size)))
        self._planned = uuid.uuid4().hex, self._known | ends
        version, after = self._planned
        parts = tuple(self._live.plan(begins, ends))
        return LiveBatch(self._spark, self._options, parts, waiting(begins, ends), after, Position(offsets=version))

    def close(self) -> None:
        """Close the connections."""
        self._live.close()

    def _find_earliest(self, queues: list[Queue]) -> None:
        """Ask where queues begin, and count what the table lacks because it expired."""
        found = self._live.offsets(queues, Start.EARLIEST)
        self._earliest |= found
        self.expired += sum(max(0, first - self._known.get(queue, first)) for queue, first in found.items())

    def _remember(self, table: LakeTable, position: Position, queues: list[Queue]) -> None:
        """Read the next offset of each queue, unless they are known already."""
        if position.offsets is None or position.offsets == self._version:
            return
        if position.offsets == self._planned[0]:
            self._version, self._known = self._planned
            return
        rows = table.next_offsets(position).toArrow().to_pylist()
        if not rows:
            raise Invalid(f"{table.offsets}: version {position.offsets} is gone, which the position of the table names")
        self._known = {Queue(row["topic"], row["broker"], row["queueId"]): row["nextOffset"] for row in rows}
        self._version = position.offsets
        if position.log_end is not None:
            _check_brokers(table, self._known, queues)


def _check_brokers(table: LakeTable, known: Offsets, queues: list[Queue]) -> None:
    """Raise Invalid if the messages of a log have another broker's name than the live queues of their topic."""
    names: dict[str, set[str]] = {}
    for queue in queues:
        names.setdefault(queue.topic, set()).add(queue.broker)
    for queue in known:
        if queue.broker not in names.get(queue.topic, {queue.broker}):
            live = ", ".join(sorted(names[queue.topic]))
            raise Invalid(
                f"{table.name}: the messages of {queue.topic} have the broker name {queue.broker}, but the live broker "
                f"is {live}: make the table with --broker {live}"
            )


_QUEUE: Final = ("topic", "broker", "queueId")


def _numbers(batches: Iterator[pa.RecordBatch]) -> Iterator[int]:
    for batch in batches:
        yield from batch.column("id").to_pylist()
