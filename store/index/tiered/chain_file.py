"""A file of chains: filled by one thread, then sealed; read by many threads."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from quarry_mq.store.errors import StoreDamaged
from quarry_mq.store.fs import SegmentFile
from quarry_mq.store.index.chains import ChainFile, Items
from quarry_mq.store.index.keys import Hashes
from quarry_mq.store.index.tiered.layout import (
    HEADER_SIZE,
    SPAN_MAX_MS,
    FileHeader,
    HeaderDamaged,
    Kind,
    chain_shape,
    chained_item,
)

READ_AT_ONCE: Final = 1 << 18
"""Items read at once."""

Integers = NDArray[np.int64]
Payloads = NDArray[np.void]


class IndexShape(NamedTuple):
    """The settings of files: hash slots, items of one file, and the payload of an item beside hash and time.

    The first field of the payload is an i64, the item's *place* in the indexed source. Places do not descend.
    """

    slots: int
    items_max: int
    payload: np.dtype[np.void]

    @property
    def place(self) -> str:
        """The name of the payload's first field."""
        return self.payload_names[0]

    def items_of(self, stored: Items, begin_ms: int) -> IndexItems:
        """Return the items of stored rows from a file that begins at `begin_ms`."""
        payloads = np.zeros(len(stored), self.payload)
        for name in self.payload_names:
            payloads[name] = stored[name]
        return IndexItems(stored["hash"].astype(np.int32), begin_ms + stored["time"].astype(np.int64), payloads)

    @property
    def payload_names(self) -> tuple[str, ...]:
        return self.payload.names or ()


@dataclass(frozen=True, slots=True, eq=False)
class IndexItems:
    """Items to be indexed, the oldest first: arrays of the shape (n,).

    Times do not descend; an item that is older than the one before it gets the time of that one.
    """

    hashes: Hashes
    """The hashes, not negative."""
    times_ms: Integers
    payloads: Payloads

    def __len__(self) -> int:
        return len(self.hashes)

    def rows(self, begin: int, end: int) -> IndexItems:
        return IndexItems(self.hashes[begin:end], self.times_ms[begin:end], self.payloads[begin:end])

    def chosen(self, keep: NDArray[np.bool_]) -> IndexItems:
        """Return the items marked in `keep`."""
        return IndexItems(self.hashes[keep], self.times_ms[keep], self.payloads[keep])


class Found(NamedTuple):
    """An item with the requested hash."""

    time_ms: int
    payload: np.void


def header_of(file: SegmentFile) -> FileHeader:
    """Return the header of a file of either kind. Raises StoreDamaged."""
    try:
        return FileHeader.unpack(file.view()[:HEADER_SIZE])
    except HeaderDamaged as damage:
        raise StoreDamaged(file.path, f"not an index file: {damage}") from damage


class ChainedFile:
    """Read and write one file of chains. Its header, written last, contains the number of items."""

    def __init__(self, file: SegmentFile, shape: IndexShape, header: FileHeader) -> None:
        chains = chain_shape(header.slots, header.items_max, shape.payload)
        if file.size != chains.file_size:
            raise StoreDamaged(file.path, f"{file.size} bytes, expected {chains.file_size}")
        self._file = file
        self._shape = shape
        self._chains = ChainFile(file, chains)
        self._header = header

    @classmethod
    def begin(cls, file: SegmentFile, shape: IndexShape) -> ChainedFile:
        """Begin a new file without items. The file must have been made with the size of the shape."""
        header = FileHeader(
            kind=Kind.CHAINS,
            payload_size=shape.payload.itemsize,
            slots=shape.slots,
            items_max=shape.items_max,
            items=0,
            file_size=file.size,
            begin_ms=0,
            end_ms=0,
            begin_place=0,
            end_place=0,
            items_checksum=0,
        )
        made = cls(file, shape, header)
        made._set(header)
        return made

    @classmethod
    def opened(cls, file: SegmentFile, shape: IndexShape) -> ChainedFile:
        """Open an existing file. Raises StoreDamaged."""
        header = header_of(file)
        if header.kind is not Kind.CHAINS or header.payload_size != shape.payload.itemsize:
            raise StoreDamaged(
                file.path, f"an index file of a different kind: {header.kind}, {header.payload_size} bytes"
            )
        return cls(file, shape, header)

    @property
    def path(self) -> Path:
        return self._file.path

    @property
    def header(self) -> FileHeader:
        return self._header

    def room_for(self, items: IndexItems) -> int:
        """Return how many of the first items fit: a file holds `items_max` items, and 49 days."""
        count = min(len(items), self._header.items_max - self._header.items)
        begin_ms = self._header.begin_ms if self._header.items else int(items.times_ms[0])
        return int(np.searchsorted(items.times_ms[:count], begin_ms + SPAN_MAX_MS, side="right"))

    def add(self, items: IndexItems) -> None:
        """Add items that fit, at least one."""
        header = self._header
        begin_ms = header.begin_ms if header.items else int(items.times_ms[0])
        stored: Items = np.zeros(len(items), chained_item(self._shape.payload))
        stored["hash"] = items.hashes
        times_ms = np.maximum(np.maximum.accumulate(items.times_ms), header.end_ms if header.items else begin_ms)
        stored["time"] = times_ms - begin_ms
        for name in self._shape.payload_names:
            stored[name] = items.payloads[name]
        self._chains.add(header.items + 1, stored, items.hashes)
        places = items.payloads[self._shape.place]
        self._set(
            header._replace(
                items=header.items + len(items),
                begin_ms=begin_ms,
                end_ms=int(times_ms[-1]),
                begin_place=header.begin_place if header.items else int(places[0]),
                end_place=int(places[-1]),
            )
        )

    def seal(self) -> None:
        """Close the file to further items, and store their checksum."""
        self._set(self._header._replace(items_checksum=crc32(self.all_items().data)))

    def check_items(self) -> None:
        """Raise StoreDamaged when the items of a sealed file are not those that were sealed."""
        if crc32(self.all_items().data) != self._header.items_checksum:
            raise StoreDamaged(self.path, "its items differ from those that were written")

    def restore(self, header: FileHeader) -> None:
        """Return to an earlier header: the items that it counts are intact, the rest is made from them."""
        self._chains.rebuild(header.items + 1)
        self._set(header)

    def all_items(self) -> Items:
        """Return all items as they are stored, the oldest first."""
        return self._chains.items(1, self._header.items + 1)

    def stored_items(self) -> Iterator[IndexItems]:
        """Yield all items, the oldest first, in parts."""
        for begin in range(0, self._header.items, READ_AT_ONCE):
            yield self._shape.items_of(self.all_items()[begin : begin + READ_AT_ONCE], self._header.begin_ms)

    def has_right_chains(self) -> bool:
        """Return whether every item is reachable from the slot of its hash. Takes 20 bytes of memory per item."""
        return self._chains.is_right(self._header.items + 1)

    def find(self, hashed: int) -> Iterator[Found]:
        """Yield the items with a hash that exist now, the newest first."""
        header, names = self._header, list(self._shape.payload_names)
        for number in self._chains.chain(hashed, header.items + 1):
            item = self._chains.items(number, number + 1)[0]
            if int(item["hash"]) == hashed:
                yield Found(header.begin_ms + int(item["time"]), item[names])

    def flush(self) -> None:
        self._file.flush()

    def close(self) -> None:
        self._file.close()

    def _set(self, header: FileHeader) -> None:
        self._file.write(0, header.pack())
        self._header = header
