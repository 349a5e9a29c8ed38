"""The states of index files, each a folder: what a crash leaves is told by where a file lies.

    filling/     chains, the newest file; added to
    sealed/      chains, full and durable
    compacted/   runs, compared with the chains they were made from
    uploaded/    a note of what lies in the object store, compared with what was sent
    damaged/     what is left of a damaged file, or its note: it is to be made anew
    rebuilding/  chains of a damaged file, half made
    compacting/  runs, half made
    removing/    named as objects that are no longer wanted in the object store
    id           what the names of this index's objects begin with, so that no other index has the same

A file keeps its name, 20 digits, through all of them. It is in the next folder before it leaves the one before: of a
file that is in two the later one counts, but `damaged` never does. What is half made is removed at a start.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from enum import Enum
from pathlib import Path
from secrets import token_hex
from typing import Final, NamedTuple

from quarry_mq.store.fs import Disk
from quarry_mq.store.index.tiered.layout import FileHeader

NAME: Final = re.compile(r"[0-9]{20}", re.ASCII)


class Stage(Enum):
    """By folder, in the order in which a file goes through them."""

    FILLING = "filling"
    SEALED = "sealed"
    COMPACTED = "compacted"
    UPLOADED = "uploaded"


class TieredFile(NamedTuple):
    """A file of the index. One that is uploaded may be here, too (`is_local`)."""

    name: str
    stage: Stage
    header: FileHeader
    is_local: bool
    object_name: str = ""
    """Of one that is uploaded."""


STAGES_BEHIND_FILLING: Final = (Stage.SEALED, Stage.COMPACTED, Stage.UPLOADED)
DAMAGED: Final = "damaged"
REMOVING: Final = "removing"
ID: Final = "id"
ID_SIZE: Final = 8
OBJECT_NAME: Final = re.compile(rf"[0-9a-f]{{{2 * ID_SIZE}}}-[0-9]{{20}}", re.ASCII)
REBUILDING: Final = "rebuilding"
COMPACTING: Final = "compacting"


class IndexFolders:
    """Names and moves. Every change is durable when it returns. All raise OSError."""

    def __init__(self, disk: Disk, root: Path, *, writable: bool = True) -> None:
        """Makes the folders that are missing and finishes what a crash interrupted; not `writable`: changes nothing."""
        self._disk = disk
        self._root = root
        self._writable = writable
        if not writable:
            return
        for folder in (*(stage.value for stage in Stage), DAMAGED, REMOVING, REBUILDING, COMPACTING):
            disk.make_directories(root / folder)
            # a process that was killed may have left names that are not durable, and a start removes what they replace
            disk.sync_directory(root / folder)
        if not disk.exists(root / ID):
            disk.replace_atomically(root / ID, token_hex(ID_SIZE).encode())
        for folder in (REBUILDING, COMPACTING):
            for name in self._names(folder):
                disk.remove(root / folder / name)

    def path(self, stage: Stage, name: str) -> Path:
        return self._root / stage.value / name

    def object_name(self, name: str) -> str:
        """What a file of this index is called in the object store."""
        return f"{self._disk.read(self._root / ID).decode(errors='replace')}-{name}"

    def damaged(self, name: str) -> Path:
        return self._root / DAMAGED / name

    def rebuilding(self, name: str) -> Path:
        return self._root / REBUILDING / name

    def compacting(self, name: str) -> Path:
        return self._root / COMPACTING / name

    def names(self, stage: Stage) -> list[str]:
        """In order. Names of others are left alone; a file that a crash kept from being made is removed."""
        return self._names(stage.value)

    def _names(self, folder: str) -> list[str]:
        found = []
        for each in self._disk.list_directory(self._root / folder):
            if each.is_directory or not NAME.fullmatch(each.name):
                continue
            if each.size:
                found.append(each.name)
            elif self._writable:
                self._disk.remove(self._root / folder / each.name)
        return found

    def advance(self, name: str, path: Path, stage: Stage) -> None:
        """Let a file, which lies somewhere else until now, be in a stage."""
        self._disk.move(path, self.path(stage, name))

    def note(self, name: str, content: bytes) -> None:
        """Let a file be uploaded."""
        self._disk.replace_atomically(self.path(Stage.UPLOADED, name), content)

    def remove(self, stage: Stage, name: str) -> None:
        """Let a file no longer be in a stage, if it is."""
        self._disk.remove(self.path(stage, name))

    def clear_away(self, stage: Stage, name: str) -> None:
        """The same of what a crash left behind, which who only reads leaves there."""
        if self._writable:
            self.remove(stage, name)

    def set_aside(self, name: str) -> None:
        """Let a file be damaged: it is in no other stage then."""
        found = [path for stage in STAGES_BEHIND_FILLING if self._disk.exists(path := self.path(stage, name))]
        for path in found[:-1]:
            self._disk.remove(path)
        for path in found[-1:]:
            self._disk.move(path, self.damaged(name))

    def damaged_names(self) -> list[str]:
        """Of files that were set aside, in order."""
        return self._names(DAMAGED)

    def remove_damaged(self, name: str) -> None:
        """A file that was set aside, if it was."""
        if self._writable:
            self._disk.remove(self.damaged(name))

    def retire(self, object_name: str) -> None:
        """Have an object removed from the object store, some time."""
        self._disk.replace_atomically(self._root / REMOVING / object_name, b"no longer wanted\n")

    def retired(self) -> list[str]:
        """Names of objects that are to be removed."""
        found = self._disk.list_directory(self._root / REMOVING)
        return [each.name for each in found if OBJECT_NAME.fullmatch(each.name)]

    def is_removed(self, object_name: str) -> None:
        """An object that was retired is no more."""
        self._disk.remove(self._root / REMOVING / object_name)

    @classmethod
    def names_between(cls, names: Collection[str]) -> list[str]:
        """Those that are missing between the lowest and the highest: files go from the oldest on."""
        numbers = {int(name) for name in names}
        return [
            cls.name_of(each) for each in range(min(numbers, default=0), max(numbers, default=0)) if each not in numbers
        ]

    @staticmethod
    def name_of(number: int) -> str:
        return f"{number:020d}"
