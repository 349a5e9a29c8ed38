"""Which files of the tiered index are to be made anew, and what they held.

Items are in the order of their places, over all files. So what a damaged file held lies between the last item of the
whole file before it and the first one of the whole file behind it. An item at these very places may be in the file
beside or in the damaged one, as a source that has many items at one place may have been cut anywhere.
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
    """Damaged files in a row, and the whole ones beside them. Without one before, it begins where the source does."""

    names: tuple[str, ...]
    before: TieredFile | None
    behind: TieredFile

    @property
    def begin_place(self) -> int:
        """No item has a lower place."""
        return 0 if self.before is None else self.before.header.end_place

    @property
    def end_place(self) -> int:
        """No item has a higher place."""
        return self.behind.header.begin_place

    @property
    def edges(self) -> list[tuple[str, int]]:
        """The files beside it, each with the place that both may have items of."""
        before = [] if self.before is None else [(self.before.name, self.begin_place)]
        return [*before, (self.behind.name, self.end_place)]

    def covers(self, places: Integers) -> NDArray[np.bool_]:
        return (places >= self.begin_place) & (places <= self.end_place)


def find_gaps(files: Mapping[str, TieredFile], broken: Collection[str]) -> list[Gap]:
    """The gaps that the `broken` of the files, and of those that are not among them, make; the oldest first.

    Damaged files with no whole one behind them are not among them yet.
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
    """Add the rest and batches until no more fit; returns those that did not."""
    for items in chain(() if rest is None else (rest,), batches):
        if not len(items):
            continue
        count = file.room_for(items)
        if count:
            file.add(items.rows(0, count))
        if count < len(items):
            return items.rows(count, len(items))
    return None
