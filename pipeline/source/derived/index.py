"""The table `index` has the items of the key indexes, file by file."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

import pyarrow as pa
from pyspark.sql.datasource import InputPartition
from pyspark.sql.types import IntegerType, LongType, StringType

from quarry_mq.pipeline.source.conditions import bounds_of
from quarry_mq.pipeline.source.table import ArrowRows, Rows, TableReader, Types
from quarry_mq.store.errors import StoreDamaged, StoreUnusable
from quarry_mq.store.fs import PosixDisk
from quarry_mq.store.index.facts import DAMAGED, IndexFile, IndexKind, index_files, items_in
from quarry_mq.store.index.keys import KeyItems
from quarry_mq.store.offline import OfflineStore, indexes_of


@dataclass(frozen=True)
class FilePart(InputPartition):
    """A partition: one file of an index."""

    file: IndexFile


class IndexReader(TableReader):
    """Reads the items. Times from RocketMQ's files are those of the records, to the second."""

    types: ClassVar[Types] = {
        "index": StringType(),
        "file": StringType(),
        "keyHash": IntegerType(),
        "phyOffset": LongType(),
        "storeTimestamp": LongType(),
    }

    def partitions(self) -> Sequence[InputPartition]:
        """Return a partition for each file that may hold requested items.

        Raises StoreDamaged, and StoreUnusable for a file that is elsewhere.
        """
        begin, end = bounds_of("phyOffset", self.conditions)
        begin_ms, end_ms = bounds_of("storeTimestamp", self.conditions)
        parts = []
        with OfflineStore.open(PosixDisk(), self.options.path) as store, indexes_of(store) as indexes:
            for file in index_files(indexes):
                path = (store.paths.index if file.kind is IndexKind.HASH else store.paths.key_index) / file.name
                if file.stage == DAMAGED:
                    raise StoreDamaged(path, file.damage)
                in_place = file.begin_offset <= end and file.end_offset >= begin
                if not in_place or file.begin_ms > end_ms or file.end_ms < begin_ms:
                    continue
                if not file.is_local:
                    raise StoreUnusable(path, "the index file lies in an object store alone")
                parts.append(FilePart(file))
        return parts

    def rows(self, partition: InputPartition) -> Iterator[Rows]:
        assert isinstance(partition, FilePart)
        with OfflineStore.open(PosixDisk(), self.options.path) as store, indexes_of(store) as indexes:
            for items in items_in(indexes, partition.file):
                yield ArrowRows(_batch_of(partition.file, items))


def _batch_of(file: IndexFile, items: KeyItems) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict(
        {
            "index": pa.array([file.kind.value] * len(items), pa.string()),
            "file": pa.array([file.name] * len(items), pa.string()),
            "keyHash": pa.array(items.hashes, pa.int32()),
            "phyOffset": pa.array(items.physical_offset, pa.int64()),
            "storeTimestamp": pa.array(items.stored_ms, pa.int64()),
        }
    )
