"""Rebuilds the tiered key index of a store from its log.

    1  read the log in splits; each task writes the items of its split to a file of its own
    2  divide all items among index files as a broker that follows the log would; each task makes one, compacted
    3  drop the old index's row, set its folder aside, move the new index to its place, and store how far it goes

Nothing of the store is changed before step 3. After a kill in step 3 no row names the index: a broker rebuilds it.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from pyspark import TaskContext
from pyspark.sql import SparkSession

from quarry_mq.pipeline.index.files import FilePlan, LogRange, Stretch, make_file, plan_files, write_items
from quarry_mq.pipeline.source.log_splits import (
    LogSplit,
    end_of_records,
    log_extent,
    open_segments,
    plan_splits,
    store_time_at,
)
from quarry_mq.pipeline.source.options import SPLIT_BYTES
from quarry_mq.pipeline.store_lock import locked
from quarry_mq.store.commitlog import SegmentList
from quarry_mq.store.engines import RocksStoreEngines
from quarry_mq.store.fs import Disk, PosixDisk
from quarry_mq.store.index.message_index import IndexState
from quarry_mq.store.index.opening import TIERED_ROW
from quarry_mq.store.index.tiered.chain_file import IndexShape
from quarry_mq.store.index.tiered.folders import IndexFolders, Stage
from quarry_mq.store.index.tiered.tiered_index import TieredIndex
from quarry_mq.store.index.tiered_keys import PLACE, TieredKeyFiles
from quarry_mq.store.layout.kind import inspect_store
from quarry_mq.store.layout.paths import StorePaths
from quarry_mq.store.message import PhysicalOffset
from quarry_mq.store.opening.parts import open_identity
from quarry_mq.store.opening.repair import aside_of
from quarry_mq.store.scan import scan_log
from quarry_mq.store.settings import TIERED_ITEMS, TIERED_SLOTS
from quarry_mq.store.state.identity import StoreIdentity

MAKING: Final = "making"


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexWish:
    """Describes the index: it covers messages stored in [from_ms, to_ms].

    `slots` and `items` None keep the old file sizes.
    """

    from_ms: int | None = None
    to_ms: int | None = None
    slots: int | None = None
    items: int | None = None


EVERYTHING: Final = IndexWish()


@dataclass(frozen=True, slots=True)
class Indexed:
    """The result of a build: the index has all keys of the records in [begin, up_to)."""

    items: int
    files: int
    begin: PhysicalOffset
    up_to: PhysicalOffset
    aside: Path | None
    """The path where the old index is kept; None if there was none."""


def build_index(
    spark: SparkSession, disk: Disk, root: Path, wish: IndexWish = EVERYTHING, *, split_bytes: int = SPLIT_BYTES
) -> Indexed:
    """Rebuild the tiered index of a store. No broker may run on it, and none can start meanwhile.

    Raises StoreUnusable (locked, damaged), OSError, kv.KvError, and what Spark raises.
    """
    with locked(disk, root):
        engine, identity = open_identity(RocksStoreEngines(), StorePaths(root).quarry, disk, inspect_store(disk, root))
        with closing(engine):
            return IndexBuild(spark, disk, root, identity, split_bytes).run(wish)


class IndexBuild:
    """The steps of one build. The caller holds the store's lock."""

    def __init__(self, spark: SparkSession, disk: Disk, root: Path, identity: StoreIdentity, split_bytes: int) -> None:
        self._spark = spark
        self._disk = disk
        self._root = root
        self._identity = identity
        self._split_bytes = split_bytes
        self._index = StorePaths(root).key_index
        self._place = self._index.with_name(f"{self._index.name}.building")

    def run(self, wish: IndexWish) -> Indexed:
        splits, wanted = self._plan(wish)
        shape = self._shape(wish)
        making = self._place / MAKING
        if self._disk.exists(self._place):
            shutil.rmtree(self._place)
        self._disk.make_directories(making)
        stretches = self._write_items(splits, wanted, making)
        plans = plan_files(stretches, shape.items_max)
        made = self._make_files(plans, shape, making)
        aside = self._switch(made, plans, wanted, shape)
        return Indexed(sum(plan.items for plan in plans), len(plans), wanted.begin, wanted.end, aside)

    def _plan(self, wish: IndexWish) -> tuple[list[LogSplit], LogRange]:
        segments = open_segments(self._disk, self._root)
        try:
            extent = log_extent(self._disk, self._root, segments, is_ours=True)
            splits = plan_splits(segments, extent, self._split_bytes)
            end = end_of_records(segments, extent, self._split_bytes)
            begin = extent.begin
            if wish.from_ms is not None:
                begin = _first_stored_from(segments, splits, wish.from_ms, end)
            if wish.to_ms is not None:
                end = _first_stored_from(segments, splits, wish.to_ms + 1, end)
        finally:
            segments.close()
        return [split for split in splits if split.end > begin and split.begin < end], LogRange(begin, max(begin, end))

    def _shape(self, wish: IndexWish) -> IndexShape:
        row = self._identity.index_row(TIERED_ROW)
        known = {} if row is None else IndexState.unpack(row).shape
        slots = wish.slots or known.get("slots", TIERED_SLOTS)
        return IndexShape(slots, wish.items or known.get("items", TIERED_ITEMS), PLACE)

    def _write_items(self, splits: list[LogSplit], wanted: LogRange, making: Path) -> list[Stretch]:
        root = self._root

        def write(enumerated: tuple[int, LogSplit]) -> Iterator[tuple[int, list[Stretch]]]:
            number, split = enumerated
            yield number, write_items(root, split, wanted, making / f"items-{_attempt():012}.npy")

        if not splits:
            return []
        given = self._spark.sparkContext.parallelize(list(enumerate(splits)), len(splits))
        written = dict(given.flatMap(write).collect())
        return [stretch for number in sorted(written) for stretch in written[number]]

    def _make_files(self, plans: list[FilePlan], shape: IndexShape, making: Path) -> list[Path]:
        """Make the index files on Spark, and return them in their order."""

        def make(enumerated: tuple[int, FilePlan]) -> Iterator[tuple[int, Path]]:
            number, plan = enumerated
            yield number, make_file(PosixDisk(), plan, shape, making / f"file-{_attempt():012}")

        if not plans:
            return []
        given = self._spark.sparkContext.parallelize(list(enumerate(plans)), len(plans))
        made = dict(given.flatMap(make).collect())
        return [made[number] for number in sorted(made)]

    def _switch(self, made: list[Path], plans: list[FilePlan], wanted: LogRange, shape: IndexShape) -> Path | None:
        folders = IndexFolders(self._disk, self._place)
        for number, (path, plan) in enumerate(zip(made, plans, strict=True), 1):
            folders.advance(folders.name_of(number), path, Stage.FILLING if plan.is_last else Stage.COMPACTED)
        shutil.rmtree(self._place / MAKING)
        with closing(TieredIndex(self._disk, self._place, shape, writable=False)) as index:
            state = TieredKeyFiles(index).state
        for name in self._objects_of_old(shape):
            folders.retire(name)
        self._identity.delete_index(TIERED_ROW)
        aside = None
        if self._disk.exists(self._index):
            aside = aside_of(self._disk, self._index)
            self._disk.move(self._index, aside)
        self._disk.move(self._place, self._index)
        made_with = {"slots": shape.slots, "items": shape.items_max}
        self._identity.set_index_row(TIERED_ROW, IndexState(wanted.end, state, made_with).pack())
        return aside

    def _objects_of_old(self, shape: IndexShape) -> list[str]:
        """Return the objects of the old index in an object store; a broker removes them there later."""
        if not self._disk.exists(self._index):
            return []
        with closing(TieredIndex(self._disk, self._index, shape, writable=False)) as index:
            return [file.object_name for file in index.files if file.object_name]


def _first_stored_from(
    segments: SegmentList, splits: list[LogSplit], time_ms: int, end: PhysicalOffset
) -> PhysicalOffset:
    """Return the offset of the first record stored at `time_ms` or later, or the log's end if there is none.

    Store times ascend but for corrections of the clock.
    """
    before = (split for split in reversed(splits) if (store_time_at(segments, split) or 0) < time_ms)
    first = next(before, splits[0] if splits else None)
    begin = end if first is None else first.first(segments)
    for batch in scan_log(segments, begin, end, check_crc=False):
        late = batch.columns.store_timestamp_ms >= time_ms
        if late.any():
            return PhysicalOffset(int(batch.columns.physical_offset[late][0]))
    return end


def _attempt() -> int:
    """Return the number of this attempt of a task, which no other attempt has."""
    context = TaskContext.get()
    return 0 if context is None else context.taskAttemptId()
