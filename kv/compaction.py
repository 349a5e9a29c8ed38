"""Compaction that also drops what a rule no longer wants.

rocksdict binds no compaction filters. A filter there would be asked about every key during the rewrite; here it
names whole ranges before it, which become range deletes: the same space comes back, and no Python runs per key.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, Protocol

from kv.engine import Family, KeyRange, KeyValueEngine

RANGES_PER_BATCH: Final = 1_000
"""Bounds the memory of one batch; each range is a tombstone of two keys."""


class Filter(Protocol):
    """A rule that tells which keys of a range are not wanted any more."""

    def unwanted(self, family: Family, keys: KeyRange) -> Iterator[KeyRange]:
        """Ranges inside `keys` that may go, each with an end. Readers must already be unable to see them."""


def compact(engine: KeyValueEngine, family: Family, keys: KeyRange, *, keep: Filter) -> int:
    """Drop the ranges the filter names, then rewrite `keys` to the bottommost level. Returns their number."""
    dropped = 0
    batch = engine.batch()
    for gone in keep.unwanted(family, keys):
        batch.delete_range(family, gone)
        dropped += 1
        if len(batch) >= RANGES_PER_BATCH:
            engine.write(batch)
            batch = engine.batch()
    if len(batch) > 0:
        engine.write(batch)
    engine.compact(family, keys)
    return dropped
