"""Chooses ranges of keys with about equal numbers of entries, from samples of the log, before all of it is read."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from typing import Final, NamedTuple

from quarry_mq.pipeline.rebuild.unit_rows import sample_keys
from quarry_mq.pipeline.source.log_splits import LogExtent
from quarry_mq.store.commitlog import SegmentList
from quarry_mq.store.offsets import PhysicalOffset
from quarry_mq.store.scan import first_record, scan_log

SAMPLES: Final = 64
"""Number of places of the log that are sampled; each gives some thousand records."""
UNITS_PER_RANGE: Final = 1_000_000
"""Entries of a range: about 100 MB in Spark's memory, and as much in a table."""


class Sample(NamedTuple):
    """Sorted keys of entries from all over the log, and an estimate of the number of all entries."""

    keys: list[bytes]
    units_estimate: int


def sample(segments: SegmentList, extent: LogExtent) -> Sample:
    """Sample some places of the log. Damage is ignored here; the jobs that read the whole log report it."""
    keys: list[bytes] = []
    read_bytes = 0
    size = extent.end - extent.begin
    for place in range(SAMPLES if size else 0):
        start = first_record(segments, PhysicalOffset(extent.begin + size * place // SAMPLES))
        if start is None or start >= extent.end:
            continue
        for batch in islice(scan_log(segments, start, extent.end, check_crc=False), 1):
            keys += sample_keys(batch)
            read_bytes += int(batch.columns.size.sum())
    return Sample(sorted(keys), len(keys) * size // read_bytes if read_bytes else 0)


def boundaries(found: Sample, ranges_min: int) -> list[bytes]:
    """Return the keys at which the ranges after the first begin, so that all have about equal numbers of entries."""
    count = max(ranges_min, -(-found.units_estimate // UNITS_PER_RANGE))
    keys: Sequence[bytes] = found.keys
    return sorted({keys[len(keys) * number // count] for number in range(1, count) if keys})
