"""List the files of the tiered index except the one being filled: where each is, and whether it is intact."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing
from threading import RLock
from typing import TypeVar

import structlog

from quarry_mq.store.errors import StoreDamaged
from quarry_mq.store.fs import Disk
from quarry_mq.store.index.key_files import Unread
from quarry_mq.store.index.tiered.chain_file import header_of
from quarry_mq.store.index.tiered.folders import STAGES_AFTER_FILLING, IndexFolders, Stage, TieredFile
from quarry_mq.store.index.tiered.layout import FileHeader, Kind
from quarry_mq.store.index.tiered.object_store.protocol import UploadNote

log = structlog.get_logger(__name__)

Value = TypeVar("Value")


class Catalog:
    """The list of full files. Any thread may read; `files` and the other mappings are never changed, but replaced."""

    def __init__(self, disk: Disk, folders: IndexFolders, *, keep_uploaded: bool) -> None:
        """List the files in the folders. Raises OSError."""
        self._disk = disk
        self._folders = folders
        self._keep_uploaded = keep_uploaded
        self.changing = RLock()
        """The lock of a caller that moves a file and enters it here: it is held for both."""
        files: dict[str, TieredFile] = {}
        damaged: dict[str, Unread] = {}
        for stage in STAGES_AFTER_FILLING:
            for name in folders.names(stage):
                self._admit(files, damaged, name, stage)
        for name in folders.damaged_names():
            if name in files:
                folders.remove_damaged(name)
            else:
                damaged[name] = Unread(name, "damaged; it will be rebuilt")
        for name in folders.names_between([*files, *damaged, *folders.names(Stage.FILLING)]):
            damaged[name] = Unread(name, "it is missing")
        self.files: Mapping[str, TieredFile] = dict(sorted(files.items()))
        """Intact files and doubtful ones, oldest first."""
        self.damaged: Mapping[str, Unread] = damaged
        """Files that are not read: their headers are unreadable, or they were set aside."""
        self.doubtful: Mapping[str, Unread] = {}
        """Files with a readable header, of which other bytes could not be read."""

    def _admit(self, files: dict[str, TieredFile], damaged: dict[str, Unread], name: str, stage: Stage) -> None:
        """Enter a file in a stage that it has reached durably: it leaves the stage before."""
        before = files.get(name)
        try:
            found = self._found(name, stage)
        except StoreDamaged as damage:
            log.error("a file of the key index is damaged", error=str(damage))
            if before is None:
                damaged[name] = Unread(name, str(damage))
            return
        if stage is Stage.COMPACTED and (before is not None or name in damaged):
            self._folders.clear_away(Stage.SEALED, name)
        if stage is Stage.UPLOADED and before is not None:
            found = found._replace(is_local=self._keep_uploaded)
            if not found.is_local:
                self._folders.clear_away(Stage.COMPACTED, name)
        damaged.pop(name, None)
        files[name] = found

    def _found(self, name: str, stage: Stage) -> TieredFile:
        """Return a file as it is in a stage. Raises StoreDamaged."""
        if stage is Stage.UPLOADED:
            note = self.note(name)
            return TieredFile(name, stage, note.header, is_local=False, object_name=note.object_name)
        kind = Kind.CHAINS if stage is Stage.SEALED else Kind.RUNS
        return TieredFile(name, stage, self._header(stage, name, kind), is_local=True)

    def _header(self, stage: Stage, name: str, kind: Kind) -> FileHeader:
        """Read the header of a file. Raises StoreDamaged."""
        path = self._folders.path(stage, name)
        with closing(self._disk.open_segment(path, writable=False)) as file:
            header = header_of(file)
            if header.kind is not kind or header.file_size != file.size:
                raise StoreDamaged(path, f"{header.kind} of {header.file_size} bytes, but it has {file.size}")
        return header

    def note(self, name: str) -> UploadNote:
        """Read the note of an uploaded file. Raises StoreDamaged."""
        path = self._folders.path(Stage.UPLOADED, name)
        try:
            return UploadNote.unpack(self._disk.read(path))
        except (ValueError, KeyError, TypeError) as error:
            raise StoreDamaged(path, f"not a valid note of an uploaded file: {error}") from error

    def enter(self, file: TieredFile) -> None:
        """Enter an intact file, which may have been in another stage until now."""
        with self.changing:
            self.leave_out(file.name)
            self.files = dict(sorted({**self.files, file.name: file}.items()))

    def leave_out(self, name: str) -> None:
        """Drop a file that no longer exists, or is being filled again."""
        with self.changing:
            self.files = _without(self.files, name)
            self.damaged = _without(self.damaged, name)
            self.doubtful = _without(self.doubtful, name)

    def set_aside(self, name: str) -> None:
        """Stop reading a damaged file, even if parts of it are still readable. Raises OSError."""
        with self.changing:
            damage = self.damaged.get(name) or self.doubtful.get(name)
            if damage is not None:
                self._folders.set_aside(name)
                self.leave_out(name)
                self.damaged = {**self.damaged, name: damage}

    def doubt(self, file: TieredFile, reason: str) -> None:
        """Mark a file that was partly unreadable: it does not go on to the next stage, and may be rebuilt."""
        with self.changing:
            if self.has(file) and file.name not in self.doubtful:
                log.error("a file of the key index is damaged", file=file.name, error=reason)
                self.doubtful = {**self.doubtful, file.name: Unread(file.name, reason)}

    def has(self, file: TieredFile) -> bool:
        """Return whether the file is unchanged since it was taken from `files`."""
        return self.files.get(file.name) is file

    def oldest(self, stage: Stage) -> TieredFile | None:
        """Return the oldest file in a stage that is not in doubt."""
        return next(
            (each for each in self.files.values() if each.stage is stage and each.name not in self.doubtful), None
        )


def _without(entries: Mapping[str, Value], name: str) -> dict[str, Value]:
    """Return a copy without an entry: searches may be using the original."""
    return {each: value for each, value in entries.items() if each != name}
