"""Reads stores whose files lie in an object store, by copying the files that a task needs to this machine.

The copy looks like a store: its checkpoint and marks, and segments of their full length, of which only the requested
ones have their content. The last segments are copied one by one until the end of the log is found. Tables that are not
made from the log need all other files, which refer to each other: one task copies them together.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from copy import copy
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, Filter, InputPartition

from quarry_mq.pipeline.source.log_splits import LogSplit
from quarry_mq.pipeline.source.options import ReadOptions
from quarry_mq.pipeline.source.table import TableReader
from quarry_mq.store.errors import Invalid, StoreUnusable
from quarry_mq.store.index.tiered.object_store.cloud import CloudObjects
from quarry_mq.store.index.tiered.object_store.protocol import ObjectStoreError
from quarry_mq.store.layout.paths import StorePaths, parse_segment_name, segment_name
from quarry_mq.store.message import PhysicalOffset

WHOLE_STORE_SPLIT_BYTES: Final = 1 << 62
"""Split size of a store in an object store: a task copies one segment, and reads all of it."""
_MARKS: Final = ("checkpoint", "abort")


@contextmanager
def root_with_end(options: ReadOptions) -> Iterator[Path]:
    """Give the store's directory, where the last segment that holds any data can be read.

    Raises ObjectStoreError, and Invalid for an unusable address or options, or if there is no store.
    """
    if options.url is None:
        yield options.path
        return
    with _Mirror(options.url, options) as mirror:
        mirror.list_segments()
        for base in sorted(mirror.segments, reverse=True):
            if mirror.bring(base):
                break
        yield mirror.root


@contextmanager
def root_with_segment(options: ReadOptions, split: LogSplit) -> Iterator[Path]:
    """Give the store's directory, where the segment of a split can be read. Raises as `root_with_end`."""
    if options.url is None:
        yield options.path
        return
    with _Mirror(options.url, options) as mirror:
        mirror.segments[split.segment_begin] = split.segment_size
        mirror.bring(split.segment_begin)
        yield mirror.root


class CopiedTableReader(DataSourceReader):
    """Reads a table of a store in an object store from a copy of all its files but the log, in one task."""

    def __init__(self, reader: TableReader) -> None:
        self._reader = reader

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        return self._reader.pushFilters(filters)

    def partitions(self) -> Sequence[InputPartition]:
        return [InputPartition(0)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows. Raises ObjectStoreError, Invalid if there is no store, and as the table's own reader."""
        del partition
        options, reader = self._reader.options, copy(self._reader)
        assert options.url is not None
        with _Mirror(options.url, options) as mirror:
            mirror.list_segments()
            mirror.bring_others()
            reader.options = replace(options, path=mirror.root, url=None, storage=())
            try:
                for part in reader.partitions():
                    yield from reader.read(part)
            except StoreUnusable as error:
                # the copy is removed, so the error names the object
                place = Path(options.url, error.path.relative_to(mirror.root))
                raise type(error)(place, error.reason) from error


class _Mirror:
    """A temporary directory with copies of a store's files. It is removed when the block ends."""

    def __init__(self, url: str, options: ReadOptions) -> None:
        self._objects = CloudObjects.at(url, dict(options.storage))
        self._folder = TemporaryDirectory(prefix="quarry-object-store-")
        self.root = Path(self._folder.name)
        self.segments: dict[PhysicalOffset, int] = {}
        """The size of each segment by its begin."""

    def __enter__(self) -> _Mirror:
        StorePaths(self.root).commit_log.mkdir()
        return self

    def list_segments(self) -> None:
        """Make a file of the right length for each segment of the store, without its content. Copy the marks.

        Raises Invalid if there is no store.
        """
        log = StorePaths(self.root).commit_log
        for name, size in self._objects.names():
            folder, _, file = name.rpartition("/")
            base = parse_segment_name(file)
            if name in _MARKS:
                self._bring(name)
            elif folder == log.name and base is not None:
                self.segments[base] = size
                with (log / file).open("wb") as segment:
                    segment.truncate(size)
        if not self.segments:
            raise Invalid(f"{self._objects.address}: there is no store")

    def __exit__(self, *_: object) -> None:
        self._folder.cleanup()

    def bring(self, base: PhysicalOffset) -> bool:
        """Copy a segment. Returns whether it holds any data."""
        name = segment_name(base)
        path = StorePaths(self.root).commit_log / name
        used = self._bring(f"{path.parent.name}/{name}")
        if path.stat().st_size != self.segments[base]:
            raise ObjectStoreError(f"{self._objects.address}: {name} has not the size that the list tells")
        return used

    def bring_others(self) -> None:
        """Copy all files outside the log."""
        log = StorePaths(self.root).commit_log.name
        for name, _ in self._objects.names():
            if not name.startswith(f"{log}/"):
                self._bring(name)

    def _bring(self, name: str) -> bool:
        """Copy a file. Returns whether it holds any data."""
        used, target = False, self.root / name
        target.parent.mkdir(parents=True, exist_ok=True)
        with target.open("wb") as file:
            for chunk in self._objects.chunks(name):
                if chunk.strip(b"\0"):
                    used = True
                    file.write(chunk)
                else:
                    file.seek(len(chunk), 1)  # a hole takes no room
            file.truncate()
        return used
