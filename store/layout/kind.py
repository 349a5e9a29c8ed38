"""The module tells what kind of store a directory is, before anything in it is opened, locked or changed.

| what lies in the directory                                        | kind                  |
|-------------------------------------------------------------------|-----------------------|
| nothing, or only what an unfinished first opening leaves          | NEW                   |
| `restoring/`                                                      | raises NotAStore      |
| `quarry/CURRENT`                                                  | QUARRY                |
| `commitlog/`, a RocksDB of consume queues, and file consume queues| ROCKETMQ_DOUBLE_WRITE |
| `commitlog/` and a RocksDB of consume queues                      | ROCKETMQ_ROCKSDB      |
| `commitlog/` otherwise                                            | ROCKETMQ_FILE         |
| anything else                                                     | raises NotAStore      |

The RocksDB of consume queues lies in `consumequeue/` (RocketMQ's default, beside the file queues) or in
`consumequeue_rocksdb/`; its `CURRENT` file tells in which (rmq#10174). A store whose queues were switched from files to
RocksDB at once looks like double write and needs the same treatment: entries that are missing in RocksDB are added from
the log.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Final

from quarry_mq.store.errors import NotAStore
from quarry_mq.store.fs import DirectoryEntry, Disk
from quarry_mq.store.layout.paths import StorePaths, parse_segment_name, parse_shard_name, shard_name

DATABASE_MARKER: Final = "CURRENT"
"""RocksDB's name for the file without which a directory is no database."""

IGNORED_NAMES: Final = frozenset({"lost+found", ".snapshot", "lock", "abort", "tls", "replication"})
"""Names that make no store: fresh volumes hold the first two, a first opening that was killed leaves the next two, and
the certificate and the role of a replica may stay when a store is replaced.
"""


class StoreKind(Enum):
    """The kind is what a store directory was found to be; the value is its name in reports and in `quarry/`."""

    NEW = "new"
    QUARRY = "quarry"
    ROCKETMQ_ROCKSDB = "rocketmq-rocksdb"
    ROCKETMQ_FILE = "rocketmq-file"
    ROCKETMQ_DOUBLE_WRITE = "rocketmq-double-write"


@dataclass(frozen=True, slots=True)
class FoundStore:
    """A found store is the answer of `inspect_store` about one directory.

    `layout` is the kind that the directory would have without `quarry/`: after a first opening that was interrupted it
    still says what the store was. `rocksdb_directory` is where consume queues lie, or where they are to be made when
    `has_rocksdb` is false. `has_abort`: the last stop was unclean.
    """

    kind: StoreKind
    layout: StoreKind
    rocksdb_directory: Path
    has_rocksdb: bool
    has_file_queues: bool
    has_abort: bool


def inspect_store(disk: Disk, root: Path) -> FoundStore:
    """Return what kind of store `root` is; nothing is changed. Raises NotAStore naming the file or
    directory at fault.
    """
    paths = StorePaths(root)
    entries = {entry.name: entry for entry in _list(disk, root)}
    if paths.restoring.name in entries:
        raise NotAStore(paths.restoring, "a restore did not finish here: empty the directory and restore again")
    for path in (
        paths.commit_log,
        paths.consume_queue,
        paths.consume_queue_rocksdb,
        paths.quarry,
        paths.pending_messages,
    ):
        if path.name in entries and not entries[path.name].is_directory:
            raise NotAStore(path, "a file where a store has a directory")
    rocksdb_directory, has_rocksdb = _rocksdb_directory(disk, paths)
    has_file_queues = _has_file_queues(disk, paths)
    is_quarry = _exists(disk, paths.quarry / DATABASE_MARKER)
    has_segments = _has_segments(disk, paths)
    if _is_new(disk, paths, entries, has_segments=has_segments):
        layout = StoreKind.NEW
    elif paths.commit_log.name not in entries and not is_quarry:
        raise NotAStore(root, _why_no_store(disk, root, entries))
    elif has_rocksdb:
        layout = StoreKind.ROCKETMQ_DOUBLE_WRITE if has_file_queues else StoreKind.ROCKETMQ_ROCKSDB
    else:
        layout = StoreKind.ROCKETMQ_FILE
    return FoundStore(
        kind=StoreKind.QUARRY if is_quarry else layout,
        layout=layout,
        rocksdb_directory=rocksdb_directory,
        has_rocksdb=has_rocksdb,
        has_file_queues=has_file_queues,
        has_abort=paths.abort.name in entries,
    )


def _list(disk: Disk, path: Path) -> list[DirectoryEntry]:
    try:
        return disk.list_directory(path)
    except NotADirectoryError as cause:
        raise NotAStore(path, "a file, not a directory") from cause
    except OSError as cause:
        raise NotAStore(path, f"cannot be read: {cause.strerror or cause}") from cause


def _exists(disk: Disk, path: Path) -> bool:
    try:
        return disk.exists(path)
    except OSError as cause:
        raise NotAStore(path, f"cannot be read: {cause.strerror or cause}") from cause


def _rocksdb_directory(disk: Disk, paths: StorePaths) -> tuple[Path, bool]:
    for path in (paths.consume_queue, paths.consume_queue_rocksdb):
        if _exists(disk, path / DATABASE_MARKER):
            return path, True
    return paths.consume_queue_rocksdb, False


def _has_file_queues(disk: Disk, paths: StorePaths) -> bool:
    """Return whether some `consumequeue/<topic>/<number>/` holds a segment; stop at the first one found."""
    for topic in _directories(disk, paths.consume_queue):
        for queue in _directories(disk, topic):
            if queue.name.isdecimal() and _holds_segment(_list(disk, queue)):
                return True
    return False


def _directories(disk: Disk, path: Path) -> list[Path]:
    return [path / entry.name for entry in _list(disk, path) if entry.is_directory]


def _holds_segment(entries: Sequence[DirectoryEntry]) -> bool:
    return any(not entry.is_directory and parse_segment_name(entry.name) is not None for entry in entries)


def _has_segments(disk: Disk, paths: StorePaths) -> bool:
    """Return whether `commitlog/` holds segments. Raises NotAStore if it is foreign: it holds files, but no segment."""
    entries = _list(disk, paths.commit_log)
    if _holds_segment(entries):
        return True
    strangers = [entry.name for entry in entries if not entry.is_directory and not entry.name.startswith(".")]
    if strangers:
        raise NotAStore(paths.commit_log / strangers[0], "no commit log segment (their names have 20 digits)")
    return False


def _is_new(disk: Disk, paths: StorePaths, entries: dict[str, DirectoryEntry], *, has_segments: bool) -> bool:
    """Return whether there is nothing but the lock, Quarry's own database and empty directories of a store."""
    own = (paths.commit_log, paths.consume_queue_rocksdb, paths.quarry, paths.pending_messages)
    if has_segments or entries.keys() - IGNORED_NAMES - {path.name for path in own}:
        return False
    return not _exists(disk, paths.consume_queue_rocksdb / DATABASE_MARKER)


def _why_no_store(disk: Disk, root: Path, entries: dict[str, DirectoryEntry]) -> str:
    if _holds_segment(list(entries.values())):
        return f"not a store but its segments: did you mean {root.parent}?"
    if _exists(disk, StorePaths(root / "store").commit_log):
        return f"contains no commitlog/: did you mean {root / 'store'}?"
    shards = [number for name in entries if (number := parse_shard_name(name)) is not None]
    if shards:
        first = root / shard_name(min(shards))
        return (
            f"contains the stores of shards, {first} and others: start them with --shards {max(shards) + 1}, or take "
            "one"
        )
    return f"holds {min(entries)!r} but no commitlog/: this directory is neither a store nor empty"
