"""Writes a task's range of keys: a table file, and the last entry of each queue."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Final

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.types import BinaryType, LongType, StringType, StructField, StructType

from quarry_mq.kv import write_table
from quarry_mq.pipeline.rebuild.log_entries import COUNTED_SIZE
from quarry_mq.store.consumequeue.rocks.store import FAMILY_OPTIONS
from quarry_mq.store.consumequeue.rocks_layout import ENTRIES_FAMILY, ENTRY_SIZE, I64

RESULT_SCHEMA: Final = StructType(
    [
        StructField("table", StringType()),
        StructField("units", LongType()),
        StructField("prefix", BinaryType()),
        StructField("lastOffset", LongType()),
        StructField("lastPlace", LongType()),
        StructField("lowest", LongType()),
        StructField("highest", LongType()),
    ]
)
"""A row for each queue: the prefix of its keys, its last entry, and the range of physical offsets in the task."""
_ARROW: Final = pa.schema(
    [
        ("table", pa.string()),
        ("units", pa.int64()),
        ("prefix", pa.binary()),
        *((name, pa.int64()) for name in ("lastOffset", "lastPlace", "lowest", "highest")),
    ]
)
_RESULTS_PER_BATCH: Final = 10_000

Pair = tuple[bytes, bytes]


class QueuePart:
    """The part of a queue that lies in one range of keys."""

    __slots__ = ("highest", "last_offset", "last_place", "lowest", "prefix")

    def __init__(self, prefix: bytes, place: int) -> None:
        self.prefix = prefix
        self.last_offset = -1
        self.last_place = 0
        self.lowest = self.highest = place


class SortedEntries:
    """Makes the pairs of a table from rows sorted by key and value; `queues` fills while pairs are taken.

    Where a queue was deleted and recreated, its offsets come twice. An entry is void when a later record has its offset
    or a lower one (`store.consumequeue.again`): in the order of offsets, an entry that comes before it lies further on
    in the log. Entries of light queues that need consecutive offsets get them here.
    """

    def __init__(self) -> None:
        self.queues: list[QueuePart] = []
        self.entries = 0

    def pairs(self, rows: Iterable[Pair]) -> Iterator[Pair]:
        prefix = b""
        queue = QueuePart(prefix, 0)
        waiting: Pair | None = None
        number = 0
        for key, value in rows:
            place = int.from_bytes(value[:8], "big")
            pair = key, value
            if key[:-8] != prefix:
                if waiting is not None:
                    yield self._ended(queue, waiting)
                    waiting = None
                prefix = key[:-8]
                queue = QueuePart(prefix, place)
                number = int.from_bytes(value[ENTRY_SIZE:], "big")
            if len(value) == COUNTED_SIZE:
                pair = prefix + I64.pack(number), value[:ENTRY_SIZE]
                number += 1
            queue.lowest = min(queue.lowest, place)
            if place < queue.highest:
                continue
            queue.highest = place
            if waiting is not None and waiting[0] != pair[0]:
                self.entries += 1
                yield waiting
            waiting = pair
        if waiting is not None:
            yield self._ended(queue, waiting)

    def _ended(self, queue: QueuePart, last: Pair) -> Pair:
        queue.last_offset = int.from_bytes(last[0][-8:], "big")
        queue.last_place = queue.highest
        self.queues.append(queue)
        self.entries += 1
        return last


def table_writer(directory: Path) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Return the function that each task runs over the sorted rows of its range; it yields batches of `RESULT_SCHEMA`.

    A repeated task writes another file: only the files that the results name count.
    """

    def write(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        rows = _pairs_in(batches)
        first = next(rows, None)
        if first is None:
            return
        context = TaskContext.get()
        path = directory / f"{0 if context is None else context.taskAttemptId():012}.sst"
        entries = SortedEntries()
        write_table(path, entries.pairs(_with_first(first, rows)), FAMILY_OPTIONS[ENTRIES_FAMILY])
        yield _result([{"table": path.name, "units": entries.entries}])
        for begin in range(0, len(entries.queues), _RESULTS_PER_BATCH):
            yield _result([_facts(queue) for queue in entries.queues[begin : begin + _RESULTS_PER_BATCH]])

    return write


def _pairs_in(batches: Iterable[pa.RecordBatch]) -> Iterator[Pair]:
    for batch in batches:
        yield from zip(batch.column("key").to_pylist(), batch.column("value").to_pylist(), strict=True)


def _with_first(first: Pair, rest: Iterator[Pair]) -> Iterator[Pair]:
    yield first
    yield from rest


def _facts(queue: QueuePart) -> dict[str, object]:
    return {
        "prefix": queue.prefix,
        "lastOffset": queue.last_offset,
        "lastPlace": queue.last_place,
        "lowest": queue.lowest,
        "highest": queue.highest,
    }


def _result(rows: list[dict[str, object]]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist(rows, schema=_ARROW)
