"""The module makes a store from a backup: it checks the backup, copies it aside, and moves it into place at the end."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from quarry_mq.protocol.clock import Progress, ReportProgress
from quarry_mq.store.backup.manifest import BackupFile, Manifest, damaged_files, read_manifest
from quarry_mq.store.backup.plan import links, newest_backup
from quarry_mq.store.errors import NotAStore, StoreDamaged, StoreLocked
from quarry_mq.store.fs import CopyingDisk, DiskLock
from quarry_mq.store.layout.paths import StorePaths

DAMAGED_NAMED_MAX: Final = 20
_MAY_LIE_THERE: Final = frozenset({"lock", "lost+found", ".snapshot", "tls"})
"""Names that may be in the target: a refused attempt may leave an empty lock file, fresh volumes hold the next two, and
the certificate, which no backup has, may stay.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class RestoreReport:
    source: Path
    root: Path
    manifest: Manifest
    copied_bytes: int
    linked_bytes: int
    set_aside: Path | None
    """The place of the store that was at the target; None for an empty target."""


def restore(
    disk: CopyingDisk,
    source: Path,
    root: Path,
    *,
    report: ReportProgress,
    may_link: bool = False,
    aside: Path | None = None,
) -> RestoreReport:
    """Make a store at `root` from the backup `source`, or from the newest one in the folder `source`.

    The backup is checked before anything is written. A restore that is killed leaves nothing that opens: files lie in
    `root/restoring/` until all are there and durable, and no store opens while that folder exists.

    `may_link`: files that no broker ever writes get a second name instead of a copy, where the file system allows it.
    `aside`: where what is at `root` is moved first, the remains of a killed restore, too. `root` is no link then.

    Raises NotAStore when there is no finished backup or `root` is not empty, StoreDamaged naming what is damaged or
    missing, StoreLocked when a broker runs there, OSError.
    """
    source, manifest = check_restore(disk, source, root, report=report, sets_aside=aside is not None)
    paths = StorePaths(root)
    if aside is not None and not _set_aside(disk, paths, aside):
        aside = None
    disk.make_directories(root)
    lock = _locked(paths.lock, disk.lock)
    try:
        _require_empty(disk, root)
        linked = _put_aside(disk, source, manifest, paths.restoring, report, may_link=may_link)
        _move_into_place(disk, paths)
    finally:
        lock.release()
    total = sum(each.size for each in manifest.files)
    return RestoreReport(
        source=source,
        root=root,
        manifest=manifest,
        copied_bytes=total - linked,
        linked_bytes=linked,
        set_aside=aside,
    )


def check_restore(
    disk: CopyingDisk, source: Path, root: Path, *, report: ReportProgress, sets_aside: bool = False
) -> tuple[Path, Manifest]:
    """Do the checks of `restore`, before anything is written: every byte of the backup that would be used, and the
    target.

    Raises as `restore` does.
    """
    source = newest_backup(disk, source)
    manifest = read_manifest(disk, source)
    if sets_aside:
        _require_movable(disk, source, root)
    else:
        _require_empty(disk, root)
    wrong = damaged_files(disk, source, manifest, report)
    if wrong:
        more = f"; and {len(wrong) - DAMAGED_NAMED_MAX} more" if len(wrong) > DAMAGED_NAMED_MAX else ""
        raise StoreDamaged(
            source, f"the backup is damaged, nothing was restored: {'; '.join(wrong[:DAMAGED_NAMED_MAX])}{more}"
        )
    return source, manifest


def _locked(lock: Path, take: Callable[[Path], DiskLock]) -> DiskLock:
    """Take the lock of a store, or share it. Raises StoreLocked."""
    try:
        return take(lock)
    except BlockingIOError as error:
        raise StoreLocked(lock, "a broker is running on this directory") from error


def _set_aside(disk: CopyingDisk, paths: StorePaths, aside: Path) -> bool:
    """Move a store to another name, without the self-signed certificate, which clients know.

    Returns False if there was nothing to move. Raises StoreLocked, OSError.
    """
    if not disk.exists(paths.root) or all(entry.name in _MAY_LIE_THERE for entry in disk.list_directory(paths.root)):
        return False
    lock = _locked(paths.lock, disk.lock)
    try:
        disk.move(paths.root, aside)
    finally:
        lock.release()
    if disk.exists(StorePaths(aside).tls):
        disk.make_directories(paths.root)
        disk.move(StorePaths(aside).tls, paths.tls)
    return True


def _require_movable(disk: CopyingDisk, source: Path, root: Path) -> None:
    """Check that a directory may get another name. Raises NotAStore, StoreLocked."""
    if source.resolve().is_relative_to(root.resolve()):
        raise NotAStore(root, f"the backup {source} is in this directory; move the backup to another place first")
    _require_own_lock(disk, root)
    lock = StorePaths(root).lock
    if disk.exists(lock):
        _locked(lock, disk.lock_shared).release()


def _require_own_lock(disk: CopyingDisk, root: Path) -> None:
    """Check that locking a directory writes into no other one. Raises NotAStore."""
    lock = StorePaths(root).lock
    if disk.is_link(lock):
        raise NotAStore(lock, "this is a link; remove the link first")


def _require_empty(disk: CopyingDisk, root: Path) -> None:
    try:
        found = [entry.name for entry in disk.list_directory(root) if entry.name not in _MAY_LIE_THERE]
    except NotADirectoryError:
        raise NotAStore(root, "a file, not a directory") from None
    _require_own_lock(disk, root)
    if "restoring" in found:
        raise NotAStore(root, "an earlier restore did not finish here: empty the directory first")
    if found:
        raise NotAStore(root, f"not empty: it contains {found[0]!r}; a store is restored into an empty directory")


def _put_aside(
    disk: CopyingDisk, source: Path, manifest: Manifest, aside: Path, report: ReportProgress, *, may_link: bool
) -> int:
    """Put all files into `aside`, durably. Returns how many bytes were linked and not copied."""
    total = sum(each.size for each in manifest.files)
    done = linked = 0
    disk.make_directories(aside)
    folders = {aside}
    for each in manifest.files:
        report(Progress("restoring", done, total))
        target = aside / each.path
        if target.parent not in folders:
            disk.make_directories(target.parent)
            folders.add(target.parent)
        if may_link and each.frozen and links(disk, source / each.path, target):
            linked += each.size
        else:
            _copy(disk, source / each.path, target, each)
        done += each.size
    for folder in sorted(folders):
        disk.sync_directory(folder)
    report(Progress("restoring", total, total))
    return linked


def _copy(disk: CopyingDisk, source: Path, target: Path, file: BackupFile) -> None:
    if disk.copy_file(source, target, length=file.size, size=file.size) != file.crc32:
        raise StoreDamaged(source, "the content changed after the check; the restore did not finish")


def _move_into_place(disk: CopyingDisk, paths: StorePaths) -> None:
    """Move the files into place, the commit log last: without it, another broker also sees that this is no store."""
    names = [entry.name for entry in disk.list_directory(paths.restoring)]
    log = paths.commit_log.name
    for name in sorted(names, key=lambda each: (each == log, each)):
        disk.rename(paths.restoring / name, paths.root / name)
    disk.remove_directory(paths.restoring)
