"""Plans which items go to which file of the index, and writes the files.

The items of one split of the log are written to a file of their own, until it is known which index file they go to.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from quarry_mq.pipeline.source.log_splits import LogSplit, open_segment, read_whole_split
from quarry_mq.protocol.clock import DAY_MS
from quarry_mq.store.fs import Disk, PosixDisk
from quarry_mq.store.index.keys import KeyItems, items_of
from quarry_mq.store.index.tiered.chain_file import ChainedFile, IndexItems, IndexShape
from quarry_mq.store.index.tiered.layout import SPAN_MAX_MS, chain_shape
from quarry_mq.store.index.tiered.runs import Compaction
from quarry_mq.store.index.tiered_keys import PLACE
from quarry_mq.store.message import PhysicalOffset
from quarry_mq.store.verify.log import requests_in

ITEM: Final = np.dtype([("hash", "<i4"), ("place", "<i8"), ("time_ms", "<i8")])

StoredItems = NDArray[np.void]
"""Items of the dtype ITEM, in log order."""


class Stretch(NamedTuple):
    """The items of a split that were stored on one day: those at the positions [begin, end) of its file."""

    file: Path
    begin: int
    end: int
    time_ms: int
    """Store time of the first item, in ms."""


class LogRange(NamedTuple):
    """The records that begin in [begin, end)."""

    begin: PhysicalOffset
    end: PhysicalOffset


def write_items(root: Path, split: LogSplit, wanted: LogRange, file: Path) -> list[Stretch]:
    """Read a split and write its items. Raises StoreDamaged for damage in the log."""
    parts = [_stored(items) for items in _items_in(root, split, wanted)]
    items = np.concatenate(parts) if parts else np.empty(0, ITEM)
    if not len(items):
        return []
    np.save(file, items)
    days = np.maximum.accumulate(items["time_ms"]) // DAY_MS
    begins = np.flatnonzero(np.diff(days, prepend=days[0] - 1)).tolist()
    ends = [*begins[1:], len(items)]
    return [Stretch(file, begin, end, int(items["time_ms"][begin])) for begin, end in zip(begins, ends, strict=True)]


def _items_in(root: Path, split: LogSplit, wanted: LogRange) -> Iterator[KeyItems]:
    with closing(open_segment(PosixDisk(), root, split)) as segments:
        for batch in read_whole_split(segments, split):
            items = items_of(requests_in(batch), with_tags=False)
            begin, end = np.searchsorted(items.physical_offset, [wanted.begin, wanted.end]).tolist()
            yield items.rows(begin, end)


def _stored(items: KeyItems) -> StoredItems:
    stored: StoredItems = np.empty(len(items), ITEM)
    stored["hash"] = items.hashes
    stored["place"] = items.physical_offset
    stored["time_ms"] = items.stored_ms
    return stored


ADDED_AT_ONCE: Final = 1 << 18


class FilePlan(NamedTuple):
    """The items of one index file. The last file stays open for later items."""

    stretches: list[Stretch]
    is_last: bool

    @property
    def items(self) -> int:
        return sum(each.end - each.begin for each in self.stretches)


def plan_files(stretches: Sequence[Stretch], items_max: int) -> list[FilePlan]:
    """Divide the items among files of `items_max` items, or of 48 days: a file spans 49 days at most."""
    files: list[list[Stretch]] = []
    room, begin_ms = 0, 0
    for each in stretches:
        rest = each
        while rest.begin < rest.end:
            if not room or rest.time_ms - begin_ms > SPAN_MAX_MS - DAY_MS:
                files.append([])
                room, begin_ms = items_max, rest.time_ms
            count = min(room, rest.end - rest.begin)
            files[-1].append(rest._replace(end=rest.begin + count))
            rest = rest._replace(begin=rest.begin + count)
            room -= count
    return [FilePlan(some, is_last=number == len(files)) for number, some in enumerate(files, 1)]


def make_file(disk: Disk, plan: FilePlan, shape: IndexShape, place: Path) -> Path:
    """Write the file durably, compacted unless it is the last one, and return its path.

    Raises OSError, StoreDamaged.
    """
    chains = place.with_suffix(".chains")
    with closing(disk.create_segment(chains, chain_shape(*shape).file_size)) as made:
        file = ChainedFile.begin(made, shape)
        for stored in _portions(plan):
            file.add(_as_indexed(stored))
        if plan.is_last:
            file.flush()
            return chains
        file.seal()
        compaction = Compaction(file, shape)
        runs = place.with_suffix(".runs")
        with closing(disk.create_segment(runs, compaction.file_size)) as target:
            compaction.write(target)
            target.flush()
            compaction.check(target)
    disk.remove(chains)
    return runs


def _portions(plan: FilePlan) -> Iterator[StoredItems]:
    for stretch in plan.stretches:
        stored: StoredItems = np.load(stretch.file, mmap_mode="r")
        assert stored.dtype == ITEM
        for begin in range(stretch.begin, stretch.end, ADDED_AT_ONCE):
            yield stored[begin : min(begin + ADDED_AT_ONCE, stretch.end)]


def _as_indexed(stored: StoredItems) -> IndexItems:
    places = np.empty(len(stored), PLACE)
    places["physical_offset"] = stored["place"]
    return IndexItems(stored["hash"].copy(), stored["time_ms"].astype(np.int64), places)
