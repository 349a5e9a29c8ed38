"""Encodes consume queue entries as keys and values of the RocksDB queues, in bulk (docs/formats/consume-queue.md).

A row has `key` and `value` as stored, but for entries of light queues that get consecutive offsets. Their key ends with
the physical offset instead, by which they are sorted and counted, and their value with the offset that the record
states.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from quarry_mq.pipeline.source.arrow import fixed_binaries
from quarry_mq.store.consumequeue import EntryColumns
from quarry_mq.store.consumequeue.rocks_layout import ENTRY_DTYPE, ENTRY_SIZE, I64, entry_prefix
from quarry_mq.store.scan import RecordBatch
from quarry_mq.store.scan.columns import Flags
from quarry_mq.store.verify.log import entries_in

COUNTED_SIZE: Final = ENTRY_SIZE + I64.size
"""Bytes of the value of an entry whose offset is yet to be assigned."""
ROW_SCHEMA: Final = pa.schema([("part", pa.int32()), ("key", pa.binary()), ("value", pa.binary())])


def entry_rows(entries: EntryColumns, boundaries: Sequence[bytes], *, counts_light: bool) -> pa.RecordBatch:
    """Return entries as rows of `ROW_SCHEMA`, `part` being the range of keys between `boundaries`.

    With `counts_light` light queues get consecutive offsets, and all entries of one light queue are in the same part.
    """
    prefixes = [entry_prefix(queue) for queue in entries.queues]
    # the entry of a light queue follows that of the record's own queue
    counted = np.diff(entries.physical_offset, prepend=-1) == 0 if counts_light else np.zeros(len(entries), np.bool_)
    key_ends = np.where(counted, entries.physical_offset, entries.queue_offset)
    parts = _parts(entries, prefixes, boundaries, counted)
    keys = pc.binary_join_element_wise(
        pa.array(prefixes, pa.binary()).take(pa.array(entries.queue_index)),
        fixed_binaries(key_ends.astype(">i8").view(np.uint8).reshape(-1, I64.size)),
        pa.scalar(b"", pa.binary()),
    )
    return pa.RecordBatch.from_arrays([pa.array(parts), keys, _values(entries, counted)], schema=ROW_SCHEMA)


def sample_keys(batch: RecordBatch) -> list[bytes]:
    """Return the keys of the batch's entries, as samples to choose boundaries from."""
    rows = entry_rows(entries_in(batch), (), counts_light=False)
    keys: list[bytes] = rows.column("key").to_pylist()
    return keys


def _values(entries: EntryColumns, counted: Flags) -> pa.Array:
    packed = np.empty(len(entries), ENTRY_DTYPE)
    for name in ENTRY_DTYPE.names or ():
        packed[name] = getattr(entries, name)
    values = fixed_binaries(packed.view(np.uint8).reshape(-1, ENTRY_SIZE))
    if not counted.any():
        return values
    numbers = fixed_binaries(entries.queue_offset.astype(">i8").view(np.uint8).reshape(-1, I64.size))
    joined = pc.binary_join_element_wise(values, numbers, pa.scalar(b"", pa.binary()))
    return pc.if_else(pa.array(counted), joined, values)


def _parts(
    entries: EntryColumns, prefixes: Sequence[bytes], boundaries: Sequence[bytes], counted: Flags
) -> NDArray[np.int32]:
    """Return the number of the range of keys that each entry belongs to: int32 of shape (n,)."""
    parts = np.zeros(len(entries), np.int32)
    if not boundaries or not len(entries):
        return parts
    edges = np.array([*boundaries], object)
    of_queues = np.searchsorted(edges, np.array(prefixes, object), side="right").astype(np.int32)
    parts[:] = of_queues[entries.queue_index]
    for number in _divided(prefixes, boundaries):
        rows = np.flatnonzero((entries.queue_index == number) & ~counted)
        keys = [prefixes[number] + I64.pack(offset) for offset in entries.queue_offset[rows].tolist()]
        parts[rows] = np.searchsorted(edges, np.array(keys, object), side="right")
    return parts


def _divided(prefixes: Sequence[bytes], boundaries: Sequence[bytes]) -> list[int]:
    """Return the indexes of the queues that a boundary divides."""
    inside = {boundary[: -I64.size] for boundary in boundaries}
    return [number for number, prefix in enumerate(prefixes) if prefix in inside]
