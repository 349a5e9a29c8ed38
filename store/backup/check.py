"""The module checks whether a backup is as it was written."""

from __future__ import annotations

from pathlib import Path

from quarry_mq.protocol.progress import Progress, ReportProgress
from quarry_mq.store.backup.manifest import Manifest
from quarry_mq.store.fs import CopyingDisk


def _first_link(disk: CopyingDisk, directory: Path, path: str) -> Path | None:
    """Return the first part of the way from the backup to the file that is a link."""
    place = directory
    for part in path.split("/"):
        place = place / part
        if disk.is_link(place):
            return place
    return None


def damaged_files(disk: CopyingDisk, directory: Path, manifest: Manifest, report: ReportProgress) -> list[str]:
    """Return in words what is wrong with which file; empty when all files have the content they were backed up with."""
    total = sum(each.size for each in manifest.files)
    done = 0
    wrong = []
    for each in manifest.files:
        report(Progress("checking the backup", done, total))
        path = directory / each.path
        done += each.size
        if (link := _first_link(disk, directory, each.path)) is not None:
            wrong.append(f"{link}: this is a link; a backup contains only regular files")
            continue
        if disk.exists(path) and not disk.is_plain_file(path):
            wrong.append(f"{path}: no file")
            continue
        if not disk.exists(path):
            wrong.append(f"{path}: missing")
            continue
        size = disk.file_size(path)
        if size != each.size:
            wrong.append(f"{path}: {size} bytes, expected {each.size}")
            continue
        try:
            crc = disk.checksum(path)
        except OSError as error:
            wrong.append(f"{path}: cannot be read: {error.strerror or error}")
            continue
        if crc != each.crc32:
            wrong.append(f"{path}: the content changed (CRC-32 {crc:08x}, expected {each.crc32:08x})")
    report(Progress("checking the backup", total, total))
    return wrong
