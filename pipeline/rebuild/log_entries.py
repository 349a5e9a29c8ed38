"""Chooses which consume queue entries a task makes of the records that it reads, and encodes them in bulk.

Entries are encoded as keys and values of the RocksDB queues (docs/formats/consume-queue.md). A row has `key` and
`value` as stored, but for entries of light queues that get consecutive offsets. Their key ends with the physical offset
instead, by which they are sorted and counted, and their value with the offset that the record states.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from quarry_mq.pipeline.source.arrow import fixed_binaries
from quarry_mq.protocol.names import is_light_queue
from quarry_mq.store.consumequeue import EntryColumns, FileConsumeQueues
from quarry_mq.store.consumequeue.dispatch import StoredAssignment, UndeletedEntries
from quarry_mq.store.consumequeue.rocks_layout import ENTRY_DTYPE, ENTRY_SIZE, I64, entry_prefix
from quarry_mq.store.fs import PosixDisk
from quarry_mq.store.layout.paths import StorePaths
from quarry_mq.store.message import PhysicalOffset
from quarry_mq.store.migration.backfill import PresentAssignment, PresentEntries
from quarry_mq.store.scan import RecordBatch, ScannedRequests
from quarry_mq.store.scan.columns import Flags
from quarry_mq.store.verify.log import entries_in

EntriesOf = Callable[[RecordBatch], EntryColumns]


class LogEntries(Protocol):
    """A choice of entries. Spark sends it to the tasks."""

    @property
    def counts_light(self) -> bool:
        """Return whether light queues get consecutive offsets once all their entries are sorted together."""

    def opened(self, root: Path) -> AbstractContextManager[EntriesOf]:
        """Return a context manager that gives the function which makes entries of a batch."""


@dataclass(frozen=True, slots=True)
class StatedEntries:
    """Provide all entries but the deleted ones, with the offsets that their records state."""

    counts_light: bool
    topics: Mapping[str, PhysicalOffset]
    """The log offset at which each deleted topic was deleted last (`store.state.deletions`)."""
    light_queues: Mapping[str, PhysicalOffset]
    """The log offset at which each removed light queue was removed last."""

    @contextmanager
    def opened(self, root: Path) -> Iterator[EntriesOf]:  # noqa: ARG002 - records state all that entries need
        rule = UndeletedEntries(StoredAssignment(), self.topics, self.light_queues)
        yield lambda batch: ScannedRequests(batch, slice(None), rule).entries


@dataclass(frozen=True, slots=True)
class FileEntries:
    """The entries that the queue files hold, with the files' offsets for light queues.

    The files are durable and unchanging.
    """

    minimum: PhysicalOffset
    end: PhysicalOffset
    units_per_file: int
    counts_light: bool = False

    @contextmanager
    def opened(self, root: Path) -> Iterator[EntriesOf]:
        with closing(self.files(root)) as files, closing(PresentEntries(PosixDisk(), files)) as present_entries:
            assignment = PresentAssignment(present_entries)

            def entries_of(batch: RecordBatch) -> EntryColumns:
                entries = ScannedRequests(batch, slice(None), assignment).entries
                return entries.select(present_entries.mask(entries)).compact()

            yield entries_of

    def files(self, root: Path) -> FileConsumeQueues:
        """Return the queue files, opened for reading."""
        return FileConsumeQueues(
            PosixDisk(),
            StorePaths(root).consume_queue,
            minimum_physical_offset=self.minimum,
            dispatched_up_to=self.end,
            save_dispatched=_save_nothing,
            after_crash=False,
            units_per_file=self.units_per_file,
        )


def _save_nothing(_: PhysicalOffset, /, *, emptied: bool) -> None:
    """Store nothing: the files are only read."""


COUNTED_SIZE: Final = ENTRY_SIZE + I64.size
"""Bytes of the value of an entry whose offset is yet to be assigned."""
ROW_SCHEMA: Final = pa.schema([("part", pa.int32()), ("key", pa.binary()), ("value", pa.binary())])


def entry_rows(entries: EntryColumns, boundaries: Sequence[bytes], *, counts_light: bool) -> pa.RecordBatch:
    """Return entries as rows of `ROW_SCHEMA`, `part` being the range of keys between `boundaries`.

    With `counts_light` light queues get consecutive offsets, and all entries of one light queue are in the same part.
    """
    prefixes = [entry_prefix(queue) for queue in entries.queues]
    of_light = np.array([counts_light and is_light_queue(queue.topic) for queue in entries.queues], np.bool_)
    counted = of_light[entries.queue_index]
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
