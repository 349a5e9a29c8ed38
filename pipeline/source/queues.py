"""The table `queues` has every consume queue with its min and max offset, as `quarry queues` lists them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar, Final

import pyarrow as pa
from pyspark.sql.datasource import InputPartition
from pyspark.sql.types import IntegerType, LongType, StringType

from quarry_mq.pipeline.source.conditions import texts_of
from quarry_mq.pipeline.source.table import ArrowRows, Rows, TableReader, Types
from quarry_mq.store.fs import PosixDisk
from quarry_mq.store.offline.store import OfflineStore
from quarry_mq.store.offsets import QueueId

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
