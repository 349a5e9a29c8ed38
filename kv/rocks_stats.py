"""The module reads the statistics of RocksDB. It is cheap at any number of keys: it reads only the properties of
tables.

The statistics are named `<family>.<figure>`, `<family>.<figure>.<which>` where there are several, and `<figure>` for
those of the whole database. docs/formats/consume-queue.md says what they mean.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Final

_OF_FAMILY: Final = {
    "memtable_bytes": "rocksdb.cur-size-all-mem-tables",
    "immutable_memtables": "rocksdb.num-immutable-mem-table",
    "table_bytes": "rocksdb.live-sst-files-size",
    "live_data_bytes": "rocksdb.estimate-live-data-size",
    "table_reader_bytes": "rocksdb.estimate-table-readers-mem",
    "block_cache_bytes": "rocksdb.block-cache-usage",
    "block_cache_pinned_bytes": "rocksdb.block-cache-pinned-usage",
    "block_cache_max_bytes": "rocksdb.block-cache-capacity",
    "keys_estimate": "rocksdb.estimate-num-keys",
    "compaction_pending": "rocksdb.compaction-pending",
    "pending_compaction_bytes": "rocksdb.estimate-pending-compaction-bytes",
    "level_zero_tables": "rocksdb.num-files-at-level0",
    "write_stopped": "rocksdb.is-write-stopped",
    "background_errors": "rocksdb.background-errors",
}
_OF_DATABASE: Final = {
    "running_compactions": "rocksdb.num-running-compactions",
    "running_flushes": "rocksdb.num-running-flushes",
    "delayed_write_rate": "rocksdb.actual-delayed-write-rate",
}

_TABLES: Final = "rocksdb.sstables"
_LEVEL: Final = re.compile(r"^--- level (\d+) ---", re.MULTILINE)
_TABLE_SIZE: Final = re.compile(r"^ \d+:(\d+)\[", re.MULTILINE)

_STALLS: Final = "rocksdb.cf-write-stall-stats"
_STALL: Final = re.compile(r"(memtable-limit|l0-file-count-limit|pending-compaction-bytes)-(delays|stops): (\d+)")
_STALL_CAUSES: Final = {
    "memtable-limit": "memtables",
    "l0-file-count-limit": "level_zero",
    "pending-compaction-bytes": "compaction",
}


def family_stats(native: Any) -> Iterator[tuple[str, int]]:
    """Yield the statistics of one family. `native` is rocksdict's object for it; its errors pass through."""
    for stat, name in _OF_FAMILY.items():
        value: int | None = native.property_int_value(name)
        if value is not None:
            yield stat, value
    # keys are shown in hexadecimal there, so nothing in them can look like a separate line
    parts = _LEVEL.split(native.property_value(_TABLES) or "")
    for level, tables in zip(parts[1::2], parts[2::2], strict=True):
        sizes = [int(size) for size in _TABLE_SIZE.findall(tables)]
        yield f"level_tables.{level}", len(sizes)
        yield f"level_bytes.{level}", sum(sizes)
    for cause, kind, count in _STALL.findall(native.property_value(_STALLS) or ""):
        yield f"write_{kind}.{_STALL_CAUSES[cause]}", int(count)


def database_stats(native: Any) -> Iterator[tuple[str, int]]:
    """Yield the statistics of the whole database, read from any of its families."""
    for stat, name in _OF_DATABASE.items():
        value: int | None = native.property_int_value(name)
        if value is not None:
            yield stat, value
