"""Keep index files in one folder per stage, so that after a crash the folder of a file tells its state.

    filling/     chains, the newest file; added to
    sealed/      chains, full and durable
    compacted/   runs, compared with the chains they were made from
    uploaded/    a note of what lies in the object store, compared with what was sent
    damaged/     what is left of a damaged file, or its note: it is to be rebuilt
    rebuilding/  chains of a damaged file, half made
    compacting/  runs, half made
    removing/    named as objects that are no longer wanted in the object store
    id           the prefix of the names of this index's objects, so that no other index has the same

A file keeps its name, 20 digits, in all stages. It is in the next folder before it leaves the previous one: if it is in
two folders, the later one counts, but `damaged` never does. Half-made files are removed at a start.

For a file that must be rebuilt, the places of its items are found. Items are in the order of their places, over all
files. So the items of a damaged file lie between the last item of the intact file before it and the first item of the
intact file after it. An item at exactly these places may be in either file, since a source with many items at one place
may have been cut anywhere.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from enum import Enum
from itertools import chain, groupby
from pathlib import Path
from secrets import token_hex
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from quarry_mq.store.fs import Disk
from quarry_mq.store.index.tiered.chain_file import ChainedFile, IndexItems, Integers
from quarry_mq.store.index.tiered.layout import FileHeader

NAME: Final = re.compile(r"[0-9]{20}", re.ASCII)


class Stage(Enum):
    """The stages of a file, with the names of their folders, in the order in which a file passes through them."""

    FILLING = "filling"
    SEALED = "sealed"
    COMPACTED = "compacted"
    UPLOADED = "uploaded"


class TieredFile(NamedTuple):
    """A file of the index. An uploaded file may also be on this machine (`is_local`)."""

    name: str
    stage: Stage
    header: FileHeader
    is_local: bool
    object_name: str = ""
    """The name of an uploaded file in the object store."""


STAGES_AFTER_FILLING: Final = (Stage.SEALED, Stage.COMPACTED, Stage.UPLOADED)
DAMAGED: Final = "damaged"
REMOVING: Final = "removing"
ID: Final = "id"
ID_SIZE: Final = 8
OBJECT_NAME: Final = re.compile(rf"[0-9a-f]{{{2 * ID_SIZE}}}-[0-9]{{20}}", re.ASCII)
REBUILDING: Final = "rebuilding"
COMPACTING: Final = "compacting"


class IndexFolders:
    """Names and moves the files. Every change is durable when it returns. All methods raise OSError."""

    def __init__(self, disk: Disk, root: Path, *, writable: bool = True) -> None:
        """Make missing folders and finish what a crash interrupted; if not `writable`, change nothing."""
        self._disk = disk
        self._root = root
        self._writable = writable
        if not writable:
            return
        for folder in (*(stage.value for stage in Stage), DAMAGED, REMOVING, REBUILDING, COMPACTING):
            disk.make_directories(root / folder)
            # a killed process may have left names that are not durable, and a start removes the files that they replace
            disk.sync_directory(root / folder)
        if not disk.exists(root / ID):
            disk.replace_atomically(root / ID, token_hex(ID_SIZE).encode())
        for folder in (REBUILDING, COMPACTING):
            for name in self._names(folder):
                disk.remove(root / folder / name)

    def path(self, stage: Stage, name: str) -> Path:
        return self._root / stage.value / name

    def object_name(self, name: str) -> str:
        """Return the name of a file of this index in the object store."""
        return f"{self._disk.read(self._root / ID).decode(errors='replace')}-{name}"

    def damaged(self, name: str) -> Path:
        return self._root / DAMAGED / name

    def rebuilding(self, name: str) -> Path:
        return self._root / REBUILDING / name

    def compacting(self, name: str) -> Path:
        return self._root / COMPACTING / name

    def names(self, stage: Stage) -> list[str]:
        """Return the names of the files in a stage, in order.

        Foreign names are ignored. An empty file, whose creation a crash prevented, is removed.
        """
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
        """Move a file from another folder to a stage."""
        self._disk.move(path, self.path(stage, name))

    def note(self, name: str, content: bytes) -> None:
        """Write the note of an uploaded file, which enters that stage with it."""
        self._disk.replace_atomically(self.path(Stage.UPLOADED, name), content)

    def remove(self, stage: Stage, name: str) -> None:
        """Remove a file from a stage if it is there."""
        self._disk.remove(self.path(stage, name))

    def clear_away(self, stage: Stage, name: str) -> None:
        """Remove a crash leftover; does nothing when the index is open read-only."""
        if self._writable:
            self.remove(stage, name)

    def set_aside(self, name: str) -> None:
        """Move a file to `damaged`: it is in no other stage then."""
        found = [path for stage in STAGES_AFTER_FILLING if self._disk.exists(path := self.path(stage, name))]
        for path in found[:-1]:
            self._disk.remove(path)
        for path in found[-1:]:
            self._disk.move(path, self.damaged(name))

    def damaged_names(self) -> list[str]:
        """Return the names of files that were set aside, in order."""
        return self._names(DAMAGED)

    def remove_damaged(self, name: str) -> None:
        """Remove a file that was set aside, if there is one."""
        if self._writable:
            self._disk.remove(self.damaged(name))

    def retire(self, object_name: str) -> None:
        """Note an object for a later removal from the object store."""
        self._disk.replace_atomically(self._root / REMOVING / object_name, b"no longer wanted\n")

    def retired(self) -> list[str]:
        """Return the names of objects that are to be removed."""
        found = self._disk.list_directory(self._root / REMOVING)
        return [each.name for each in found if OBJECT_NAME.fullmatch(each.name)]

    def is_removed(self, object_name: str) -> None:
        """Remove the note of a retired object, which no longer exists."""
        self._disk.remove(self._root / REMOVING / object_name)

    @classmethod
    def names_between(cls, names: Collection[str]) -> list[str]:
        """Return the missing names between the lowest and the highest: files expire from the oldest on."""
        numbers = {int(name) for name in names}
        return [
            cls.name_of(each) for each in range(min(numbers, default=0), max(numbers, default=0)) if each not in numbers
        ]

    @staticmethod
    def name_of(number: int) -> str:
        return f"{number:020d}"


class Gap(NamedTuple):
    """Consecutive damaged files and the intact ones beside them. With none before, the gap begins with the source."""

    names: tuple[str, ...]
    before: TieredFile | None
    after: TieredFile

    @property
    def begin_place(self) -> int:
        """The lowest place of an item in the gap."""
        return 0 if self.before is None else self.before.header.end_place

    @property
    def end_place(self) -> int:
        """The highest place of an item in the gap."""
        return self.after.header.begin_place

    @property
    def edges(self) -> list[tuple[str, int]]:
        """The files beside the gap, each with the place at which both may have items."""
        before = [] if self.before is None else [(self.before.name, self.begin_place)]
        return [*before, (self.after.name, self.end_place)]

    def covers(self, places: Integers) -> NDArray[np.bool_]:
        return (places >= self.begin_place) & (places <= self.end_place)


def find_gaps(files: Mapping[str, TieredFile], broken: Collection[str]) -> list[Gap]:
    """Return the gaps made by the `broken` names, which need not be among `files`; the oldest first.

    Damaged files with no intact one after them are not among them yet.
    """
    gaps: list[Gap] = []
    before: TieredFile | None = None
    damaged: tuple[str, ...] = ()
    for is_broken, names in groupby(sorted({*files, *broken}), key=lambda name: name in broken):
        if is_broken:
            damaged = tuple(names)
            continue
        whole = [files[name] for name in names]
        if damaged:
            gaps.append(Gap(damaged, before, whole[0]))
        before, damaged = whole[-1], ()
    return gaps


def fill_up(file: ChainedFile, rest: IndexItems | None, batches: Iterator[IndexItems]) -> IndexItems | None:
    """Add the rest and batches until no more fit; return those that did not."""
    for items in chain(() if rest is None else (rest,), batches):
        if not len(items):
            continue
        count = file.room_for(items)
        if count:
            file.add(items.rows(0, count))
        if count < len(items):
            return items.rows(count, len(items))
    return None
