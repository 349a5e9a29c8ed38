"""Plans which items go to which file of the index, and writes the files."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np

from quarry_mq.pipeline.index.split_items import ITEM, StoredItems, Stretch
from quarry_mq.protocol.clock import DAY_MS
from quarry_mq.store.fs import Disk
from quarry_mq.store.index.tiered.chain_file import ChainedFile, IndexItems, IndexShape
from quarry_mq.store.index.tiered.compaction import Compaction
from quarry_mq.store.index.tiered.layout import SPAN_MAX_MS, chain_shape
from quarry_mq.store.index.tiered_keys import PLACE

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
