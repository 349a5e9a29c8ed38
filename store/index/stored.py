"""All items of index files, read."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from store.index.facts import IndexFile, IndexKind
from store.index.indexes import KeyIndexes
from store.index.items import KeyItems


def items_in(indexes: KeyIndexes, file: IndexFile) -> Iterator[KeyItems]:
    """Of one file, which is on this machine and not damaged: some hundred thousand at a time, in no order.

    Times in RocketMQ's files are those of the records to the second. Raises StoreDamaged, OSError.
    """
    if file.kind is IndexKind.HASH:
        assert indexes.hash_files is not None
        yield from indexes.hash_files.stored_items(file.name)
        return
    assert indexes.tiered is not None
    for items in indexes.tiered.stored_items(file.name):
        yield KeyItems(items.hashes, items.payloads["physical_offset"].astype(np.int64), items.times_ms)
