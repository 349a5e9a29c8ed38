"""The module writes a backup: files first, the manifest last. Files that an earlier backup holds are not written
again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from quarry_mq.protocol.clock import Clock, Progress, ReportProgress
from quarry_mq.store.backup.manifest import MANIFEST_NAME, BackupFile, Manifest, encode_manifest, read_manifest
from quarry_mq.store.backup.plan import BackupPlan, PlannedFile, backup_name, is_finished, links, list_names
from quarry_mq.store.errors import Busy, StoreDamaged, StoreUnusable
from quarry_mq.store.fs import CopyingDisk


@dataclass(frozen=True, slots=True, kw_only=True)
class BackupReport:
    """The report says what was written. All bytes of the backup are copied, linked or reused."""

    directory: Path
    manifest: Manifest
    copied_bytes: int
    linked_bytes: int
    """Bytes of files that the store and the backup share."""
    reused_bytes: int
    """Bytes of files that an earlier backup in the folder holds already."""
    remarks: list[str]
    """Sentences about earlier backups in the folder."""

    @property
    def bytes(self) -> int:
        return sum(each.size for each in self.manifest.files)


def write_backup(
    disk: CopyingDisk,
    plan: BackupPlan,
    folder: Path,
    *,
    clock: Clock,
    report: ReportProgress,
    may_link: bool = True,
    confirm: Callable[[], None] = lambda: None,
) -> BackupReport:
    """Write one backup into `folder`, durable when this returns. A killed backup leaves no manifest, and the next
    backup removes what there is. The store is only read.

    `may_link`: files that are never written again get a second name where the file system allows it. `confirm` is
    called when all is copied, and raises if the backup must not count. Raises Busy when another backup is being written
    there, OSError as the disk gives it.
    """
    disk.make_directories(folder)
    if disk.is_link(folder / "lock"):
        raise StoreUnusable(folder / "lock", "not a regular file; the first backup creates this file")
    try:
        lock = disk.lock(folder / "lock")
    except BlockingIOError as error:
        raise Busy(f"{folder}: another backup is being written there") from error
    try:
        names = list_names(disk, folder)
        remarks = _remove_unfinished(disk, folder, names)
        earlier = _newest(disk, folder, names, remarks)
        writer = _Writer(disk, earlier, report, may_link=may_link)
        created_ms = clock.wall_ms()
        name = backup_name(created_ms, list_names(disk, folder, links_too=True))
        files = tuple(writer.write(plan.files, folder / name))
        confirm()
        manifest = Manifest(
            name=name,
            created_ms=created_ms,
            live=plan.live,
            log_begin=plan.log_begin,
            log_end=plan.log_end,
            segment_size=plan.segment_size,
            files=files,
        )
        disk.replace_atomically(folder / name / MANIFEST_NAME, encode_manifest(manifest))
    finally:
        lock.release()
    return writer.told(folder / name, manifest, remarks)


def _remove_unfinished(disk: CopyingDisk, folder: Path, names: list[str]) -> list[str]:
    """Remove what killed backups left. No other process writes here: the folder is locked."""
    unfinished = [folder / name for name in names if not is_finished(disk, folder / name)]
    for path in unfinished:
        disk.remove_tree(path)
    return [f"{path}: an unfinished backup was removed" for path in unfinished]


def _newest(
    disk: CopyingDisk, folder: Path, names: list[str], remarks: list[str]
) -> tuple[Path, dict[str, BackupFile]] | None:
    """Return the newest finished backup with a sound manifest, and its files by path."""
    for name in reversed(names):
        if not is_finished(disk, folder / name):
            continue
        try:
            manifest = read_manifest(disk, folder / name)
        except StoreDamaged as error:
            remarks.append(f"{error}; this backup shares no files with it")
            continue
        return folder / name, {each.path: each for each in manifest.files}
    return None


class _Writer:
    """The writer puts planned files into one backup."""

    def __init__(
        self,
        disk: CopyingDisk,
        earlier: tuple[Path, dict[str, BackupFile]] | None,
        report: ReportProgress,
        *,
        may_link: bool,
    ) -> None:
        self._disk = disk
        self._earlier = earlier
        self._report = report
        self._may_link = may_link
        self.copied_bytes = self.linked_bytes = self.reused_bytes = 0

    def write(self, plan: Sequence[PlannedFile], directory: Path) -> list[BackupFile]:
        total = sum(each.size for each in plan)
        done = 0
        files = []
        self._disk.make_directories(directory)
        folders = {directory}
        for each in plan:
            self._report(Progress("backing up", done, total))
            target = directory / each.path
            if target.parent not in folders:
                self._disk.make_directories(target.parent)
                folders.add(target.parent)
            files.append(BackupFile(each.path, each.size, self._put(each, target), each.frozen))
            done += each.size
        for folder in sorted(folders):
            self._disk.sync_directory(folder)
        self._report(Progress("backing up", total, total))
        return files

    def told(self, directory: Path, manifest: Manifest, remarks: list[str]) -> BackupReport:
        return BackupReport(
            directory=directory,
            manifest=manifest,
            copied_bytes=self.copied_bytes,
            linked_bytes=self.linked_bytes,
            reused_bytes=self.reused_bytes,
            remarks=remarks,
        )

    def _put(self, file: PlannedFile, target: Path) -> int:
        """Make the file in the backup; return its CRC-32."""
        crc = self._reuse(file, target)
        if crc is None and file.frozen and self._may_link and links(self._disk, file.source, target):
            self.linked_bytes += file.size
            crc = self._disk.checksum(target)
        if crc is None:
            self.copied_bytes += file.length
            crc = self._disk.copy_file(file.source, target, length=file.length, size=file.size)
        return crc

    def _reuse(self, file: PlannedFile, target: Path) -> int | None:
        """Link a file that the earlier backup holds unchanged, and return its CRC-32; None if there is none.

        A frozen file that the earlier backup only linked is known to be unchanged without being read.
        """
        disk = self._disk
        known = self._earlier_copy(file)
        if known is None:
            return None
        path, recorded = known
        is_link = file.frozen and disk.is_same_file(file.source, path)
        same = self._may_link if is_link else disk.checksum(file.source) == recorded.crc32
        if not same or not links(disk, path, target):
            return None
        self.reused_bytes += file.size
        return recorded.crc32

    def _earlier_copy(self, file: PlannedFile) -> tuple[Path, BackupFile] | None:
        """Return an earlier copy of the same size. A segment that is being filled has none: it grows
        while it is read.
        """
        if self._earlier is None or file.length < file.size:
            return None
        directory, files = self._earlier
        known = files.get(file.path)
        path = directory / file.path
        if known is None or known.size != file.size or not self._disk.exists(path):
            return None
        return path, known
