"""The tables `units` and `queues`: the entries of all consume queues, which RocketMQ calls units, and the queues.

From RocksDB a task reads a range of keys, from queue files some stretches of queues. Entries of expired records that
are not removed yet are left out, as a broker leaves them out.

The table `queues` has every consume queue with its min and max offset, as `quarry queues` lists them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, groupby, islice
from typing import ClassVar, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.datasource import InputPartition
from pyspark.sql.types import IntegerType, LongType, StringType

from quarry_mq.kv import KeyRange
from quarry_mq.pipeline.source.arrow import picked
from quarry_mq.pipeline.source.conditions import texts_of
from quarry_mq.pipeline.source.table import ArrowRows, Rows, TableReader, Types
from quarry_mq.store.consumequeue import ConsumeQueueEntry
from quarry_mq.store.consumequeue.rocks_layout import (
    ENTRIES_FAMILY,
    ENTRY_DTYPE,
    ENTRY_SIZE,
    I64,
    entry_key,
    parse_entry_key,
    topic_prefix,
)
from quarry_mq.store.errors import StoreDamaged
from quarry_mq.store.fs import PosixDisk
from quarry_mq.store.message import QueueId, QueueOffset
from quarry_mq.store.offline import ENTRIES_PER_READ, OfflineStore, QueueSource

BYTES_OF_ENTRY: Final = 64
"""Bytes of `splitBytes` that one entry counts for: about the size of its key and value."""
PAIRS_PER_BATCH: Final = 16_384

Pair = tuple[bytes, bytes]


@dataclass(frozen=True)
class KeysPart(InputPartition):
    """A partition: a range of keys in RocksDB."""

    start: bytes
    end: bytes | None


class Stretch(NamedTuple):
    """A range of offsets of one queue."""

    queue: QueueId
    begin: QueueOffset
    end: QueueOffset


@dataclass(frozen=True)
class StretchesPart(InputPartition):
    """A partition: stretches of queues in files."""

    stretches: tuple[Stretch, ...]


class EntryReader(TableReader):
    """Reads consume queue entries. Queue files hold no store times: `storeTimestamp` is null for them."""

    types: ClassVar[Types] = {
        "topic": StringType(),
        "queueId": IntegerType(),
        "queueOffset": LongType(),
        "phyOffset": LongType(),
        "size": IntegerType(),
        "tagsCode": LongType(),
        "storeTimestamp": LongType(),
    }

    def partitions(self) -> Sequence[InputPartition]:
        with OfflineStore.open(PosixDisk(), self.options.path) as store:
            topics = texts_of("topic", self.conditions)
            parts = _cut(_stretches(store, self.options.source, topics), self.options.split_bytes // BYTES_OF_ENTRY)
            if self._is_rocksdb(store):
                return list(_key_parts(parts, topics))
            return [StretchesPart(tuple(part)) for part in parts]

    def _is_rocksdb(self, store: OfflineStore) -> bool:
        return (self.options.source or store.default_source) is QueueSource.ROCKSDB

    def rows(self, partition: InputPartition) -> Iterator[Rows]:
        with OfflineStore.open(PosixDisk(), self.options.path) as store:
            if isinstance(partition, KeysPart):
                yield from self._rows_of_keys(store, partition)
            else:
                assert isinstance(partition, StretchesPart)
                yield from self._rows_of_stretches(store, partition)

    def _rows_of_keys(self, store: OfflineStore, part: KeysPart) -> Iterator[Rows]:
        pairs = store.queue_engine().family(ENTRIES_FAMILY).iterate(KeyRange(part.start, part.end))
        while some := list(islice(pairs, PAIRS_PER_BATCH)):
            try:
                batch = _batch_of(some)
            except ValueError as error:
                raise StoreDamaged(store.found.rocksdb_directory, str(error)) from error
            yield ArrowRows(batch.filter(pc.greater_equal(batch.column("phyOffset"), store.minimum)))

    def _rows_of_stretches(self, store: OfflineStore, part: StretchesPart) -> Iterator[Rows]:
        reader = store.queue_reader(self.options.source)
        for queue, first, end in part.stretches:
            begin = first
            while entries := [
                each for each in reader.entries(queue, begin, ENTRIES_PER_READ) if each.queue_offset < end
            ]:
                yield ArrowRows(_batch_of_entries(queue, entries))
                begin = QueueOffset(entries[-1].queue_offset + 1)


def _stretches(store: OfflineStore, source: QueueSource | None, topics: list[str] | None) -> Iterator[Stretch]:
    """Yield every queue from its min to its max offset, in the source's order."""
    reader = store.queue_reader(source)
    listed = (
        [reader.queues()] if topics is None else [reader.queues(topic) for topic in sorted(topics, key=topic_prefix)]
    )
    for queue in chain.from_iterable(listed):
        bounds = reader.bounds(queue)
        if bounds.minimum < bounds.maximum:
            yield Stretch(queue, bounds.minimum, bounds.maximum)


def _cut(stretches: Iterable[Stretch], entries_max: int) -> Iterator[list[Stretch]]:
    """Divide the stretches into parts of about `entries_max` entries; a long stretch is cut."""
    entries_max = max(entries_max, 1)
    part: list[Stretch] = []
    room = entries_max
    for queue, first, end in stretches:
        begin = first
        while begin < end:
            stop = QueueOffset(min(begin + room, end))
            part.append(Stretch(queue, begin, stop))
            room -= stop - begin
            begin = stop
            if room == 0:
                yield part
                part, room = [], entries_max
    if part:
        yield part


def _key_parts(parts: Iterable[list[Stretch]], topics: list[str] | None) -> Iterator[KeysPart]:
    """Yield the ranges of keys that hold the parts. If no topics are given, the ranges cover all keys."""
    if topics is None:
        begins = [entry_key(part[0].queue, part[0].begin) for part in parts]
        for start, next_begin in zip([b"", *begins[1:]], [*begins[1:], None], strict=True):
            yield KeysPart(start, next_begin)
        return
    for part in parts:
        for _, same in groupby(part, key=lambda stretch: stretch.queue.topic):
            stretches = list(same)
            first, last = stretches[0], stretches[-1]
            yield KeysPart(entry_key(first.queue, first.begin), entry_key(last.queue, last.end))


def _batch_of(pairs: Sequence[Pair]) -> pa.RecordBatch:
    """Return the entries of consecutive keys. Raises ValueError for a value that is no entry."""
    for key, value in pairs:
        if len(value) != ENTRY_SIZE:
            raise ValueError(f"{len(value)} bytes under the key {key[:64].hex()}, which must be a unit of {ENTRY_SIZE}")
    queues: list[QueueId] = []
    counts: list[int] = []
    for _, same in groupby(pairs, key=lambda pair: pair[0][: -I64.size]):
        keys = [key for key, _ in same]
        queues.append(parse_entry_key(keys[0])[0])
        counts.append(len(keys))
    index = np.repeat(np.arange(len(queues)), counts)
    entries = np.frombuffer(b"".join([value for _, value in pairs]), ENTRY_DTYPE)
    offsets = np.frombuffer(b"".join([key[-I64.size :] for key, _ in pairs]), ">i8")
    return pa.RecordBatch.from_pydict(
        {
            "topic": picked([queue.topic for queue in queues], index),
            "queueId": pa.array(np.array([queue.number for queue in queues], np.int32)[index]),
            "queueOffset": pa.array(offsets.astype(np.int64)),
            "phyOffset": pa.array(entries["physical_offset"].astype(np.int64)),
            "size": pa.array(entries["size"].astype(np.int32)),
            "tagsCode": pa.array(entries["tags_code"].astype(np.int64)),
            "storeTimestamp": pa.array(entries["store_timestamp_ms"].astype(np.int64)),
        }
    )


def _batch_of_entries(queue: QueueId, entries: Sequence[ConsumeQueueEntry]) -> pa.RecordBatch:
    columns = dict(zip(ConsumeQueueEntry._fields, zip(*entries, strict=True), strict=True))
    return pa.RecordBatch.from_pydict(
        {
            "topic": pa.array([queue.topic] * len(entries), pa.string()),
            "queueId": pa.array([queue.number] * len(entries), pa.int32()),
            "queueOffset": pa.array(columns["queue_offset"], pa.int64()),
            "phyOffset": pa.array(columns["physical_offset"], pa.int64()),
            "size": pa.array(columns["size"], pa.int32()),
            "tagsCode": pa.array(columns["tags_code"], pa.int64()),
            "storeTimestamp": pa.array(columns["store_timestamp_ms"], pa.int64()),
        }
    )


QUEUES_PER_TASK: Final = 50_000
QUEUES_PER_BATCH: Final = 4_096


@dataclass(frozen=True)
class QueuesPart(InputPartition):
    """The queues that one task reads."""

    queues: tuple[QueueId, ...]


class QueueReader(TableReader):
    """Reads the bounds of queues: `minOffset` is the offset of the first message, `maxOffset` the next free one."""

    types: ClassVar[Types] = {
        "topic": StringType(),
        "queueId": IntegerType(),
        "minOffset": LongType(),
        "maxOffset": LongType(),
    }

    def partitions(self) -> Sequence[InputPartition]:
        topics = texts_of("topic", self.conditions)
        with OfflineStore.open(PosixDisk(), self.options.path) as store:
            reader = store.queue_reader(self.options.source)
            if topics is None:
                queues = list(reader.queues())
            else:
                queues = [queue for topic in topics for queue in reader.queues(topic)]
        return [
            QueuesPart(tuple(queues[begin : begin + QUEUES_PER_TASK]))
            for begin in range(0, len(queues), QUEUES_PER_TASK)
        ]

    def rows(self, partition: InputPartition) -> Iterator[Rows]:
        assert isinstance(partition, QueuesPart)
        with OfflineStore.open(PosixDisk(), self.options.path) as store:
            reader = store.queue_reader(self.options.source)
            for begin in range(0, len(partition.queues), QUEUES_PER_BATCH):
                some = partition.queues[begin : begin + QUEUES_PER_BATCH]
                bounds = [reader.bounds(queue) for queue in some]
                yield ArrowRows(
                    pa.RecordBatch.from_pydict(
                        {
                            "topic": pa.array([queue.topic for queue in some], pa.string()),
                            "queueId": pa.array([queue.number for queue in some], pa.int32()),
                            "minOffset": pa.array([each.minimum for each in bounds], pa.int64()),
                            "maxOffset": pa.array([each.maximum for each in bounds], pa.int64()),
                        }
                    )
                )
