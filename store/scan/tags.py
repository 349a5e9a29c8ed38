"""Tags and light-queue names in the stored properties of many records (docs/formats/commit-log.md, "Properties")."""

from __future__ import annotations

from typing import Final

import numpy as np

from store.record.properties import LIGHT_QUEUES, TAGS
from store.record.tags import java_hash
from store.scan.columns import Bytes, Flags, Integers
from store.scan.texts import distinct, pieces

_NAME_END: Final = 0x01
_ENTRY_END: Final = 0x02
_TAGS: Final = TAGS.encode()
_LIGHT_QUEUES: Final = LIGHT_QUEUES.encode()


class StoredProperties:
    """The properties of n records, one behind the other in `joined`, with the length of each."""

    def __init__(self, joined: bytes, lengths: Integers) -> None:
        self._octets: Bytes = np.frombuffer(joined, np.uint8)
        self._ends = np.cumsum(lengths)
        self._starts = self._ends - lengths
        self._has_light_queues = _LIGHT_QUEUES in joined
        self._name_ends = np.flatnonzero(self._octets == _NAME_END)

    def tags_hashes(self) -> Integers:
        """The hash of each record's tags, 0 without: `store.record.tags_code` of any topic but the schedule topic."""
        hashes = np.zeros(len(self._ends), np.int64)
        octets = self._octets
        name_ends = self._ends_of(_TAGS)
        rows = self._rows_of(name_ends)
        starts = name_ends - len(_TAGS)
        # a name of its own, not the end of a longer one, nor a part of a value or of the record before
        first = starts == self._starts[rows]
        behind_another = (starts > self._starts[rows]) & (octets[starts - 1] == _ENTRY_END)
        own = first | behind_another
        rows, starts = rows[own], name_ends[own] + 1
        entry_ends = np.append(np.flatnonzero(octets == _ENTRY_END), len(octets))
        ends = np.minimum(entry_ends[np.searchsorted(entry_ends, starts)], self._ends[rows])
        valued = ends > starts
        rows, starts, ends = rows[valued], starts[valued], ends[valued]
        last = np.append(rows[1:] != rows[:-1], True)[: len(rows)]
        rows, starts, ends = rows[last], starts[last], ends[last]
        texts, index = distinct(octets, starts, ends - starts)
        if texts:
            hashes[rows] = np.array([java_hash(text.decode("utf-8", "replace")) for text in texts], np.int64)[index]
        return hashes

    def may_name_light_queues(self) -> Flags:
        """Which records may have a property that names light queues; one that has none may be among them."""
        marked = np.zeros(len(self._ends), np.bool_)
        if self._has_light_queues:
            marked[self._rows_of(self._ends_of(_LIGHT_QUEUES))] = True
        return marked

    def _ends_of(self, name: bytes) -> Integers:
        """Where a name ends, or something that ends like it."""
        ends = self._name_ends[self._name_ends >= len(name)]
        same: Flags = pieces(self._octets, ends - len(name), len(name)) == np.void(name)
        return ends[same]

    def _rows_of(self, positions: Integers) -> Integers:
        return np.searchsorted(self._ends, positions, side="right")
