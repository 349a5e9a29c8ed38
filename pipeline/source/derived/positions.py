"""The table `positions` shows how far consumer groups have come in queues.

A group has a position in a queue once it has read there: `nextOffset` is the first message that it was never given.
`inFlight` counts the messages before it that are delivered and not acknowledged; it is null in a store of RocketMQ,
which keeps no such rows. One task reads all positions, which lie beside each other in the database, and keeps none in
memory.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from heapq import merge
from itertools import groupby, islice
from pathlib import Path
from typing import ClassVar, Final, NamedTuple

import pyarrow as pa
from pyspark.sql.datasource import InputPartition
from pyspark.sql.types import IntegerType, LongType, StringType

from quarry_mq.pipeline.source.table import ArrowRows, Rows, TableReader, Types
from quarry_mq.store.errors import StoreDamaged
from quarry_mq.store.fs import PosixDisk
from quarry_mq.store.layout.kind import StoreKind
from quarry_mq.store.message import QueueId, QueueOffset
from quarry_mq.store.metadata import ConsumerOffsetTable
from quarry_mq.store.offline import OfflineStore
from quarry_mq.store.rocketmq import read_metadata
from quarry_mq.store.state.identity import INFLIGHT
from quarry_mq.store.state.in_flight_key import ROWS, parse_key

ROWS_PER_BATCH: Final = 16_384

Holder = tuple[str, QueueId]
"""A group and a queue."""


class Position(NamedTuple):
    """The position of a group in a queue. `in_flight` None: not known."""

    group: str
    queue: QueueId
    next_offset: QueueOffset
    in_flight: int | None


@dataclass(frozen=True)
class PositionsPart(InputPartition):
    """The partition with all positions of a store."""

    root: Path


class PositionReader(TableReader):
    """Reads the positions of groups: Quarry's, or RocketMQ's where Quarry never ran."""

    types: ClassVar[Types] = {
        "group": StringType(),
        "topic": StringType(),
        "queueId": IntegerType(),
        "nextOffset": LongType(),
        "inFlight": LongType(),
    }

    def partitions(self) -> Sequence[InputPartition]:
        OfflineStore.open(PosixDisk(), self.options.path).close()
        return [PositionsPart(self.options.path)]

    def rows(self, partition: InputPartition) -> Iterator[Rows]:
        assert isinstance(partition, PositionsPart)
        with OfflineStore.open(PosixDisk(), partition.root) as store:
            positions = _positions(store)
            while some := list(islice(positions, ROWS_PER_BATCH)):
                yield ArrowRows(
                    pa.RecordBatch.from_pydict(
                        {
                            "group": pa.array([each.group for each in some], pa.string()),
                            "topic": pa.array([each.queue.topic for each in some], pa.string()),
                            "queueId": pa.array([each.queue.number for each in some], pa.int32()),
                            "nextOffset": pa.array([each.next_offset for each in some], pa.int64()),
                            "inFlight": pa.array([each.in_flight for each in some], pa.int64()),
                        }
                    )
                )


def _positions(store: OfflineStore) -> Iterator[Position]:
    if store.found.kind is not StoreKind.QUARRY:
        metadata = read_metadata(store.disk, store.paths.root)
        for each in (*metadata.offsets, *metadata.light_offsets):
            yield Position(each.group, each.queue, each.offset, None)
        return
    engine = store.state_engine()
    try:
        offsets = (((group, queue), offset) for group, queue, offset in ConsumerOffsetTable(engine).all_rows())
        taken = (parse_key(key)[:2] for key, _ in engine.family(INFLIGHT).iterate(ROWS))
        yield from joined(offsets, taken)
    except (ValueError, struct.error) as error:
        raise StoreDamaged(store.paths.quarry, f"an invalid row: {error}") from error


def joined(offsets: Iterable[tuple[Holder, QueueOffset]], taken: Iterable[Holder]) -> Iterator[Position]:
    """Yield the offsets with the number of in-flight messages of each.

    Both inputs come in the order of their database keys. In-flight messages of a queue without an offset belong to no
    position, and are not counted.
    """
    stored: Iterator[_Row] = ((holder, offset, 0) for holder, offset in offsets)
    counted: Iterator[_Row] = ((holder, None, sum(1 for _ in same)) for holder, same in groupby(taken))
    for (group, queue), same in groupby(merge(stored, counted, key=_order), key=lambda row: row[0]):
        rows = list(same)
        for offset in (offset for _, offset, _ in rows if offset is not None):
            yield Position(group, queue, offset, sum(count for _, _, count in rows))


_Row = tuple[Holder, QueueOffset | None, int]


def _order(row: _Row) -> tuple[int, bytes, int, bytes, int]:
    """Return the sort key of a row. Names are stored after their lengths, so shorter ones come first."""
    group, queue = row[0]
    group_name, topic_name = group.encode(), queue.topic.encode()
    return len(group_name), group_name, len(topic_name), topic_name, queue.number
