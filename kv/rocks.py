"""The engine on RocksDB, its families, batches and snapshots. No other module calls rocksdict.

The engine guards against these properties of rocksdict 0.3.29 (RocksDB 9.8.4):

1. Its `items()` ends on a damaged block as if the range ended there. Here every scan that comes up short asks a
   plain iterator for its status at the position where it stopped.
2. A manual flush covers one family, also with atomic_flush on. `flush` takes the order from the caller.
3. Families, handles, snapshots and iterators keep the database open and locked after `close()`, and still
   answer. Here they lose their native part when the engine closes.
4. Create-if-missing over a directory without CURRENT makes an empty database. It is passed only when the
   directory holds no file of one.
5. `WriteOptions.disable_wal` is an attribute to assign, not the method its stub declares.
6. `ReadOptions.set_iterate_lower_bound` sets the upper bound. Here backward scans stop by comparing keys.
7. Iterators of its snapshots ignore the snapshot. Here a snapshot is an iterator per family, made at its moment.
8. A cache has up to 64 shards, of 512 KiB at least, and accepts no block that is larger than a shard: the whole filter
   of a million keys (1.25 MB) is read again for every key. Here filters and indexes are in parts.

All tables are written with block based format 5, the newest that the RocksDB of RocketMQ (8.4.0) reads.

A family, batch or snapshot is wrapped around an object of rocksdict, its `native` part. When the engine closes, each
loses this part: a native family, handle, snapshot or iterator that a caller still holds would keep the database open
and locked, and would still answer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Lock
from types import TracebackType
from typing import Any, Final, NoReturn
from weakref import WeakSet

import rocksdict  # noqa: TID251 - this is the module the ban points to

from quarry_mq.kv.engine import Family, KeyRange, LaterPuts, Snapshot, WriteBatch, merged, scanned
from quarry_mq.kv.errors import EngineClosed, EngineCorrupt, EngineFull, EngineLocked, EngineStarved, KvError
from quarry_mq.kv.options import MIB, CompactionStyle, Compression, FamilyOptions
from quarry_mq.kv.rocks_directory import (
    descriptor_share,
    holds_database,
    reading_view,
    require_database,
    require_descriptors,
    unread_changes,
)
from quarry_mq.kv.rocks_logs import check_manifest, check_write_ahead_logs, database_stats, family_stats

DEFAULT_FAMILY: Final = "default"
"""The family that RocksDB has in every database, used or not."""

NO_ROOM: Final = "No space left on device"
"""The only error from which RocksDB recovers by itself. After any other, also an exceeded quota, it refuses writes
until reopened.
"""

NO_DESCRIPTOR: Final = "Too many open files"
"""The error for a file that was to be read: another read may succeed."""
FOR_WRITING: Final = "for appending"

LOCKED: Final = ("IO error: lock ", "IO error: While lock file")
"""The errors that say that this process or another one holds the lock."""

PLAIN_SCAN_MAX: Final = 16
"""The largest limit of a scan that uses a plain iterator alone.

A pair costs a plain iterator 1.4 µs and `items()` 0.5 µs. But `items()` has to be followed by a plain iterator where it
comes up short, as most scans with a small limit do.
"""

BULK_SCAN_LEAST: Final = 1_000
"""The limit of a scan from which its blocks are not added to the cache: they would take the place of others, and are
read once.
"""

CHUNK_FIRST: Final = 16
CHUNK_MAX: Final = 1_024
"""Sizes of the chunks in which `iterate` reads, which grow: cheap for a caller that stops early, and for one that does
not.
"""


def fail(error: Exception, directory: Path | None = None) -> NoReturn:
    """Raise the error that a rocksdict error stands for. Errors that are not the engine's (a str as a key) pass
    unchanged.

    RocksDB does not always say in which file it has found damage: then the database's `directory` is named.
    """
    if type(error) is not Exception:
        raise error
    text = str(error)
    named = text if directory is None or str(directory) in text else f"{directory}: {text}"
    if text.startswith("Corruption:") or "No such file or directory" in text:
        raise EngineCorrupt(named, directory) from error
    if text.startswith(("IO error:", "Result incomplete:")) and NO_ROOM in text:
        raise EngineFull(named) from error
    if text.startswith("IO error:") and NO_DESCRIPTOR in text and FOR_WRITING not in text:
        raise EngineStarved(named) from error
    if text.startswith(LOCKED):
        raise EngineLocked(named) from error
    raise KvError(named) from error


class _Closed:
    """The object takes the place of every native object after `close()`."""

    def __getattr__(self, name: str) -> NoReturn:
        raise EngineClosed(f"used after close(): {name}")


CLOSED: Final[Any] = _Closed()


class Cursor:
    """A cursor owns one native iterator, so that the engine can take it away."""

    __slots__ = ("__weakref__", "native")

    def __init__(self, native: Any) -> None:
        self.native = native


class RocksSnapshot:
    """A RocksDB snapshot implements `kv.engine.Snapshot`.

    It has one plain iterator per family: an iterator sees the state of the moment it was made. rocksdict's own
    snapshots answer single keys only; iterators made from them see the present.
    """

    __slots__ = ("__weakref__", "_iterators", "_lock")

    def __init__(self, iterators: dict[str, Any]) -> None:
        self._iterators = iterators
        # Guards the position of the iterators, which all scans of a family share.
        self._lock = Lock()

    def __enter__(self) -> RocksSnapshot:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def scan(self, family: str, keys: KeyRange, limit: int | None, *, reverse: bool) -> list[tuple[bytes, bytes]]:
        with self._lock:
            plain = Cursor(self._iterators.get(family, CLOSED))
            pairs = _backwards(plain, keys) if reverse else _upwards(plain, keys)
            return list(islice(pairs, limit))

    def iterate(self, family: str, keys: KeyRange, *, reverse: bool) -> Iterator[tuple[bytes, bytes]]:
        size = CHUNK_FIRST
        while True:
            chunk = self.scan(family, keys, size, reverse=reverse)
            yield from chunk
            if len(chunk) < size:
                return
            last = chunk[-1][0]
            keys = KeyRange(keys.start, last) if reverse else KeyRange(last + b"\x00", keys.end)
            size = min(2 * size, CHUNK_MAX)

    def close(self) -> None:
        self._iterators = {}


class RocksBatch:
    """A RocksDB batch implements `kv.engine.WriteBatch`."""

    __slots__ = ("_native", "comes_after_later_puts")

    def __init__(self, native: Any) -> None:
        self._native = native
        self.comes_after_later_puts = False
        """True if the batch touches a family with buffered puts: these are older, and have to be stored before."""

    def put(self, family: Family, key: bytes, value: bytes) -> None:
        try:
            self._native.put(key, value, self._handle_of(family))
        except Exception as error:  # noqa: BLE001 - rocksdict raises plain Exception
            fail(error)

    def put_all(self, family: Family, pairs: Iterable[tuple[bytes, bytes]]) -> None:
        handle = self._handle_of(family)
        native_put = self._native.put
        try:
            for key, value in pairs:
                native_put(key, value, handle)
        except Exception as error:  # noqa: BLE001 - rocksdict raises plain Exception
            fail(error)

    def delete(self, family: Family, key: bytes) -> None:
        try:
            self._native.delete(key, self._handle_of(family))
        except Exception as error:  # noqa: BLE001 - rocksdict raises plain Exception
            fail(error)

    def delete_all(self, family: Family, keys: Iterable[bytes]) -> None:
        handle = self._handle_of(family)
        native_delete = self._native.delete
        try:
            for key in keys:
                native_delete(key, handle)
        except Exception as error:  # noqa: BLE001 - rocksdict raises plain Exception
            fail(error)

    def delete_range(self, family: Family, keys: KeyRange) -> None:
        if keys.end is None:
            raise ValueError("a range delete needs an end")
        if keys.end <= keys.start:
            return
        try:
            self._native.delete_range(keys.start, keys.end, self._handle_of(family))
        except Exception as error:  # noqa: BLE001 - rocksdict raises plain Exception
            fail(error)

    def __len__(self) -> int:
        try:
            return len(self._native)
        except Exception as error:  # noqa: BLE001 - rocksdict raises plain Exception
            fail(error)

    def _handle_of(self, family: Family) -> Any:
        own = own_family(family)
        if own.later is not None:
            self.comes_after_later_puts = True
        return own.handle()

    def take(self) -> Any:
        """Return the native batch, for the engine that writes it."""
        return self._native


class RocksFamily:
    """A RocksDB family implements `kv.engine.Family`."""

    __slots__ = ("_cursors", "_directory", "_handle", "_name", "_native", "_read_options", "later")

    def __init__(
        self,
        name: str,
        native: Any,
        handle: Any,
        read_options: Callable[[], Any],
        cursors: WeakSet[Cursor],
        *,
        directory: Path,
        later: LaterPuts | None = None,
    ) -> None:
        """Make a family. `directory` is that of the database, for its errors."""
        self._directory = directory
        self.later = later
        self._name = name
        self._native = native
        self._handle = handle
        self._read_options = read_options
        self._cursors = cursors

    @property
    def name(self) -> str:
        return self._name

    def handle(self) -> Any:
        if self._handle is None:
            raise EngineClosed("used after close()")
        return self._handle

    def native(self) -> Any:
        return self._native

    def get(self, key: bytes) -> bytes | None:
        if self.later is not None and (waiting := self.later.get(key)) is not None:
            self.handle()
            return waiting
        try:
            value: bytes | None = self._native.get(key)
        except Exception as error:  # noqa: BLE001 - rocksdict raises plain Exception
            fail(error, self._directory)
        return value

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        # before the database: what is buffered now may be stored by the time it is read, but not the other way round
        waiting = [None] * len(keys) if self.later is None else [self.later.get(key) for key in keys]
        try:
            values: list[bytes | None] = self._native.get(list(keys))
        except Exception as error:  # noqa: BLE001 - rocksdict raises plain Exception
            fail(error, self._directory)
        if self.later is None:
            return values
        return [value if later is None else later for later, value in zip(waiting, values, strict=True)]

    def scan(
        self,
        keys: KeyRange,
        *,
        limit: int | None = None,
        reverse: bool = False,
        snapshot: Snapshot | None = None,
    ) -> list[tuple[bytes, bytes]]:
        self.handle()
        if keys.end is not None and keys.end <= keys.start:
            return []
        waiting = self.later.unsettled() if self.later is not None and snapshot is None else None
        pairs = self._scan(keys, limit, snapshot, reverse=reverse)
        return scanned(pairs, waiting, keys, limit, reverse=reverse) if waiting else pairs

    def take(self, keys: KeyRange, count: int) -> list[tuple[bytes, bytes]]:
        if self.later is None and count > 0:
            try:
                items = self._native.items(from_key=keys.start, read_opt=self._options_up_to(keys.end))
                pairs: list[tuple[bytes, bytes]] = list(islice(items, count))
            except Exception as error:  # noqa: BLE001 - rocksdict raises plain Exception
                fail(error, self._directory)
            if len(pairs) == count:
                return pairs
        return self.scan(keys, limit=count)  # fewer pairs, or damage instead of them

    def _scan(
        self, keys: KeyRange, limit: int | None, snapshot: Snapshot | None, *, reverse: bool
    ) -> list[tuple[bytes, bytes]]:
        """Scan the stored pairs, without the buffered ones."""
        try:
            if snapshot is not None:
                return _own_snapshot(snapshot).scan(self._name, keys, limit, reverse=reverse)
            options = self._options_up_to(keys.end)
            if reverse:
                return list(islice(_backwards(Cursor(self._native.iter(options)), keys), limit))
            if limit is not None and limit <= PLAIN_SCAN_MAX:
                return list(islice(_upwards(Cursor(self._native.iter(options)), keys), limit))
            if limit is not None and limit >= BULK_SCAN_LEAST:
                options.fill_cache(False)  # noqa: FBT003 - rocksdict's own name for it
            items = self._native.items(from_key=keys.start, read_opt=options)
            pairs: list[tuple[bytes, bytes]] = list(islice(items, limit))
            if limit is None or len(pairs) < limit:
                plain = Cursor(self._native.iter(options))
                missing = None if limit is None else limit - len(pairs)
                pairs.extend(islice(_rest(plain, keys, pairs), missing))
        except Exception as error:  # noqa: BLE001 - rocksdict raises plain Exception
            fail(error, self._directory)
        return pairs

    def iterate(
        self, keys: KeyRange, *, reverse: bool = False, snapshot: Snapshot | None = None
    ) -> Iterator[tuple[bytes, bytes]]:
        self.handle()
        if keys.end is not None and keys.end <= keys.start:
            return iter(())
        if snapshot is not None:
            return _translated(_own_snapshot(snapshot).iterate(self._name, keys, reverse=reverse), self._directory)
        waiting = None if self.later is None else self.later.unsettled()
        pairs = self._iterate(keys, reverse=reverse)
        return merged(pairs, waiting, keys, reverse=reverse) if waiting else pairs

    def _iterate(self, keys: KeyRange, *, reverse: bool) -> Iterator[tuple[bytes, bytes]]:
        """Iterate over the stored pairs, without the buffered ones."""
        options = self._options_up_to(keys.end)
        try:
            # make both now, so that both see the state of this moment
            plain = Cursor(self._native.iter(options))
            items = None if reverse else Cursor(self._native.items(from_key=keys.start, read_opt=options))
        except Exception as error:  # noqa: BLE001 - rocksdict raises plain Exception
            fail(error, self._directory)
        self._cursors.add(plain)
        if items is None:
            return _translated(_backwards(plain, keys), self._directory)
        self._cursors.add(items)
        return _translated(_forwards(items, plain, keys), self._directory)

    def _options_up_to(self, end: bytes | None) -> Any:
        options = self._read_options()
        if end is not None:
            options.set_iterate_upper_bound(end)
        return options

    def release(self) -> None:
        """Release the native parts: they keep the database open and locked."""
        if self.later is not None:
            self.later.clear()
        self._native = CLOSED
        self._handle = None


def _own_snapshot(snapshot: Snapshot) -> RocksSnapshot:
    if not isinstance(snapshot, RocksSnapshot):
        raise TypeError(f"a snapshot of another engine: {snapshot!r}")
    return snapshot


def own_family(family: Family) -> RocksFamily:
    if not isinstance(family, RocksFamily):
        raise TypeError(f"a family of another engine: {family!r}")
    return family


def _rest(plain: Cursor, keys: KeyRange, before: list[tuple[bytes, bytes]]) -> Iterator[tuple[bytes, bytes]]:
    """Yield what comes after `items()` ended after the pairs `before`: nothing, or the error that ended it.

    Pairs come out only where the fault was temporary (a read error that does not occur again).
    """
    start = before[-1][0] + b"\x00" if before else keys.start
    return _upwards(plain, KeyRange(start, keys.end))


def _upwards(plain: Cursor, keys: KeyRange) -> Iterator[tuple[bytes, bytes]]:
    plain.native.seek(keys.start)
    while plain.native.valid():
        key = plain.native.key()
        if keys.end is not None and key >= keys.end:
            return
        yield key, plain.native.value()
        plain.native.next()
    plain.native.status()


def _backwards(plain: Cursor, keys: KeyRange) -> Iterator[tuple[bytes, bytes]]:
    """Iterate backwards without a lower bound: rocksdict would set the upper one instead."""
    if keys.end is None:
        plain.native.seek_to_last()
    else:
        plain.native.seek_for_prev(keys.end)
        if plain.native.valid() and plain.native.key() == keys.end:
            plain.native.prev()
    while plain.native.valid():
        key = plain.native.key()
        if key < keys.start:
            return
        yield key, plain.native.value()
        plain.native.prev()
    plain.native.status()


def _forwards(items: Cursor, plain: Cursor, keys: KeyRange) -> Iterator[tuple[bytes, bytes]]:
    """Iterate over `items()` in chunks, then use `plain` to tell the range's end from damage."""
    size = CHUNK_FIRST
    chunk: list[tuple[bytes, bytes]] = []
    while True:
        if items.native is CLOSED:
            raise EngineClosed("used after close()")
        before, chunk = chunk, list(islice(items.native, size))
        for pair in chunk:
            if items.native is CLOSED:
                raise EngineClosed("used after close()")
            yield pair
        if len(chunk) < size:
            break
        size = min(2 * size, CHUNK_MAX)
    yield from _rest(plain, keys, chunk or before)


def _translated(pairs: Iterator[tuple[bytes, bytes]], directory: Path) -> Iterator[tuple[bytes, bytes]]:
    try:
        yield from pairs
    except Exception as error:  # noqa: BLE001 - rocksdict raises plain Exception
        fail(error, directory)


TABLE_FORMAT_VERSION: Final = 5
BACKGROUND_JOBS: Final = 4
OPEN_TABLES_MAX: Final = 1_024
"""Tables kept open; this limits the descriptors of a shard however much it stores. Fewer where few are allowed."""
FILES_BESIDE_TABLES: Final = 32
"""Files that a database opens besides its tables: logs, manifests, its folder, and output of flushes
and compactions.
"""
_COMPRESSION: Final = {
    Compression.NONE: rocksdict.DBCompressionType.none,
    Compression.LZ4: rocksdict.DBCompressionType.lz4,
    Compression.ZSTD: rocksdict.DBCompressionType.zstd,
}

SLOW_DOWN_TABLES: Final = 20
STOP_TABLES: Final = 36
"""RocksDB's own defaults: numbers of fresh tables at which it slows writes down, and stops them."""

FILES_TO_FLUSH: Final = 8
"""Files that a flush opens besides a table for each family: a log, a manifest, folders, and twice as
many in reserve.
"""
LOOKS_PER_MEMTABLE: Final = 4

BACKGROUND_ERRORS: Final = "rocksdb.background-errors"


def _native_options(options: FamilyOptions) -> Any:
    native = rocksdict.Options(raw_mode=True)
    native.set_write_buffer_size(options.memtable_bytes)
    native.set_max_write_buffer_number(options.memtables_max)
    native.set_level_zero_file_num_compaction_trigger(options.level_zero_tables)
    native.set_target_file_size_base(options.target_file_bytes)
    native.set_compression_type(_COMPRESSION[options.compression]())
    native.set_bottommost_compression_type(_COMPRESSION[options.bottommost_compression]())
    if options.compaction_style is CompactionStyle.UNIVERSAL:
        native.set_compaction_style(rocksdict.DBCompactionStyle.universal())
        universal = rocksdict.UniversalCompactOptions()
        # Merge generously and allow a quarter of dead space, as RocketMQ does for its queues.
        universal.size_ratio = 100
        universal.max_size_amplification_percent = 25
        native.set_universal_compaction_options(universal)
    else:
        native.set_compaction_style(rocksdict.DBCompactionStyle.level())
    if options.memtable_filter_share:
        native.set_memtable_whole_key_filtering(whole_key_filter=True)
        native.set_memtable_prefix_bloom_ratio(options.memtable_filter_share)
    table = rocksdict.BlockBasedOptions()
    table.set_format_version(TABLE_FORMAT_VERSION)
    table.set_block_size(options.block_bytes)
    table.set_index_type(rocksdict.BlockBasedIndexType.two_level_index_search())
    if options.bloom_bits_per_key:
        table.set_bloom_filter(options.bloom_bits_per_key, block_based=False)
        table.set_partition_filters(True)
    if options.block_cache_bytes:
        # 0: the sizes of blocks are unknown
        table.set_block_cache(rocksdict.Cache.new_hyper_clock_cache(options.block_cache_bytes, 0))
        table.set_cache_index_and_filter_blocks(v=True)
        table.set_pin_l0_filter_and_index_blocks_in_cache(v=True)
    else:
        table.disable_cache()
    native.set_block_based_table_factory(table)
    return native


def _database_options(default: FamilyOptions, *, create: bool) -> Any:
    native = _native_options(default)
    native.create_if_missing(create)
    native.create_missing_column_families(create)
    native.set_atomic_flush(atomic_flush=True)
    native.set_paranoid_checks(enabled=True)
    native.set_max_background_jobs(BACKGROUND_JOBS)
    native.set_max_open_files(descriptor_share(OPEN_TABLES_MAX))
    # RocksDB starts this many threads for each family, even to open no table. With a limit of open files an open reads
    # at most 16 tables of a family: 16 threads, the default, cost more than they save.
    native.set_max_file_opening_threads(1)
    native.set_bytes_per_sync(MIB)
    native.set_keep_log_file_num(5)
    native.set_max_log_file_size(16 * MIB)
    native.set_stats_dump_period_sec(0)
    return native


def _write_options(*, sync: bool, write_ahead_log: bool) -> Any:
    native: Any = rocksdict.WriteOptions()
    native.sync = sync
    native.disable_wal = not write_ahead_log
    return native


def list_families(path: Path) -> list[str]:
    """Return the names of the families of an existing database, `default` first. Leaves no trace.

    Raises EngineMissing or EngineCorrupt.
    """
    require_database(path)
    check_manifest(path)  # with some damaged ones RocksDB never gets to the end
    try:
        names: list[str] = rocksdict.Rdict.list_cf(str(path))
    except Exception as error:  # noqa: BLE001 - rocksdict raises plain Exception
        fail(error, path)
    return names


def write_table(path: Path, pairs: Iterable[tuple[bytes, bytes]], options: FamilyOptions) -> int:
    """Make a table file for `RocksEngine.ingest` without an open database, as `KeyValueEngine.write_table` does."""
    count = 0
    try:
        writer = rocksdict.SstFileWriter(_native_options(options))
        writer.open(str(path))
        for key, value in pairs:
            writer[key] = value
            count += 1
        writer.finish()
    except Exception as error:  # noqa: BLE001 - rocksdict raises plain Exception
        fail(error)
    return count


class RocksEngine:
    """A RocksDB engine implements `kv.engine.KeyValueEngine`. Only `open` makes one."""

    def __init__(
        self,
        database: Any,
        directory: Path,
        families: Mapping[str, FamilyOptions],
        *,
        read_only: bool,
        write_ahead_log: bool,
        view: TemporaryDirectory[str] | None,
    ) -> None:
        self._database = database
        self._directory = directory
        self._options = dict(families)
        self._flushes_at_close = not read_only and not write_ahead_log
        self._view = view
        self.unread_changes: Sequence[str] = ()
        """The parts of the write-ahead log that could not be read when the database was opened, in RocksDB's words."""
        self._compacting = Lock()
        self._is_cancelled = False
        self._cursors: WeakSet[Cursor] = WeakSet()
        self._snapshots: WeakSet[RocksSnapshot] = WeakSet()
        self._families = {
            name: RocksFamily(
                name,
                database.get_column_family(name),
                database.get_column_family_handle(name),
                rocksdict.ReadOptions,
                self._cursors,
                directory=directory,
                later=LaterPuts(partial(self._store_later, name)) if options.later_puts else None,
            )
            for name, options in families.items()
        }
        self._flush_files = len(families) + FILES_TO_FLUSH
        self._looks_each_bytes = min(each.memtable_bytes for each in families.values()) // LOOKS_PER_MEMTABLE
        self._written_bytes = 0
        """Bytes written since the last check whether a flush finds descriptors: RocksDB itself flushes
        a full memtable.
        """
        self._write_options = _write_options(sync=False, write_ahead_log=write_ahead_log)
        self._sync_options = _write_options(sync=True, write_ahead_log=write_ahead_log)

    @classmethod
    def open(
        cls,
        path: Path,
        families: Mapping[str, FamilyOptions],
        *,
        create: bool,
        read_only: bool = False,
        write_ahead_log: bool,
    ) -> RocksEngine:
        """Open the database in `path`.

        With `create` a missing database is made, and missing families. An open for writing must name all families of
        the database; one for reading may name some. An open for reading takes no lock, makes no file in `path`, and
        sees what was written up to now, including the write-ahead log.

        `close()` without a write-ahead log flushes the families in the order of `families`.

        Raises EngineMissing, EngineLocked, EngineCorrupt; KvError for families that do not fit.
        """
        if create and read_only:
            raise ValueError("a read-only open creates nothing")
        make = create and not holds_database(path)
        view: TemporaryDirectory[str] | None = None
        if make:
            path.mkdir(0o700, parents=True, exist_ok=True)
        else:
            require_database(path)
            check_manifest(path)
            check_write_ahead_logs(path)
        if read_only:
            view = reading_view(path)
            access = rocksdict.AccessType.read_only(error_if_log_file_exist=False)
        else:
            access = rocksdict.AccessType.read_write()
        options = _database_options(families.get(DEFAULT_FAMILY, FamilyOptions()), create=make)
        options.create_missing_column_families(create)
        try:
            database = rocksdict.Rdict(
                view.name if view else str(path),
                options=options,
                column_families={name: _native_options(each) for name, each in families.items()},
                access_type=access,
            )
        except Exception as error:  # noqa: BLE001 - rocksdict raises plain Exception
            if view is not None:
                view.cleanup()
            fail(error, path)
        engine = cls(database, path, families, read_only=read_only, write_ahead_log=write_ahead_log, view=view)
        if write_ahead_log and not make and not read_only:
            engine.unread_changes = unread_changes(path)
        return engine

    def family(self, name: str) -> RocksFamily:
        self._require_open()
        return self._families[name]

    def batch(self) -> RocksBatch:
        self._require_open()
        return RocksBatch(rocksdict.WriteBatch(raw_mode=True))

    def write(self, batch: WriteBatch, *, sync: bool = False) -> None:
        if not isinstance(batch, RocksBatch):
            raise TypeError(f"a batch of another engine: {batch!r}")
        if batch.comes_after_later_puts:
            self.settle()
        try:
            native = batch.take()
            self._written_bytes += native.size_in_bytes()
            if self._written_bytes >= self._looks_each_bytes:
                self._require_descriptors()
            self._database.write(native, self._sync_options if sync else self._write_options)
        except Exception as error:  # noqa: BLE001 - rocksdict raises plain Exception
            fail(error, self._directory)

    def put_later(self, family: Family, pairs: list[tuple[bytes, bytes]]) -> None:
        self._require_open()
        own = own_family(family)
        if own.later is None:
            self._store_later(own.name, pairs)
        else:
            own.later.add(pairs)

    def settle(self, *, more_than: int = 0) -> None:
        for family in self._families.values():
            if family.later is not None:
                family.later.settle(more_than=more_than)

    def _store_later(self, name: str, pairs: list[tuple[bytes, bytes]]) -> None:
        batch = self.batch()
        batch.put_all(self._families[name], pairs)
        batch.comes_after_later_puts = False  # the batch consists of them
        self.write(batch)

    def _require_descriptors(self) -> None:
        """Raise EngineStarved when a flush could not open its files."""
        try:
            require_descriptors(self._flush_files)
        except OSError as error:
            raise EngineStarved(f"{self._directory}: no file can be opened: {error.strerror}") from error
        self._written_bytes = 0

    def flush(self, names: Sequence[str]) -> None:
        self._require_open()
        self._require_descriptors()
        for name in names:
            if (later := self._families[name].later) is not None:
                later.settle()
            try:
                self._families[name].native().flush(wait=True)
            except KeyError:
                raise
            except Exception as error:  # noqa: BLE001 - rocksdict raises plain Exception
                fail(error, self._directory)

    def snapshot(self) -> RocksSnapshot:
        self._require_open()
        self.settle()
        try:
            # An iterator covers one family. The iterators of all families are of the same moment if no write came
            # between the first and the last; a write takes microseconds, so the loop is short.
            while True:
                before = self._database.latest_sequence_number()
                iterators = {name: family.native().iter() for name, family in self._families.items()}
                if self._database.latest_sequence_number() == before:
                    break
        except Exception as error:  # noqa: BLE001 - rocksdict raises plain Exception
            fail(error, self._directory)
        snapshot = RocksSnapshot(iterators)
        self._snapshots.add(snapshot)
        return snapshot

    def compact(self, family: Family, keys: KeyRange) -> None:
        options = rocksdict.CompactOptions()
        options.set_bottommost_level_compaction(rocksdict.BottommostLevelCompaction.force())
        # otherwise no other compaction runs meanwhile, and fresh tables pile up until writes are held back
        options.set_exclusive_manual_compaction(v=False)
        own = own_family(family)
        # no local name for the native part: a frame that an error keeps alive would keep the database open
        with self._compacting:
            self._require_open()
            errors = own.native().property_int_value(BACKGROUND_ERRORS)
            try:
                own.native().compact_range(keys.start, keys.end, options)
            except Exception as error:  # noqa: BLE001 - rocksdict raises plain Exception
                fail(error, self._directory)
            if self._is_cancelled:
                raise EngineClosed("closed during a compaction")
            # the call itself reports no error
            if own.native().property_int_value(BACKGROUND_ERRORS) != errors:
                raise KvError(f"compaction of {family.name}: RocksDB met an error, see its LOG")

    def gather_tables(self, family: Family, count: int | None) -> None:
        self._require_open()
        if count is None:
            count, slow, stop = self._options[family.name].level_zero_tables, SLOW_DOWN_TABLES, STOP_TABLES
        else:
            slow, stop = SLOW_DOWN_TABLES + count, STOP_TABLES + count
        try:
            own_family(family).native().set_options(
                {
                    "level0_file_num_compaction_trigger": str(count),
                    "level0_slowdown_writes_trigger": str(slow),
                    "level0_stop_writes_trigger": str(stop),
                }
            )
        except Exception as error:  # noqa: BLE001 - rocksdict raises plain Exception
            fail(error, self._directory)

    def write_table(self, family: Family, path: Path, pairs: Iterable[tuple[bytes, bytes]]) -> int:
        self._require_open()
        return write_table(path, pairs, self._options[family.name])

    def ingest(self, family: Family, tables: Sequence[Path]) -> None:
        self._require_open()
        self.settle()
        try:
            own_family(family).native().ingest_external_file(
                [str(path) for path in tables], rocksdict.IngestExternalFileOptions()
            )
        except Exception as error:  # noqa: BLE001 - rocksdict raises plain Exception
            fail(error, self._directory)

    def checkpoint(self, directory: Path) -> None:
        # The native call keeps the GIL; as everything was flushed before, it only has to link files.
        self.flush(list(self._families))
        try:
            rocksdict.Checkpoint(self._database).create_checkpoint(str(directory))
        except Exception as error:  # noqa: BLE001 - rocksdict raises plain Exception
            fail(error, self._directory)

    def sequence(self) -> int:
        self._require_open()
        number: int = self._database.latest_sequence_number()
        return number

    def statistics(self) -> dict[str, int]:
        """Return the statistics that `kv.rocks_logs` names."""
        self._require_open()
        try:
            natives = {name: family.native() for name, family in self._families.items()}
            stats = dict(database_stats(next(iter(natives.values()))))
            for name, native in natives.items():
                stats.update((f"{name}.{stat}", value) for stat, value in family_stats(native))
        except Exception as error:  # noqa: BLE001 - rocksdict raises plain Exception
            fail(error, self._directory)
        return stats

    def close(self) -> None:
        """Close the engine. Repeatable. Afterwards the lock is free, whoever still holds families, iterators or
        snapshots.

        Raises KvError when the last flush fails; the database is closed and unlocked all the same.
        """
        if self._database is CLOSED:
            return
        try:
            if self._flushes_at_close:
                self.flush(list(self._families))
        finally:
            self._end_compaction()
            self._release()

    def _end_compaction(self) -> None:
        if not self._compacting.acquire(blocking=False):
            self._is_cancelled = True
            self._database.cancel_all_background(wait=True)  # this is final: the last flush is done
            self._compacting.acquire()
        self._compacting.release()

    def _release(self) -> None:
        """Release iterators, then snapshots, then families, then the database: each keeps the next one open."""
        for cursor in list(self._cursors):
            cursor.native = CLOSED
        for snapshot in list(self._snapshots):
            snapshot.close()
        for family in self._families.values():
            family.release()
        database, self._database = self._database, CLOSED
        try:
            database.close()
        except Exception as error:  # noqa: BLE001 - rocksdict raises plain Exception
            if not self._is_cancelled:  # closing flushes, too, and finds that cancelled
                fail(error, self._directory)
        finally:
            del database
            if self._view is not None:
                self._view.cleanup()

    def _require_open(self) -> None:
        if self._database is CLOSED:
            raise EngineClosed("used after close()")
