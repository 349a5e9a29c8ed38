"""A folder of backups has one sub-folder per backup, named by the time it was begun.

DEST/
  lock                          held while a backup is written
  20261121T083522.125Z/         one backup: a store directory, and
    backup-manifest.json        what it holds; written last: without it the backup is unfinished
  20261122T083522.009Z/         the next one; files that both hold are one file with two names
"""

from __future__ import annotations

import errno
import re
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

from quarry_mq.store.backup.manifest import MANIFEST_NAME
from quarry_mq.store.errors import NotAStore
from quarry_mq.store.fs import CopyingDisk, Disk
from quarry_mq.store.layout.paths import StorePaths

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
