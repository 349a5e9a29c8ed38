"""The input of an index: for each key of each message its hash, and where the record lies."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from quarry_mq.protocol.messages.property_names import TAGS
from quarry_mq.store.index.keys import Hashes, key_hashes, key_text, keys_of, tag_text
from quarry_mq.store.message import DispatchRequest
from quarry_mq.store.offsets import PhysicalOffset

Integers = NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class KeyItems:
    """Keys of messages in log order; every array has the shape (n,). A message with k keys has k rows."""

    hashes: Hashes
    physical_offset: Integers
    stored_ms: Integers

    def __len__(self) -> int:
        return len(self.hashes)

    def rows(self, begin: int, end: int) -> KeyItems:
        """Return a range of the rows."""
        return KeyItems(
            self.hashes[begin:end],
            self.physical_offset[begin:end],
            self.stored_ms[begin:end],
        )

    def after(self, up_to: PhysicalOffset) -> KeyItems:
        """Return the rows of records at or above an offset."""
        return self.rows(int(np.searchsorted(self.physical_offset, up_to)), len(self.hashes))


def items_of(requests: Iterable[DispatchRequest], *, with_tags: bool) -> KeyItems:
    """Return the items of the requests' messages; `with_tags`: also one for each message's tag, if it has one."""
    texts: list[str] = []
    places: list[tuple[int, int]] = []
    for request in requests:
        topic = request.topic
        place = request.physical_offset, request.store_timestamp_ms
        for key in keys_of(request.properties):
            texts.append(key_text(topic, key))
            places.append(place)
        tag = request.properties.get(TAGS) if with_tags else None
        if tag:
            texts.append(tag_text(topic, tag))
            places.append(place)
    columns = np.array(places, np.int64).reshape(-1, 2)
    return KeyItems(key_hashes(texts), *columns.T)
