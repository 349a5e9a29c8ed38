"""Measures how fast Spark scans a log and rebuilds its queues, and whether the time grows with the log alone.

One log of records of 300 bytes in several sizes. `scan` reads the fixed fields of all messages, checksums included,
through the data source, and throws the rows away; its peer is a loop over the same columns in one process. `rebuild`
makes the RocksDB queues again with all real steps: reading, ranges of keys, sort, tables, database; its peer is a
broker's own dispatch at a start that finds no queues. The start of Spark and the first job of its session are not
measured.

Another log has records of 650 bytes, with their bodies. `all columns` reads every column through the data source,
`export` writes Parquet in folders by topic and day, `statistics` computes what `quarry pipeline stats` prints. Their
peers are one process that makes the same columns with Arrow, one that also writes them to one Parquet file in the same
order, and one that reads the columns which the statistics need. These cases have `cpu_ratio`: our rate per CPU second
as a multiple of the peer's, since wall time depends on what else the machine does.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from random import Random
from statistics import median
from tempfile import NamedTemporaryFile, TemporaryDirectory
from typing import TYPE_CHECKING, Final

from bench.harness import CannotRun, Case, Options, Sample, Scale, alternate, private_bytes_of, require_room
from bench.scratch_store import make_messages, scratch_store
from quarry_mq.protocol.clock import SystemClock
from quarry_mq.store.fs import PosixDisk
from quarry_mq.store.layout.kind import inspect_store
from quarry_mq.store.migration import remove_database
from quarry_mq.store.offline import OfflineStore
from quarry_mq.store.opening.open_store import open_store
from quarry_mq.store.scan import scan_log
from quarry_mq.store.settings import Durability, StoreSettings

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

QUESTION: Final = "How fast does Spark scan a log and rebuild its queues, and does time grow with the log alone?"
BODY_BYTES: Final = 44
"""Bytes of a body: with head, topic and properties the record has 300 bytes."""
LARGE_BODY_BYTES: Final = 394
"""Bytes of a body of the log that is exported: its records have 650 bytes."""
ROUND_MESSAGES: Final = 64
FIXED: Final = (
    "topic,queueId,queueOffset,phyOffset,storeSize,storeTimestamp,bornTimestamp,sysFlag,flag,reconsumeTimes,bodyLength"
)
_ALL: Final = (
    "topic,queueId,queueOffset,phyOffset,storeSize,storeTimestamp,bornTimestamp,bornHost,storeHost,msgId,uniqKey,tags,"
    "keys,flag,sysFlag,reconsumeTimes,preparedTransactionOffset,magic,bodyCRC,bodyLength,properties,body"
)
_COUNTED: Final = ["topic,queueId,tags,storeTimestamp,storeSize,bodyLength", "topic,uniqKey", "topic,keys"]
"""The columns of the three readings that the statistics need."""
_BATCHES_PER_ROW_GROUP: Final = 16
LOOK_INTERVAL_S: Final = 0.1


@dataclass(frozen=True, slots=True)
class Sizes:
    """Numbers of messages of the logs."""

    messages: tuple[int, ...]
    large: tuple[int, ...]
    """Numbers of messages of the logs with larger bodies."""
    rounds: int
    split_bytes: int


SIZES: Final = {
    Scale.FULL: Sizes((1_000_000, 5_000_000, 20_000_000), (200_000, 2_000_000), rounds=3, split_bytes=64 << 20),
    Scale.QUICK: Sizes((1_000_000,), (200_000,), rounds=1, split_bytes=64 << 20),
    Scale.TINY: Sizes((2_000,), (2_000,), rounds=1, split_bytes=100_000),
}


def run(options: Options) -> list[Case]:
    try:
        from quarry_mq.pipeline.session import JavaMissing, find_java, open_session
    except ImportError as missing:
        raise CannotRun(f"{missing.name} is missing: pip install 'quarry-mq[pipeline]'") from missing
    try:
        find_java()
    except JavaMissing as missing:
        raise CannotRun(str(missing)) from missing
    sizes = SIZES[options.scale]
    require_room(options.scratch, 700 * max(sizes.messages, default=0) + 2_500 * max(sizes.large))
    settings = {
        "spark.ui.enabled": "false",
        "spark.log.level": "ERROR",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.memory": "2g",
        "spark.local.dir": str(options.scratch),
    }
    spark = open_session("bench", master="local[2]", settings=settings)
    try:
        cases: list[Case] = []
        for messages in sizes.messages:
            root = options.scratch / str(messages)
            _write(root, Random(options.seed), messages, BODY_BYTES)
            cases += _Comparison(spark, root, messages, sizes).cases()
        for messages in sizes.large:
            root = options.scratch / f"large-{messages}"
            _write(root, Random(options.seed), messages, LARGE_BODY_BYTES)
            cases += _Jobs(spark, root, messages, sizes).cases()
        return cases
    finally:
        spark.stop()


def _write(root: Path, random: Random, messages: int, body_bytes: int) -> None:
    with scratch_store(root, Durability.ASYNC) as store:
        for begin in range(0, messages, ROUND_MESSAGES):
            some = make_messages(
                random, min(ROUND_MESSAGES, messages - begin), body_sizes=range(body_bytes, body_bytes + 1)
            )
            store.messages.append(some)
            store.messages.dispatch(store.messages.appended_up_to)


class _Measured:
    """Measures what Spark does with one log: time, CPU time and memory of this process, of Spark's and its workers."""

    def __init__(self, spark: SparkSession, root: Path, messages: int, sizes: Sizes) -> None:
        self._spark = spark
        self._root = root
        self._messages = messages
        self._sizes = sizes
        self._peak = 0

    @contextmanager
    def _measured(self) -> Iterator[list[Sample]]:
        """Measure time, CPU time and memory of this process, of Spark's and of its workers."""
        taken: list[Sample] = []
        is_over = threading.Event()

        def watch() -> None:
            while not is_over.wait(LOOK_INTERVAL_S):
                self._peak = max(self._peak, sum(map(_private_bytes, _family())))

        watcher = threading.Thread(target=watch, name="memory-watcher")
        watcher.start()
        try:
            cpu_s, begun_s = _cpu_s(), time.perf_counter()
            yield taken
            taken.append(Sample(self._messages, time.perf_counter() - begun_s, _cpu_s() - cpu_s))
        finally:
            is_over.set()
            watcher.join()


class _Comparison(_Measured):
    """Scan and rebuild one log."""

    _record_bytes = 0

    def cases(self) -> list[Case]:
        self._scan()  # starts the workers
        return [
            self._case("scan of the fixed fields", "one process", self._scan, self._scan_alone),
            self._case("rebuild of the queues", "a broker's dispatch", self._rebuild, self._dispatch),
        ]

    def _case(self, what: str, peer: str, ours: Callable[[], Sample], theirs: Callable[[], Sample]) -> Case:
        self._peak = 0
        samples = alternate(self._sizes.rounds, ours, theirs)
        return Case(
            name=f"{what}, {self._messages:,} messages",
            unit="messages",
            peer=peer,
            ours=samples[0],
            theirs=samples[1],
            details={
                "messages": self._messages,
                "seconds": round(self._messages * len(samples[0]) / sum(each.per_second for each in samples[0]), 2),
                "peak_bytes": self._peak,
                "record_bytes": self._record_bytes,
            },
        )

    # -- on Spark

    def _scan(self) -> Sample:
        frame = self._spark.read.format("quarry").options(columns=FIXED, splitBytes=self._sizes.split_bytes)
        with self._measured() as taken:
            frame.load(str(self._root)).write.format("noop").mode("overwrite").save()
        return taken[0]

    def _rebuild(self) -> Sample:
        from quarry_mq.pipeline.rebuild import rebuild

        with self._measured() as taken:
            rebuilt = rebuild(self._spark, PosixDisk(), self._root, split_bytes=self._sizes.split_bytes)
        assert rebuilt.queues.entries == self._messages
        if rebuilt.aside is not None:
            remove_database(PosixDisk(), rebuilt.aside)
        return taken[0]

    # -- without Spark

    def _scan_alone(self) -> Sample:
        cpu_s, begun_s = time.process_time(), time.perf_counter()
        with OfflineStore.open(PosixDisk(), self._root) as store:
            sizes = [batch.columns.size for batch in scan_log(store.segments, store.minimum)]
        assert sum(map(len, sizes)) == self._messages
        self._record_bytes = int(sizes[0].mean())
        return Sample(self._messages, time.perf_counter() - begun_s, time.process_time() - cpu_s)

    def _dispatch(self) -> Sample:
        """Start a store without queues: the database is made from the log, and flushed."""
        remove_database(PosixDisk(), inspect_store(PosixDisk(), self._root).rocksdb_directory)
        cpu_s, begun_s = time.process_time(), time.perf_counter()
        settings = StoreSettings(root=self._root)
        store = open_store(settings, disk=PosixDisk(), clock=SystemClock(), report=lambda _: None)
        store.close()
        assert store.recovery.findings.records == self._messages
        return Sample(self._messages, time.perf_counter() - begun_s, time.process_time() - cpu_s)


class _Jobs(_Measured):
    """Read, export and count one log with its bodies."""

    def cases(self) -> list[Case]:
        self._all_columns()  # starts the workers
        return [
            self._case("all columns", "one process, Arrow", self._all_columns, lambda: self._alone([_ALL])),
            self._case("export", "one process, one Parquet file", self._export, self._parquet_alone),
            self._case("statistics", "one process, same columns", self._statistics, lambda: self._alone(_COUNTED)),
        ]

    def _case(self, what: str, peer: str, ours: Callable[[], Sample], theirs: Callable[[], Sample]) -> Case:
        self._peak = 0
        samples = alternate(self._sizes.rounds, ours, theirs)
        ratios = [their.cpu_us / our.cpu_us for our, their in zip(*samples, strict=True)]
        details = {"messages": self._messages, "cpu_ratio": round(median(ratios), 3), "peak_bytes": self._peak}
        return Case(
            name=f"{what}, {self._messages:,} messages",
            unit="messages",
            peer=peer,
            ours=samples[0],
            theirs=samples[1],
            details=details,
        )

    def _all_columns(self) -> Sample:
        frame = self._spark.read.format("quarry").options(columns=_ALL, splitBytes=self._sizes.split_bytes)
        with self._measured() as taken:
            frame.load(str(self._root)).write.format("noop").mode("overwrite").save()
        return taken[0]

    def _export(self) -> Sample:
        from quarry_mq.pipeline.export import Selection, export

        with TemporaryDirectory(dir=self._root.parent) as folder, self._measured() as taken:
            done = export(self._spark, PosixDisk(), self._root, f"{folder}/out", Selection())
            assert done.messages == self._messages
        return taken[0]

    def _statistics(self) -> Sample:
        from quarry_mq.pipeline.stats import Wanted, statistics

        with self._measured() as taken:
            found = statistics(self._spark, PosixDisk(), self._root, Wanted())
            assert found.volume.messages == self._messages
        return taken[0]

    # -- without Spark

    def _alone(self, columns: list[str]) -> Sample:
        cpu_s, begun_s = time.process_time(), time.perf_counter()
        for some in columns:
            assert sum(batch.num_rows for batch in self._batches(some)) == self._messages
        return Sample(self._messages, time.perf_counter() - begun_s, time.process_time() - cpu_s)

    def _parquet_alone(self) -> Sample:
        """Write the log in its order: it has one topic, and messages of one day or two."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        cpu_s, begun_s = time.process_time(), time.perf_counter()
        with NamedTemporaryFile(dir=self._root.parent) as file:
            writer = None
            for table in map(pa.Table.from_batches, _grouped(self._batches(_ALL), _BATCHES_PER_ROW_GROUP)):
                writer = writer or pq.ParquetWriter(file, table.schema, compression="snappy")
                writer.write_table(table)
            assert writer is not None
            writer.close()
        return Sample(self._messages, time.perf_counter() - begun_s, time.process_time() - cpu_s)

    def _batches(self, columns: str) -> Iterator[pa.RecordBatch]:
        from quarry_mq.pipeline.damage import LogTable, sound
        from quarry_mq.pipeline.source.log_splits import LogSplit

        reader = LogTable(self._spark, self._root).reader(columns, ())
        for split in reader.partitions():
            assert isinstance(split, LogSplit)
            yield from sound(reader, split, ())


def _grouped(batches: Iterator[pa.RecordBatch], count: int) -> Iterator[list[pa.RecordBatch]]:
    while some := list(islice(batches, count)):
        yield some


def _family() -> list[int]:
    """Return the ids of our process and of all that it has started, including Spark."""
    children: dict[int, list[int]] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except OSError:
            continue  # it has just ended
        children.setdefault(int(fields[1]), []).append(int(path.parent.name))
    found = [os.getpid()]
    for pid in found:
        found += children.get(pid, [])
    return found


def _cpu_s() -> float:
    """Return the CPU time that these processes have taken so far, including those that have ended."""
    ticks = 0
    for pid in _family():
        try:
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        ticks += sum(map(int, fields[11:15]))
    return ticks / os.sysconf("SC_CLK_TCK")


def _private_bytes(pid: int) -> int:
    try:
        return private_bytes_of(pid)
    except (OSError, RuntimeError):
        return 0
