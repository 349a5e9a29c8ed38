"""Stores of keys by which messages are found, of several kinds, each in its own process that works on request.

All stores take the same items (`bench.key_items`): hash, store time, physical offset. In RocksDB an item is a key
without a value, and there are two layouts, with the fields in the order in which they are sorted:

- by key: u32 hash, i64 time, i64 offset. One range of keys holds all items of a lookup; old items are everywhere.
- by time: u32 span of time, then as above. A lookup reads one span after the other, and old items are removed as a
  range. RocketMQ's own index in RocksDB has this layout with an hour as span. Here a span is as long as a file.

Neither has a write-ahead log: like files, they can be rebuilt from the log. A filter would not help, because lookups
read ranges.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from enum import Enum
from multiprocessing import get_context
from pathlib import Path
from typing import Any, Final, Protocol

import numpy as np

from bench.harness import Sample, measure, private_bytes_of
from bench.key_items import ALL, BEGIN_MS, KEYS_EACH, Find, KeyColumns, Lookups, look_up, look_up_cold
from quarry_mq.kv import CompactionStyle, Compression, FamilyOptions, KeyRange, RocksEngine
from quarry_mq.kv.options import KIB, MIB
from quarry_mq.protocol.clock import SystemClock
from quarry_mq.store.fs import PosixDisk
from quarry_mq.store.index.hash.index import HashIndex
from quarry_mq.store.index.hash.keys import HashKeyFiles
from quarry_mq.store.index.hash.layout import shape_of
from quarry_mq.store.index.key_files import Answer, KeyFiles
from quarry_mq.store.index.keys import KeyItems, key_hash
from quarry_mq.store.index.message_index import TIME_MAX_MS
from quarry_mq.store.index.tiered.chain_file import IndexShape
from quarry_mq.store.index.tiered.object_store.cloud import CloudObjects
from quarry_mq.store.index.tiered.tiered_index import TieredIndex
from quarry_mq.store.index.tiered_keys import PLACE, TieredKeyFiles
from quarry_mq.store.message import PhysicalOffset

FAMILY: Final = "keys"
DEFAULT: Final = "default"
KEY: Final = np.dtype([("span", ">u4"), ("hash", ">u4"), ("time", ">i8"), ("offset", ">i8")])
SPAN_SIZE: Final = 4
OFFSET_SIZE: Final = 8
DELETED_AT_ONCE: Final = 10_000
SETTLE_MAX_S: Final = 1_800.0
SETTLE_INTERVAL_S: Final = 0.005


class KeyStoreKind(Enum):
    TIERED = "tiered index"
    HASH_FILES = "RocketMQ's index files"
    ROCKS_BY_KEY = "RocksDB, by key"
    ROCKS_BY_TIME = "RocksDB, by time"


@dataclass(frozen=True, kw_only=True, slots=True)
class KeyStoreSetup:
    """The location and the sizes of a store. `cache_bytes` is the block cache of RocksDB."""

    root: Path
    columns: Path
    slots: int
    items_per_file: int
    span_ms: int
    cache_bytes: int
    memtable_bytes: int
    objects_url: str | None = None
    objects_options: tuple[tuple[str, str], ...] = ()


class KeyStore(Protocol):
    """An open store of keys."""

    def put(self, items: KeyItems) -> None: ...

    def finish(self) -> None:
        """Make everything durable, and do the work that is otherwise done in the background."""

    def find(self, text: str, *, begin_ms: int, end_ms: int, limit: int) -> tuple[int, int]:
        """Return how many items were found, and how many files or ranges were searched."""

    def expire(self, before: PhysicalOffset, before_ms: int) -> None:
        """Remove the items of messages below an offset, which are those stored before a time."""

    def give_back(self) -> None:
        """Free the disk space of removed items now. Files have freed theirs already."""

    def drop_caches(self) -> None:
        """Let the kernel drop what it has cached of the files."""

    def close(self) -> None: ...


class _Files:
    """A store of one of the two kinds that are files."""

    def __init__(self, files: KeyFiles, root: Path) -> None:
        self._files = files
        self._root = root

    def put(self, items: KeyItems) -> None:
        self._files.put(items)

    def finish(self) -> None:
        self._files.flush()

    def find(self, text: str, *, begin_ms: int, end_ms: int, limit: int) -> tuple[int, int]:
        answer: Answer[int] = self._files.find(text, begin_ms=begin_ms, end_ms=end_ms, limit=limit, accept=int)
        if answer.unread:
            raise RuntimeError(f"not read: {answer.unread}")
        return len(answer.found), answer.files

    def expire(self, before: PhysicalOffset, before_ms: int) -> None:
        del before_ms
        self._files.expire(before)

    def give_back(self) -> None:
        return

    def drop_caches(self) -> None:
        disk = PosixDisk()
        for path in _files_below(self._root):
            if not disk.is_mapped(path):
                disk.drop_cached(path)

    def close(self) -> None:
        self._files.close()


class _Tiered(_Files):
    def __init__(self, setup: KeyStoreSetup) -> None:
        url, options = setup.objects_url, dict(setup.objects_options)
        self._index = TieredIndex(
            PosixDisk(),
            setup.root,
            IndexShape(setup.slots, setup.items_per_file, PLACE),
            objects=None if url is None else CloudObjects.at(url, options),
            keep_uploaded=False,
        )
        super().__init__(TieredKeyFiles(self._index), setup.root)

    def finish(self) -> None:
        super().finish()
        self._files.settle(self._files.state)
        while self._index.compact_one():
            continue
        while self._index.upload_one():
            continue


class _HashFiles(_Files):
    def __init__(self, setup: KeyStoreSetup) -> None:
        shape = shape_of(setup.slots, setup.items_per_file + 1)
        super().__init__(HashKeyFiles(HashIndex(PosixDisk(), setup.root, shape, SystemClock())), setup.root)


class _Rocks:
    """A store in RocksDB. Ranges are [begin, end) of times; the newest are read first."""

    def __init__(self, setup: KeyStoreSetup, *, by_time: bool) -> None:
        options = FamilyOptions(
            memtable_bytes=setup.memtable_bytes,
            compaction_style=CompactionStyle.LEVEL,
            target_file_bytes=64 * MIB,
            compression=Compression.LZ4,
            bottommost_compression=Compression.ZSTD,
            block_bytes=8 * KIB,
            bloom_bits_per_key=0,
            block_cache_bytes=setup.cache_bytes,
        )
        families = {DEFAULT: FamilyOptions(), FAMILY: options}
        self._root = setup.root
        self._engine = RocksEngine.open(setup.root, families, create=True, write_ahead_log=False)
        self._family = self._engine.family(FAMILY)
        self._span_ms = setup.span_ms
        self._by_time = by_time
        self._last_span = 0
        found = self._family.scan(KeyRange(b"", None), limit=1, reverse=True) if by_time else []
        if found:
            self._last_span = int.from_bytes(found[0][0][:SPAN_SIZE], "big")

    def put(self, items: KeyItems) -> None:
        keys = np.empty(len(items), KEY)
        keys["span"] = (items.stored_ms - BEGIN_MS) // self._span_ms
        keys["hash"] = items.hashes
        keys["time"] = items.stored_ms
        keys["offset"] = items.physical_offset
        begin = 0 if self._by_time else SPAN_SIZE
        packed, size = keys.tobytes(), KEY.itemsize
        batch = self._engine.batch()
        batch.put_all(self._family, ((packed[at + begin : at + size], b"") for at in range(0, len(packed), size)))
        self._engine.write(batch)
        self._last_span = int(keys["span"][-1])

    def finish(self) -> None:
        self._engine.flush([FAMILY])
        begin_s, quiet = time.perf_counter(), 0
        while quiet < 3:
            if time.perf_counter() - begin_s > SETTLE_MAX_S:
                raise RuntimeError("RocksDB has not come to rest")
            stats = self._engine.statistics()
            is_busy = any(
                stats[name] for name in ("running_compactions", "running_flushes", f"{FAMILY}.compaction_pending")
            )
            quiet = 0 if is_busy else quiet + 1
            time.sleep(SETTLE_INTERVAL_S)

    def find(self, text: str, *, begin_ms: int, end_ms: int, limit: int) -> tuple[int, int]:
        hashed, found, looked = key_hash(text).to_bytes(4, "big"), 0, 0
        begin, end = max(begin_ms, 0).to_bytes(8, "big"), min(end_ms + 1, TIME_MAX_MS).to_bytes(8, "big")
        for span in self._spans(begin_ms, end_ms):
            keys = KeyRange(span + hashed + begin, span + hashed + end)
            if limit == ALL:
                pairs = reversed(self._family.scan(keys))
            else:
                pairs = iter(self._family.scan(keys, limit=limit - found, reverse=True))
            found += len([int.from_bytes(key[-OFFSET_SIZE:], "big") for key, _ in pairs])
            looked += 1
            if found >= limit:
                break
        return found, looked

    def _spans(self, begin_ms: int, end_ms: int) -> Iterator[bytes]:
        """Yield the prefixes of keys, the newest first."""
        if not self._by_time:
            yield b""
            return
        last = min((end_ms - BEGIN_MS) // self._span_ms, self._last_span)
        first = max((begin_ms - BEGIN_MS) // self._span_ms, 0)
        for span in range(last, first - 1, -1):
            yield span.to_bytes(SPAN_SIZE, "big")

    def expire(self, before: PhysicalOffset, before_ms: int) -> None:
        del before
        if self._by_time:
            end = ((before_ms - BEGIN_MS) // self._span_ms).to_bytes(SPAN_SIZE, "big")
            batch = self._engine.batch()
            batch.delete_range(self._family, KeyRange(b"", end))
            self._engine.write(batch)
        else:
            self._delete_old_keys(before_ms)
        self._engine.flush([FAMILY])

    def _delete_old_keys(self, before_ms: int) -> None:
        """Delete old keys by their time, for which every key has to be read."""
        batch = self._engine.batch()
        for key, _ in self._family.iterate(KeyRange(b"", None)):
            if int.from_bytes(key[4:12], "big") < before_ms:
                batch.delete(self._family, key)
                if len(batch) >= DELETED_AT_ONCE:
                    self._engine.write(batch)
                    batch = self._engine.batch()
        self._engine.write(batch)

    def give_back(self) -> None:
        self._engine.compact(self._family, KeyRange(b"", None))

    def drop_caches(self) -> None:
        for path in _files_below(self._root):
            if path.suffix == ".sst":
                PosixDisk().drop_cached(path)

    def close(self) -> None:
        self._engine.close()


def _files_below(root: Path) -> list[Path]:
    return [path for path in root.rglob("*") if path.is_file()]


def open_key_store(kind: KeyStoreKind, setup: KeyStoreSetup) -> KeyStore:
    match kind:
        case KeyStoreKind.TIERED:
            return _Tiered(setup)
        case KeyStoreKind.HASH_FILES:
            return _HashFiles(setup)
        case KeyStoreKind.ROCKS_BY_KEY | KeyStoreKind.ROCKS_BY_TIME:
            return _Rocks(setup, by_time=kind is KeyStoreKind.ROCKS_BY_TIME)


class KeyStoreWork:
    """Does the work that the process is asked for. Samples cover all threads of the process."""

    def __init__(self, kind: KeyStoreKind, setup: KeyStoreSetup) -> None:
        self._bytes_before = private_bytes_of(os.getpid())
        self._store = open_key_store(kind, setup)
        self._columns = KeyColumns(setup.columns)

    def put(self, begin: int, end: int) -> Sample:
        batches = self._columns.batches(begin, end)

        def work() -> int:
            for batch in batches:
                self._store.put(batch)
            return end - begin

        return measure(work)

    def finish(self) -> Sample:
        return self._timed(self._store.finish)

    def give_back(self) -> Sample:
        return self._timed(self._store.give_back)

    def expire(self, end: int) -> Sample:
        """Let the items before `end` expire."""
        before, (before_ms, _) = self._columns.offset(end), self._columns.times_ms(end, end + KEYS_EACH)
        return self._timed(lambda: self._store.expire(PhysicalOffset(before), before_ms))

    def look_up(self, texts: list[str], begin_ms: int, end_ms: int, limit: int) -> Lookups:
        return look_up(self._find(begin_ms, end_ms, limit), texts)

    def look_up_cold(self, texts: list[str], begin_ms: int, end_ms: int, limit: int) -> dict[str, float]:
        return look_up_cold(self._find(begin_ms, end_ms, limit), texts, self._store.drop_caches)

    def private_bytes(self) -> int:
        """Return the private memory beyond that before the store was opened."""
        return private_bytes_of(os.getpid()) - self._bytes_before

    def close(self) -> None:
        self._store.close()

    def _find(self, begin_ms: int, end_ms: int, limit: int) -> Find:
        return lambda text: self._store.find(text, begin_ms=begin_ms, end_ms=end_ms, limit=limit)

    @staticmethod
    def _timed(work: Any) -> Sample:
        def once() -> int:
            work()
            return 1

        return measure(once)


class KeyStoreProcess:
    """A store in its own process. `run` calls a method there and returns its result. Raises what the work raises."""

    def __init__(self, kind: KeyStoreKind, setup: KeyStoreSetup) -> None:
        self._executor = ProcessPoolExecutor(1, get_context("spawn"), initializer=_open, initargs=(kind, setup))

    def run(self, name: str, *arguments: object) -> Any:
        return self._executor.submit(_work, name, *arguments).result()

    def close(self) -> None:
        try:
            self.run("close")
        finally:
            self._executor.shutdown()


_open_work: list[KeyStoreWork] = []


def _open(kind: KeyStoreKind, setup: KeyStoreSetup) -> None:
    _open_work.append(KeyStoreWork(kind, setup))


def _work(name: str, *arguments: object) -> object:
    return getattr(_open_work[0], name)(*arguments)
