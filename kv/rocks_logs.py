"""Checks of RocksDB's logs that RocksDB leaves out, and the statistics of RocksDB.

The checks make no RocksDB calls. The manifest, which lists the tables of a database, and write-ahead logs have one
form, blocks of 32 KiB:

| field    | bytes | meaning                                                          |
|----------|-------|------------------------------------------------------------------|
| checksum | 4     | u32 little-endian, masked CRC-32C of kind and payload            |
| length   | 2     | u16 little-endian, of the payload                                |
| kind     | 1     | whole, first, middle or last part of an entry; 0: nothing follows |
| payload  | n     |                                                                  |

A record that exceeds the end of the file counts as torn, and everything from there on as never written: RocksDB reports
nothing, since a crash leaves files like that. One flipped bit in a length does the same to old entries, and the tables
they name are lost. But then the whole record is still there, and its checksum reveals its true length.

A kind that only reused log files have makes RocksDB's reader loop for ever. In a write-ahead log RocksDB finds all
other damage, or takes it for the end, which the store knows to be too early (`store.state.identity`).

Reading the statistics is cheap at any number of keys: only the properties of tables are read. The statistics are named
`<family>.<figure>`, `<family>.<figure>.<which>` where there are several, and `<figure>` for those of the whole
database. docs/formats/consume-queue.md says what they mean.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from struct import Struct
from typing import Any, Final

from quarry_mq.kv.errors import EngineCorrupt
from quarry_mq.kv.rocks_directory import CURRENT, is_write_ahead_log

MANIFEST_NAME: Final = re.compile(r"MANIFEST-[0-9]+", re.ASCII)
BLOCK_SIZE: Final = 32 * 1024
HEAD: Final = Struct("<IHB")
KIND_MAX: Final = 4
KINDS_OF_REUSED_LOGS: Final = frozenset({5, 6, 7, 8, 11})
MASK_DELTA: Final = 0xA282EAD8
_POLYNOMIAL: Final = 0x82F63B78


def _table() -> list[int]:
    rows = []
    for row in range(256):
        for _ in range(8):
            row = row >> 1 ^ (_POLYNOMIAL if row & 1 else 0)  # noqa: PLW2901 - the register of the division
        rows.append(row)
    return rows


_TABLE: Final = _table()


def check_manifest(directory: Path) -> None:
    """Raise EngineCorrupt when the live manifest ends in a whole record that seems torn, or has a record of a wrong
    kind.

    A file that is missing or has a wrong name is left to RocksDB, which reports it.
    """
    name = (directory / CURRENT).read_text(errors="replace").removesuffix("\n")
    path = directory / name
    if not MANIFEST_NAME.fullmatch(name) or not path.is_file():
        return
    data = path.read_bytes()
    for at, checksum, kind, is_whole in _records(data):
        if not is_whole:
            # the checksum covers the kind, too
            if _ends_before(data[at + HEAD.size - 1 : _block_end(at)], checksum):
                raise EngineCorrupt(f"{path}: the length of the record at {at} is damaged", directory)
        elif kind > KIND_MAX:
            raise EngineCorrupt(f"{path}: the kind of the record at {at} is damaged", directory)


def check_write_ahead_logs(directory: Path) -> None:
    """Raise EngineCorrupt when a write-ahead log has a record of a kind that RocksDB's reader cannot get past."""
    for path in sorted(directory.iterdir()):
        if not is_write_ahead_log(path.name):
            continue
        for at, _, kind, _ in _records(path.read_bytes()):
            if kind in KINDS_OF_REUSED_LOGS:
                raise EngineCorrupt(f"{path}: the kind of the record at {at} is damaged", directory)


def _records(data: bytes) -> Iterator[tuple[int, int, int, bool]]:
    """Yield position, checksum and kind of each record, and whether it is complete; the last one may not be."""
    at = 0
    while at + HEAD.size <= len(data):
        block_end = _block_end(at)
        if block_end - at < HEAD.size:
            at = block_end
            continue
        checksum, length, kind = HEAD.unpack_from(data, at)
        if kind == 0 and length == 0:
            return
        payload_end = at + HEAD.size + length
        is_whole = payload_end <= min(block_end, len(data))
        yield at, checksum, kind, is_whole
        if not is_whole:
            return
        at = payload_end


def _block_end(at: int) -> int:
    return at - at % BLOCK_SIZE + BLOCK_SIZE


def _ends_before(data: bytes, checksum: int) -> bool:
    """Return whether some prefix of the data has this checksum."""
    register = 0xFFFFFFFF
    for byte in data:
        register = _TABLE[(register ^ byte) & 0xFF] ^ register >> 8
        crc = register ^ 0xFFFFFFFF
        if ((crc >> 15 | crc << 17) + MASK_DELTA) & 0xFFFFFFFF == checksum:
            return True
    return False


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
