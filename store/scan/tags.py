"""The module finds tags and light-queue names in the stored properties of many records (docs/formats/commit-log.md,
"Properties").
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np

from quarry_mq.protocol.messages.property_names import LIGHT_QUEUES, TAGS
from quarry_mq.store.record.layout import ENTRY_END, NAME_END
from quarry_mq.store.record.properties import java_hash
from quarry_mq.store.scan.columns import Bytes, Flags, Integers, RecordBatch, RecordColumns, distinct, pieces

_TAGS: Final = TAGS.encode()
_LIGHT_QUEUES: Final = LIGHT_QUEUES.encode()
_PADDING_MAX: Final = 4
"""The most bytes that may be copied, as a multiple of the bytes of the properties."""


class StoredValues(NamedTuple):
    """The values of one property: the records that have it, ascending, and where each value lies in the
    copied bytes.
    """

    rows: Integers
    starts: Integers
    ends: Integers


class StoredProperties:
    """The properties of n records, copied out of their segment."""

    def __init__(self, segment: memoryview, octets: Bytes, starts: Integers, lengths: Integers) -> None:
        """Copy the properties. `starts` and `lengths` are positions in the segment, all bytes of which
        are in `octets`.
        """
        self._octets, self._starts = _copied(segment, octets, starts, lengths)
        self._ends = self._starts + lengths
        self._name_ends = np.flatnonzero(self._octets == NAME_END)

    def tags_hashes(self) -> Integers:
        """Return the hash of each record's tags, 0 without: `store.record.tags_code` of any topic but the schedule
        topic.
        """
        hashes = np.zeros(len(self._ends), np.int64)
        rows, starts, ends = self.values(_TAGS)
        texts, index = distinct(self._octets, starts, ends - starts)
        if texts:
            hashes[rows] = np.array([java_hash(text.decode("utf-8", "replace")) for text in texts], np.int64)[index]
        return hashes

    @property
    def octets(self) -> Bytes:
        """Return the copied bytes."""
        return self._octets

    def values(self, name: bytes) -> StoredValues:
        """Return the values of the property as `decode_properties` finds them: the last one of a repeated name, no
        empty ones.
        """
        octets = self._octets
        rows, name_ends = self._find(name)
        starts = name_ends - len(name)
        # a whole name, not the end of a longer one nor a part of a value
        own = (starts == self._starts[rows]) | (octets[starts - 1] == ENTRY_END)
        rows, starts = rows[own], name_ends[own] + 1
        entry_ends = np.append(np.flatnonzero(octets == ENTRY_END), len(octets))
        ends = np.minimum(entry_ends[np.searchsorted(entry_ends, starts)], self._ends[rows])
        kept = ends > starts
        rows, starts, ends = rows[kept], starts[kept], ends[kept]
        last = np.append(rows[1:] != rows[:-1], True)[: len(rows)]
        return StoredValues(rows[last], starts[last], ends[last])

    def may_name_light_queues(self) -> Flags:
        """Return which records may have a property that names light queues; some of them may have none."""
        return self.may_have(_LIGHT_QUEUES)

    def may_have(self, name: bytes) -> Flags:
        """Return which records may have a property of this name; some of them may have none."""
        marked = np.zeros(len(self._ends), np.bool_)
        marked[self._find(name)[0]] = True
        return marked

    def _find(self, name: bytes) -> tuple[Integers, Integers]:
        """Return rows and positions where the name ends, or something that ends like it."""
        ends = self._name_ends[self._octets[self._name_ends - 1] == name[-1]]
        ends = ends[ends >= len(name)]
        ends = ends[pieces(self._octets, ends - len(name), len(name)) == np.void(name)]
        rows = np.searchsorted(self._starts, ends, side="right") - 1
        inside = (ends - len(name) >= self._starts[rows]) & (ends < self._ends[rows])
        return rows[inside], ends[inside]


def stored_properties(batch: RecordBatch, columns: RecordColumns) -> StoredProperties:
    """Return the properties of some of a batch's records."""
    octets = np.frombuffer(batch.segment, np.uint8)
    return StoredProperties(batch.segment, octets, columns.properties_position, columns.properties_length)


def _copied(segment: memoryview, octets: Bytes, starts: Integers, lengths: Integers) -> tuple[Bytes, Integers]:
    """Return copies of the texts, one after the other, and where each begins. Between them may be any bytes.

    If the texts are about equally long, each is copied with what follows it, up to the length of the longest: that is
    several times as fast.
    """
    longest = int(lengths.max(initial=0))
    if longest and starts[-1] + longest <= len(octets) and longest * len(starts) <= _PADDING_MAX * lengths.sum():
        copies = pieces(octets, starts, longest).view(np.uint8)
        return copies, np.arange(len(starts)) * longest
    ends = starts + lengths
    joined = b"".join([segment[start:end] for start, end in zip(starts.tolist(), ends.tolist(), strict=True)])
    return np.frombuffer(joined, np.uint8), np.cumsum(lengths) - lengths
