"""Writes messages to Parquet files from the tasks that read the log: rows do not go through Spark.

Each task reads successive splits of the log, so the messages of one topic and day come in the order that files have. So
nothing is sorted or exchanged, but each task writes a file of its own for each topic and day.
"""

from __future__ import annotations

import base64
import hashlib
import re
import uuid
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark.sql import SparkSession
from pyspark.sql.datasource import Filter
from pyspark.sql.types import LongType, StringType, StructField, StructType

from quarry_mq.pipeline.body_form import BodyForm
from quarry_mq.pipeline.damage import LogTable, sound
from quarry_mq.pipeline.export.body import PROBLEM, plain_bodies
from quarry_mq.pipeline.source.arrow import decoded
from quarry_mq.pipeline.source.log_splits import LogSplit, open_segments, read_split
from quarry_mq.protocol.times import TIME_MS_MAX
from quarry_mq.store.errors import StoreDamaged
from quarry_mq.store.fs import PosixDisk
from quarry_mq.store.scan import RecordBatch

TOPIC_FOLDER: Final = "topicFolder"
"""Partition column. Readers take a folder's name for a number if it looks like one, so files have `topic`, too."""
FOLDER_SIZE_MAX: Final = 240
"""Bytes that a topic may take in a folder's name, which can have 255."""
TOPICS_MAX: Final = 64
"""Topics of a log for which each of several tasks has files of its own; with more, files would be many and small."""
CODECS: Final = {"snappy": "snappy", "zstd": "zstd", "gzip": "gzip", "lz4_raw": "lz4", "none": "none"}
"""Compressions by the names that Spark and Arrow have for them."""

_SAMPLED_SPLITS: Final = 8
_TASK_BYTES: Final = 1 << 30
_TASKS_PER_CORE: Final = 2
_ROW_GROUP_BYTES: Final = 64 << 20
_BUFFER_BYTES: Final = 256 << 20
"""Memory for rows of all topics together that wait until they make a row group."""
_DAY_US: Final = 24 * 60 * 60 * 1_000_000
_DISTINCT: Final = frozenset({"phyOffset", "queueOffset", "msgId", "uniqKey", "body", "bodyCRC"})
"""Columns whose values do not repeat: a dictionary of them would be made and thrown away."""
_ESCAPED: Final = re.compile(r"""[\x01-\x1f"#%'*/:=?\\\x7f{[\]^]""")
_RESULT: Final = StructType(
    [
        StructField("file", StringType()),
        *(StructField(name, LongType()) for name in ("messages", "problems", "first")),
    ]
)


class Written(NamedTuple):
    """A file, relative to the folder that all are written to, and what it holds."""

    file: str
    messages: int
    problems: int
    """Messages whose body could not be uncompressed."""
    first: int | None
    """The physical offset of the first of these messages."""


@dataclass(frozen=True, slots=True)
class ParquetFiles:
    """Describes the files that tasks write."""

    staging: str
    form: BodyForm
    codec: str
    """The compression, by Arrow's name."""

    def write(
        self, log: LogTable, columns: str, conditions: Sequence[Filter], topics: Sequence[str]
    ) -> list[Written] | None:
        """Write the messages that meet the conditions. Damage ends the job, unless the log's mode leaves it out.

        `topics` are those of the conditions; empty: all. Returns None, and writes nothing, if each of several tasks
        would have files of its own for too many topics.
        """
        spark, reader = log.spark, log.reader(columns, conditions)
        splits = [split for split in reader.partitions() if isinstance(split, LogSplit)]
        if not splits:
            return []
        tasks = task_count(spark, splits)
        if not _has_few_topics(log, splits, topics):
            # one task makes no more files than there are topics and days, and keeps their rows in memory
            if _size_of(splits) > _BUFFER_BYTES:
                return None
            tasks = 1

        def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            numbers = [number for batch in batches for number in batch.column("id").to_pylist()]
            if not numbers:
                return
            rows = (rows for number in numbers for rows in sound(reader, splits[number], conditions))
            task = _Task(self)
            for batch in rows if self.form in (BodyForm.NONE, BodyForm.STORED) else _formed(rows, self.form):
                task.add(batch)
            yield pa.RecordBatch.from_pylist([each._asdict() for each in task.close()], _ARROW_RESULT)

        found = spark.range(0, len(splits), 1, tasks).mapInArrow(run, _RESULT)
        return [Written(*row) for row in found.collect()]


_ARROW_RESULT: Final = pa.schema(
    [("file", pa.string()), ("messages", pa.int64()), ("problems", pa.int64()), ("first", pa.int64())]
)


def _has_few_topics(log: LogTable, splits: Sequence[LogSplit], topics: Sequence[str]) -> bool:
    """Return whether a sample of the splits has so few of the topics that each task can have files of its own.

    `topics` empty: all. A sample that is not like the log makes small files, but no others.
    """
    found: set[str] = set()
    with closing(open_segments(PosixDisk(), log.root)) as segments, suppress(StoreDamaged):
        for split in splits[:: max(1, len(splits) // _SAMPLED_SPLITS)]:
            for batch in islice(read_split(segments, split, check_crc=False), 1):
                if isinstance(batch, RecordBatch):
                    found.update(batch.topics)
    return len(found & set(topics) if topics else found) <= TOPICS_MAX


def _size_of(splits: Sequence[LogSplit]) -> int:
    """Return the bytes of the log that the splits have."""
    return sum(split.end - split.begin for split in splits)


def task_count(spark: SparkSession, splits: Sequence[LogSplit]) -> int:
    """Return how many tasks read the splits: few, so that files are large, but all cores have work to the end."""
    tasks_least = _TASKS_PER_CORE * spark.sparkContext.defaultParallelism
    return min(len(splits), max(tasks_least, _size_of(splits) // _TASK_BYTES))


class _Task:
    """The files of one task, one for each topic and day."""

    def __init__(self, files: ParquetFiles) -> None:
        self._files = files
        self._attempt = uuid.uuid4().hex
        self._open: dict[str, _File] = {}
        self._waiting_bytes = 0

    def add(self, batch: pa.RecordBatch) -> None:
        for folder, rows in self._by_folder(batch):
            file = self._open.get(folder)
            if file is None:
                name = f"{folder}/part-{self._attempt}.{self._files.codec}.parquet"
                file = self._open[folder] = _File(self._files, name)
            file.add(rows)
            self._waiting_bytes += rows.nbytes
            if file.waiting_bytes >= _ROW_GROUP_BYTES:
                self._waiting_bytes -= file.flush()
        while self._waiting_bytes > _BUFFER_BYTES:
            self._waiting_bytes -= max(self._open.values(), key=lambda each: each.waiting_bytes).flush()

    def close(self) -> list[Written]:
        return [file.close() for file in self._open.values()]

    def _by_folder(self, batch: pa.RecordBatch) -> Iterator[tuple[str, pa.RecordBatch]]:
        """Yield the rows of each topic and day."""
        encoded = batch.column("topic").dictionary_encode()
        stored_us = batch.column("storeTimestamp").view(pa.int64())
        days = pc.fill_null(stored_us, TIME_MS_MAX * 1000).to_numpy() // _DAY_US
        groups = days * len(encoded.dictionary) + encoded.indices.to_numpy()
        found, index = np.unique(groups, return_inverse=True)
        for number, group in enumerate(found.tolist()):
            day, topic = divmod(group, len(encoded.dictionary))
            folder = f"{TOPIC_FOLDER}={folder_of(encoded.dictionary[topic].as_py())}/day={np.datetime64(day, 'D')}"
            yield folder, batch if len(found) == 1 else batch.take(pa.array(np.flatnonzero(index == number)))


@dataclass(slots=True)
class _File:
    """A Parquet file that is being written, and the rows of its next row group."""

    files: ParquetFiles
    name: str
    waiting_bytes: int = 0
    _waiting: list[pa.RecordBatch] = field(default_factory=list)
    _writer: pq.ParquetWriter | None = None
    _messages: int = 0
    _problems: int = 0
    _first: int | None = None

    def add(self, rows: pa.RecordBatch) -> None:
        self._waiting.append(rows)
        self.waiting_bytes += rows.nbytes
        self._messages += rows.num_rows
        if PROBLEM in rows.schema.names:
            found = rows.column("phyOffset").filter(rows.column(PROBLEM).is_valid())
            self._problems += len(found)
            if self._first is None and len(found):
                self._first = found[0].as_py()

    def flush(self) -> int:
        """Write what waits as a row group. Returns how many bytes of memory it took."""
        table = pa.Table.from_batches(self._waiting)
        if self._writer is None:
            path = Path(self.files.staging, self.name)
            path.parent.mkdir(parents=True, exist_ok=True)
            repeated = [name for name in table.schema.names if name not in _DISTINCT]
            self._writer = pq.ParquetWriter(
                path, table.schema, compression=self.files.codec, use_dictionary=repeated, store_schema=False
            )
        self._writer.write_table(table, row_group_size=max(1, table.num_rows))
        written, self.waiting_bytes, self._waiting = self.waiting_bytes, 0, []
        return written

    def close(self) -> Written:
        if self._waiting:
            self.flush()
        assert self._writer is not None
        self._writer.close()
        return Written(self.name, self._messages, self._problems, self._first)


def folder_of(topic: str) -> str:
    """Return the topic as the name of its folder, as Spark writes it; see `pipeline.export.job.topic_folder`."""
    if len(re.sub("[^A-Za-z0-9_-]", "xxxx", topic)) > FOLDER_SIZE_MAX:
        topic = f"{topic[:40]}~{hashlib.sha256(topic.encode()).hexdigest()[:32]}"
    return _ESCAPED.sub(lambda each: f"%{ord(each[0]):02X}", topic) or "__HIVE_DEFAULT_PARTITION__"


def _formed(batches: Iterable[pa.RecordBatch], form: BodyForm) -> Iterator[pa.RecordBatch]:
    """Yield the batches with uncompressed bodies in this form, and `bodyProblem`."""
    for batch in plain_bodies(batches):
        bodies = batch.column("body")
        match form:
            case BodyForm.TEXT:
                bodies = decoded(bodies)
            case BodyForm.BASE64:
                encoded = [None if each is None else base64.b64encode(each) for each in bodies.to_pylist()]
                bodies = pa.array(encoded, pa.binary()).cast(pa.string())
        yield batch.set_column(batch.schema.get_field_index("body"), "body", bodies)
