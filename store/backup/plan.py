"""The plan of a backup: which files of a store go into it, where they come from, and how much of each.

A stopped store is planned here as a whole.

A folder of backups has one sub-folder per backup, named by the time it was begun.

    DEST/
      lock                          held while a backup is written
      20261121T083522.125Z/         one backup: a store directory, and
        backup-manifest.json        what it holds; written last: without it the backup is unfinished
      20261122T083522.009Z/         the next one; files that both hold are one file with two names
"""

from __future__ import annotations

import errno
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final, NamedTuple

from quarry_mq.kv import is_scratch, is_table
from quarry_mq.store.backup.manifest import COMMIT_LOG, MANIFEST_NAME, OF_THE_RUNNING
from quarry_mq.store.errors import NotAStore, StoreUnusable
from quarry_mq.store.fs import CopyingDisk, DirectoryEntry, Disk
from quarry_mq.store.layout.kind import DATABASE_MARKER, StoreKind
from quarry_mq.store.layout.paths import StorePaths, segment_name
from quarry_mq.store.message import PhysicalOffset
from quarry_mq.store.offline import OfflineStore
from quarry_mq.store.record import Blank, StoredMessage
from quarry_mq.store.state.identity import StoreIdentity

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


_NAME: Final = re.compile(r"[0-9]{8}T[0-9]{6}\.[0-9]{3}Z")
_FORMAT: Final = "%Y%m%dT%H%M%S.%f"
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


def backup_name(wall_ms: int, existing: list[str]) -> str:
    """Return a name that sorts after all existing ones, whatever the clock says: names tell which
    backup is the newest.
    """
    if existing:
        newest = datetime.strptime(existing[-1].removesuffix("Z"), _FORMAT).replace(tzinfo=UTC)
        wall_ms = max(wall_ms, (newest - _EPOCH) // timedelta(milliseconds=1) + 1)
    return (_EPOCH + timedelta(milliseconds=wall_ms)).strftime(_FORMAT)[:-3] + "Z"


def list_names(disk: Disk, folder: Path, *, links_too: bool = False) -> list[str]:
    """Return the names of all backups, also unfinished ones, oldest first. Links are no backups; `links_too` adds their
    names.
    """
    entries = [each for each in disk.list_directory(folder) if each.is_directory and _NAME.fullmatch(each.name)]
    return [each.name for each in entries if each.is_plain or links_too]


def is_finished(disk: Disk, directory: Path) -> bool:
    return disk.exists(directory / MANIFEST_NAME)


def newest_backup(disk: Disk, path: Path) -> Path:
    """Return `path` itself if it is a finished backup, else the newest finished one in the folder.

    Raises NotAStore when there is none.
    """
    if is_finished(disk, path):
        return path
    names = list_names(disk, path)
    for name in reversed(names):
        if is_finished(disk, path / name):
            return path / name
    raise NotAStore(path, f"contains {len(names)} unfinished backups" if names else "contains no backup")


def store_in(disk: Disk, path: Path) -> Path:
    """Return the store to read for a path: the newest finished backup if the path is a folder of backups."""
    if not disk.exists(StorePaths(path).commit_log) and list_names(disk, path):
        return newest_backup(disk, path)
    return path


CANNOT_LINK: Final = {errno.EXDEV, errno.EPERM, errno.EMLINK, errno.EOPNOTSUPP, errno.ENOSYS, errno.EACCES}
"""The errors for another file system, one without links, too many links, and a foreign file (protected_hardlinks)."""


def links(disk: CopyingDisk, source: Path, target: Path) -> bool:
    """Make `target` a second name of `source`; return False if it has to be copied instead. Raises OSError."""
    try:
        disk.link_file(source, target)
    except OSError as error:
        if error.errno not in CANNOT_LINK:
            raise
        return False
    return True


def plan_stopped(store: OfflineStore) -> BackupPlan:
    """Plan the backup of everything that the store holds. Raises what reading it raises."""
    segments = store.segments
    data_ends = [(base, store.disk.data_end(segments.path_of(base))) for base in segments.bases]
    durable = _durable_up_to(store)
    files = plan_offline(
        store.disk,
        store.paths.root,
        bases=segments.bases,
        segment_size=segments.segment_size,
        frozen_below=frozen_below(data_ends, durable),
    )
    with_data = [base for base, data_end in data_ends if data_end > 0]
    last = with_data[-1] if with_data else segments.minimum
    # an offset in the last segment where a record is known to end saves reading up to it
    start = durable if durable is not None and last <= durable < last + segments.segment_size else last
    return BackupPlan(
        files,
        live=False,
        log_begin=segments.minimum,
        log_end=_log_end(store, start),
        segment_size=segments.segment_size,
    )


def _durable_up_to(store: OfflineStore) -> PhysicalOffset | None:
    if store.found.kind is not StoreKind.QUARRY:
        return None
    return StoreIdentity(store.state_engine(), store.paths.quarry).flushed_up_to


def _log_end(store: OfflineStore, start: PhysicalOffset) -> PhysicalOffset:
    end = start
    for found in store.records(start):
        if not isinstance(found, StoredMessage | Blank):
            break
        end = PhysicalOffset(found.physical_offset + found.size)
    return end
