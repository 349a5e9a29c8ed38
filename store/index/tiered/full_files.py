"""Search and check full files of the tiered index wherever they are: local chains or runs, or the object store."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import NoReturn

import numpy as np

from quarry_mq.store.errors import StoreDamaged
from quarry_mq.store.fs import Disk
from quarry_mq.store.index.tiered.catalog import Catalog
from quarry_mq.store.index.tiered.chain_file import ChainedFile, Found, IndexItems, IndexShape, header_of
from quarry_mq.store.index.tiered.folders import IndexFolders, Stage, TieredFile
from quarry_mq.store.index.tiered.layout import CRC_SIZE, NO_RUN, FileHeader, item_of, run_checksum, runs_at
from quarry_mq.store.index.tiered.object_store.protocol import (
    ObjectMissing,
    ObjectStore,
    ObjectStoreError,
    RemoteReader,
    SlotCache,
    UploadNote,
)
from quarry_mq.store.index.tiered.runs import CompactedFile, items_in_runs, slots_in


class LocalReader:
    """Reads the bytes of a local file on request.

    Mapping the file takes longer, and makes the system read ahead bytes that are not needed.
    """

    def __init__(self, disk: Disk, path: Path) -> None:
        self.path = path
        self._disk = disk

    def read(self, position: int, size: int) -> bytes:
        return self._disk.read_range(self.path, position, size)


class FullFiles:
    """Reads full files. Any thread. Files may move from stage to stage meanwhile."""

    def __init__(
        self,
        disk: Disk,
        folders: IndexFolders,
        catalog: Catalog,
        shape: IndexShape,
        *,
        objects: ObjectStore | None,
        slots: SlotCache,
    ) -> None:
        self._disk = disk
        self._folders = folders
        self._catalog = catalog
        self._shape = shape
        self._objects = objects
        self._slots = slots

    def find_in(self, file: TieredFile, hashed: int) -> Iterator[Found]:
        """Yield the items with a hash in one file, the newest first. Raises OSError, StoreDamaged."""
        while True:
            try:
                yield from self._find_in_stage(file, hashed)
            except (FileNotFoundError, ObjectMissing, StoreDamaged) as error:
                now = self._catalog.files.get(file.name)
                if now is None:
                    return  # expired meanwhile
                if now is file:
                    if not isinstance(error, FileNotFoundError):
                        self._catalog.doubt(file, str(error))
                    raise
                file = now  # it has moved on, or was rebuilt
            else:
                return

    def _find_in_stage(self, file: TieredFile, hashed: int) -> Iterator[Found]:
        if file.stage is Stage.SEALED:
            with closing(self.open_sealed(file.name)) as chains:
                yield from chains.find(hashed)
        elif file.is_local:
            path = self._folders.path(Stage.COMPACTED, file.name)
            yield from CompactedFile(LocalReader(self._disk, path), self._shape, file.header).find(hashed)
        else:
            reader = RemoteReader(self._object_store(file.name), file.object_name)
            keep = partial(self._slots.part, file.object_name)
            yield from CompactedFile(reader, self._shape, file.header, keep).find(hashed)

    def _object_store(self, name: str) -> ObjectStore:
        if self._objects is None:
            raise ObjectStoreError(f"file {name} was uploaded, and no object store is set (index.upload_to)")
        return self._objects

    def check(self, name: str) -> None:
        """Read every byte of a file, in the object store, too; a damaged file is marked as doubtful.

        The file that is being filled is not checked. Raises StoreDamaged; OSError where a file cannot be read.
        """
        known = self._catalog.damaged.get(name)
        if known is not None:
            raise StoreDamaged(self._folders.damaged(name), known.reason)
        file = self._catalog.files.get(name)
        if file is None:
            return
        with self.doubting(file):
            if file.stage is Stage.SEALED:
                with closing(self.open_sealed(file.name)) as chains:
                    check_chains(chains, self._shape)
            elif file.is_local:
                path = self._folders.path(Stage.COMPACTED, file.name)
                with closing(self._disk.open_segment(path, writable=False)) as local:
                    if header_of(local) != file.header:
                        raise StoreDamaged(path, "its header has changed")
                    check_runs(path, local.view(), file.header, self._shape)
            if file.stage is Stage.UPLOADED:
                check_object(self._object_store(file.name), self._catalog.note(file.name))

    def stored_items(self, file: TieredFile) -> Iterator[IndexItems]:
        """Yield all items of a file on this machine, in parts and in no order. Raises StoreDamaged, OSError."""
        if file.stage is Stage.SEALED:
            with closing(self.open_sealed(file.name)) as chains:
                yield from chains.stored_items()
            return
        path = self._folders.path(Stage.COMPACTED, file.name)
        with closing(self._disk.open_segment(path, writable=False)) as local:
            yield from items_in_runs(path, local.view(), file.header, self._shape)

    @contextmanager
    def doubting(self, file: TieredFile) -> Iterator[None]:
        """Mark the file as doubtful when the block finds damage."""
        try:
            yield
        except (ObjectMissing, StoreDamaged) as damage:
            self._catalog.doubt(file, str(damage))
            raise

    def open_sealed(self, name: str) -> ChainedFile:
        file = self._disk.open_segment(self._folders.path(Stage.SEALED, name), writable=False)
        return ChainedFile.opened(file, self._shape)


class FullFile:
    """Hold one file, in the stage in which it was when a search began."""

    def __init__(self, files: FullFiles, file: TieredFile) -> None:
        self._files = files
        self._file = file
        self.name = file.name
        self.is_remote = not file.is_local

    def find(self, hashed: int) -> Iterator[Found]:
        return self._files.find_in(self._file, hashed)


def check_chains(file: ChainedFile, shape: IndexShape) -> None:
    """Check a sealed file, which has items. Raises StoreDamaged."""
    file.check_items()
    header, items = file.header, file.all_items()
    places, times = items[shape.place].astype(np.int64), items["time"].astype(np.int64)
    span = [0, header.end_ms - header.begin_ms], [header.begin_place, header.end_place]
    for column, (first, last) in zip((times, places), span, strict=True):
        if column[0] != first or column[-1] != last or (np.diff(column) < 0).any():
            _damaged(file.path, "times or places of its items are not in the order that its header states")
    if not file.has_right_chains():
        _damaged(file.path, "an item is missing in the chain of its hash")


def check_runs(path: Path, content: memoryview, header: FileHeader, shape: IndexShape) -> None:
    """Check a compacted file by the checksums of its runs. Raises StoreDamaged."""
    item_size = item_of(shape.payload).itemsize
    slots = slots_in(path, content, header.slots)
    positions, sizes = slots["position"].astype(np.int64), slots["size"].astype(np.int64)
    used = np.flatnonzero(sizes)
    ends = runs_at(header.slots) + np.cumsum(sizes)
    counts, rests = np.divmod(sizes[used] - CRC_SIZE, item_size)
    is_whole = ends[-1] == header.file_size and int(counts.sum()) == header.items and not rests.any()
    if not is_whole or (positions != np.where(sizes > 0, ends - sizes, NO_RUN)).any():
        _damaged(path, "its slots do not list the runs of all items one after the other")
    for slot, position, count in zip(used.tolist(), positions[used].tolist(), counts.tolist(), strict=True):
        end = position + count * item_size
        if content[end : end + CRC_SIZE] != run_checksum(slot, content[position:end]):
            _damaged(path, f"the run of slot {slot} differs from what was written")


def check_object(objects: ObjectStore, note: UploadNote) -> None:
    """Compare an object in the object store with its note. Raises StoreDamaged, ObjectStoreError."""
    digest = sha256()
    for chunk in objects.chunks(note.object_name):
        digest.update(chunk)
    if digest.hexdigest() != note.sha256:
        _damaged(Path(objects.address, note.object_name), "the uploaded file differs from what was sent")


def _damaged(path: Path, reason: str) -> NoReturn:
    raise StoreDamaged(path, reason)
