"""Writes the items of one split of the log to a file of its own, until it is known which index file they go to."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from quarry_mq.pipeline.source.log_splits import LogSplit, open_segments, read_whole_split
from quarry_mq.protocol.clock import DAY_MS
from quarry_mq.store.fs import PosixDisk
from quarry_mq.store.index.items import KeyItems, items_of
from quarry_mq.store.offsets import PhysicalOffset
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
    with closing(open_segments(PosixDisk(), root)) as segments:
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
