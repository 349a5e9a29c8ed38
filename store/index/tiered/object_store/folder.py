"""A folder as an object store. Its objects survive a power cut, which obstore's local store does not promise."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Final

from quarry_mq.store.fs import Disk
from quarry_mq.store.index.tiered.object_store.protocol import ObjectMissing, ObjectStoreError

CHUNK_SIZE: Final = 8 << 20


class FolderObjects:
    """Implements `store.index.tiered.object_store.protocol.ObjectStore`. An object is a file with the object's name."""

    def __init__(self, disk: Disk, folder: Path) -> None:
        self._disk = disk
        self._folder = folder
        self.address = str(folder)

    def put(self, name: str, content: memoryview) -> None:
        with self._named(name):
            self._disk.make_directories(self._folder)
            self._disk.replace_atomically(self._folder / name, content)

    def read(self, name: str, position: int, size: int) -> bytes:
        with self._named(name), closing(self._disk.open_segment(self._folder / name, writable=False)) as file:
            return bytes(file.view()[position : position + size])

    def chunks(self, name: str) -> Iterator[bytes]:
        with self._named(name), closing(self._disk.open_segment(self._folder / name, writable=False)) as file:
            view = file.view()
            for begin in range(0, len(view), CHUNK_SIZE):
                yield bytes(view[begin : begin + CHUNK_SIZE])

    def remove(self, name: str) -> None:
        with self._named(name):
            self._disk.remove(self._folder / name)

    @contextmanager
    def _named(self, name: str) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            is_missing = isinstance(error, FileNotFoundError) and self._disk.exists(self._folder)
            kind = ObjectMissing if is_missing else ObjectStoreError
            raise kind(f"{self._folder / name}: {error.strerror or error}") from error
