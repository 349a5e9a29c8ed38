"""Find the files of the tiered index that must be rebuilt, and the places of their items.

Items are in the order of their places, over all files. So the items of a damaged file lie between the last item of the
intact file before it and the first item of the intact file after it. An item at exactly these places may be in either
file, since a source with many items at one place may have been cut anywhere.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from itertools import chain, groupby
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from quarry_mq.store.index.tiered.chain_file import ChainedFile, IndexItems, Integers
from quarry_mq.store.index.tiered.folders import TieredFile


class Gap(NamedTuple):
    """Consecutive damaged files and the intact ones beside them. With none before, the gap begins with the source."""

    names: tuple[str, ...]
    before: TieredFile | None
    after: TieredFile

    @property
    def begin_place(self) -> int:
        """The lowest place of an item in the gap."""
        return 0 if self.before is None else self.before.header.end_place

    @property
    def end_place(self) -> int:
        """The highest place of an item in the gap."""
        return self.after.header.begin_place

    @property
    def edges(self) -> list[tuple[str, int]]:
        """The files beside the gap, each with the place at which both may have items."""
        before = [] if self.before is None else [(self.before.name, self.begin_place)]
        return [*before, (self.after.name, self.end_place)]

    def covers(self, places: Integers) -> NDArray[np.bool_]:
        return (places >= self.begin_place) & (places <= self.end_place)


def find_gaps(files: Mapping[str, TieredFile], broken: Collection[str]) -> list[Gap]:
    """Return the gaps made by the `broken` names, which need not be among `files`; the oldest first.

    Damaged files with no intact one after them are not among them yet.
    """
    gaps: list[Gap] = []
    before: TieredFile | None = None
    damaged: tuple[str, ...] = ()
    for is_broken, names in groupby(sorted({*files, *broken}), key=lambda name: name in broken):
        if is_broken:
            damaged = tuple(names)
            continue
        whole = [files[name] for name in names]
        if damaged:
            gaps.append(Gap(damaged, before, whole[0]))
        before, damaged = whole[-1], ()
    return gaps


def fill_up(file: ChainedFile, rest: IndexItems | None, batches: Iterator[IndexItems]) -> IndexItems | None:
    """Add the rest and batches until no more fit; return those that did not."""
    for items in chain(() if rest is None else (rest,), batches):
        if not len(items):
            continue
        count = file.room_for(items)
        if count:
            file.add(items.rows(0, count))
        if count < len(items):
            return items.rows(count, len(items))
    return None
