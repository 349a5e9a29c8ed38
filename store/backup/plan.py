"""The module decides which files of a store go into a backup, where they come from, and how much of each."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

from quarry_mq.kv import is_scratch, is_table
from quarry_mq.store.backup.manifest import COMMIT_LOG, OF_THE_RUNNING
from quarry_mq.store.errors import NotAStore, StoreUnusable
from quarry_mq.store.fs import DirectoryEntry, Disk
from quarry_mq.store.layout.kind import DATABASE_MARKER
from quarry_mq.store.layout.paths import StorePaths, segment_name
from quarry_mq.store.offsets import PhysicalOffset

TEMPORARY: Final = ".tmp"
"""The suffix of a file that is about to replace another one: a live broker may have removed it soon after."""
_OF_THE_LIVE: Final = frozenset(
    {"abort", "checkpoint", "quarry", "index", "consumequeue", "consumequeue_rocksdb", "held_rocksdb"}
)
"""Names that a running broker writes. Its databases and its checkpoint come from the backup point; file queues, the
index and the pending messages are rebuilt from the log.
"""


class PlannedFile(NamedTuple):
    """A planned file consists of `length` bytes of `source`, then zeros up to `size`.

    `path` is relative to the store. A `frozen` file is complete and will never be written again.
    """

    source: Path
    path: str
    length: int
    size: int
    frozen: bool


class BackupPlan(NamedTuple):
    """The plan says what is to be backed up. Everything that the store has below `log_end` is in `files`."""

    files: list[PlannedFile]
    live: bool
    log_begin: PhysicalOffset
    log_end: PhysicalOffset
    segment_size: int


@dataclass(frozen=True, slots=True, kw_only=True)
class BackupPoint:
    """A backup point is one moment of a live broker's store: copies of its databases in a folder, and the log up to
    `log_end`.

    The folder holds `quarry/`, the database of consume queues under the name it has in the store, and `checkpoint`.
    Everything the databases refer to lies below `log_end`, which is durable.
    """

    name: str
    root: Path
    log_begin: PhysicalOffset
    log_end: PhysicalOffset
    segment_size: int

    @property
    def directory(self) -> Path:
        return StorePaths(self.root).backup_points / self.name


def plan_offline(
    disk: Disk, root: Path, *, bases: list[PhysicalOffset], segment_size: int, frozen_below: PhysicalOffset
) -> list[PlannedFile]:
    """Plan all files of a stopped store: a restart of the copy does what a restart of the store would do.

    Segments that end at or below `frozen_below` may be linked.
    """
    log = [
        _segment(root, base, segment_size, segment_size, frozen=base + segment_size <= frozen_below) for base in bases
    ]
    _require_plain(disk, root, log)
    return [*log, *_rest(disk, root, frozenset({COMMIT_LOG}))]


def plan_live(disk: Disk, point: BackupPoint) -> BackupPlan:
    """Plan the log of a live store up to the point, the point's databases, and the files that the broker does not
    write.

    Raises NotAStore when the point's folder cannot be seen from here.
    """
    if not disk.exists(point.directory):
        raise NotAStore(
            point.directory, "the broker's store is not on this machine: run the backup where the broker runs"
        )
    size, begin, end = point.segment_size, point.log_begin, point.log_end
    log = []
    for base in range(begin, max(end, begin + 1), size):
        length = min(size, end - base)
        if length == 0 and not disk.exists(StorePaths(point.root).commit_log / segment_name(PhysicalOffset(base))):
            break  # nothing was ever sent to the store
        log.append(_segment(point.root, PhysicalOffset(base), length, size, frozen=length == size))
    _require_plain(disk, point.root, log)
    rest = _rest(disk, point.root, _OF_THE_LIVE | {COMMIT_LOG})
    files = [*log, *rest, *_rest(disk, point.directory, frozenset())]
    return BackupPlan(files, live=True, log_begin=begin, log_end=end, segment_size=size)


def frozen_below(data_ends: list[tuple[PhysicalOffset, int]], durable_up_to: PhysicalOffset | None) -> PhysicalOffset:
    """Return the offset below which the segments of a stopped broker will never be written again.

    `data_ends`: base and data end of each segment. A start may cut what was not known to be durable; where no durable
    offset was written down, the last two segments with data are left out.
    """
    with_data = [base for base, data_end in data_ends if data_end > 0]
    last = with_data[-1] if with_data else PhysicalOffset(0)
    if durable_up_to is not None:
        return min(durable_up_to, last)
    return with_data[-2] if len(with_data) > 1 else PhysicalOffset(0)


def _segment(root: Path, base: PhysicalOffset, length: int, size: int, *, frozen: bool) -> PlannedFile:
    source = StorePaths(root).commit_log / segment_name(base)
    return PlannedFile(source, f"{COMMIT_LOG}/{source.name}", length, size, frozen)


def _require_plain(disk: Disk, root: Path, segments: Sequence[PlannedFile]) -> None:
    """Raise StoreUnusable if the log, a segment or the folder of points is a link."""
    for folder in (root, StorePaths(root).commit_log, StorePaths(root).backup_points):
        names = {each.source.name for each in segments} | {COMMIT_LOG, StorePaths(root).backup_points.name}
        for entry in disk.list_directory(folder):
            if folder != root or entry.name in names:
                _require_itself(folder / entry.name, entry)


def _require_itself(path: Path, entry: DirectoryEntry) -> None:
    """Raise StoreUnusable for a link, which may lead out of the store, and for anything else that is no file."""
    if not entry.is_plain:
        raise StoreUnusable(path, "not a regular file; a backup contains only files of the store itself")


def _rest(disk: Disk, root: Path, left_out: frozenset[str]) -> Iterator[PlannedFile]:
    for entry in disk.list_directory(root):
        if entry.name in OF_THE_RUNNING or entry.name in left_out or entry.name.endswith(TEMPORARY):
            continue
        _require_itself(root / entry.name, entry)
        if entry.is_directory:
            yield from _folder(disk, root / entry.name, entry.name)
        else:
            yield PlannedFile(root / entry.name, entry.name, entry.size, entry.size, frozen=False)


def _folder(disk: Disk, folder: Path, path: str) -> Iterator[PlannedFile]:
    """Yield all files below the folder, except files of a database that opening it makes again."""
    entries = disk.list_directory(folder)
    is_database = any(entry.name == DATABASE_MARKER for entry in entries)
    for entry in entries:
        source, below = folder / entry.name, f"{path}/{entry.name}"
        _require_itself(source, entry)
        if entry.is_directory:
            yield from _folder(disk, source, below)
        elif not (is_database and is_scratch(entry.name)):
            frozen = is_database and is_table(entry.name)
            yield PlannedFile(source, below, entry.size, entry.size, frozen=frozen)
