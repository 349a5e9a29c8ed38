"""The states of index files, each a folder: what a crash leaves is told by where a file lies.

    filling/     chains, the newest file; added to
    sealed/      chains, full and durable
    compacting/  half made: removed at a start
    compacted/   runs, compared with the chains they were made from
    uploaded/    a note of what lies in the object store, compared with what was sent

A file keeps its name, 20 digits, through all of them. It is in the next folder before it leaves the one before: of a
file that is in two the later one counts.
"""

from __future__ import annotations

import re
from enum import Enum
from pathlib import Path
from typing import Final

from store.disk import Disk

NAME: Final = re.compile(r"[0-9]{20}", re.ASCII)


class Stage(Enum):
    """By folder, in the order in which a file goes through them."""

    FILLING = "filling"
    SEALED = "sealed"
    COMPACTED = "compacted"
    UPLOADED = "uploaded"


COMPACTING: Final = "compacting"


class IndexFolders:
    """Names and moves. Every change is durable when it returns. All raise OSError."""

    def __init__(self, disk: Disk, root: Path) -> None:
        """Makes the folders that are missing and finishes what a crash interrupted."""
        self._disk = disk
        self._root = root
        for folder in (*(stage.value for stage in Stage), COMPACTING):
            disk.make_directories(root / folder)
        for name in self._names(COMPACTING):
            disk.remove(root / COMPACTING / name)

    def path(self, stage: Stage, name: str) -> Path:
        return self._root / stage.value / name

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
            else:
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

    @staticmethod
    def name_of(number: int) -> str:
        return f"{number:020d}"
