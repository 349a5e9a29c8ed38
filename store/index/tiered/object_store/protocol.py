"""The contract of the stores to which index files are uploaded, and what the index keeps of uploaded files.

Of a file in the object store there is a local note, through which the file is read.

The recently used parts of the slots of uploaded files are cached. A search for a key whose part is cached saves one of
two requests to the object store, or both if the slot has no run. Cached parts were checked when they were read.

A folder can be an object store. Its objects survive a power cut, which obstore's local store does not promise.
"""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import closing, contextmanager
from hashlib import sha256
from pathlib import Path
from threading import Lock
from typing import Final, NamedTuple, Protocol

from quarry_mq.store.fs import Disk
from quarry_mq.store.index.tiered.layout import PART_SIZE, FileHeader, Kind, Slots
from quarry_mq.store.index.tiered.runs import LoadPart


class ObjectStore(Protocol):
    """Objects under names. Every method may block for long, and raises ObjectStoreError.

    ObjectMissing is raised only when the store itself exists and reports it: a store that does not answer, or has lost
    its bucket or folder, may have the object.
    """

    @property
    def address(self) -> str:
        """The name of the store in messages."""

    def put(self, name: str, content: memoryview) -> None:
        """Store an object whole, or not at all. An existing object is replaced."""

    def read(self, name: str, position: int, size: int) -> bytes:
        """Read these bytes of an object: never more, and fewer only if the store misbehaves.

        Raises ObjectMissing.
        """

    def chunks(self, name: str) -> Iterator[bytes]:
        """Yield the whole object from its begin on. Raises ObjectMissing."""

    def remove(self, name: str) -> None:
        """Remove an object. A missing object is no error."""


class ObjectStoreError(OSError):
    """The store did not answer, or not with the requested bytes. It may do so later."""


class ObjectMissing(ObjectStoreError):
    """The object does not exist."""


class SlotCache:
    """A cache with a bounded number of parts. Any thread."""

    def __init__(self, bytes_max: int) -> None:
        self._parts_max = bytes_max // PART_SIZE
        self._parts: OrderedDict[tuple[str, int], Slots] = OrderedDict()  # guarded by _lock
        self._lock = Lock()

    @property
    def size_bytes(self) -> int:
        """The size of the cached parts."""
        return len(self._parts) * PART_SIZE

    def part(self, object_name: str, number: int, load: LoadPart) -> Slots:
        """Return a part of the slots of an object; errors of `load` pass through."""
        key = object_name, number
        with self._lock:
            cached = self._parts.get(key)
            if cached is not None:
                self._parts.move_to_end(key)
                return cached
        part = load(number)
        with self._lock:
            self._parts[key] = part
            self._parts.move_to_end(key)
            while len(self._parts) > self._parts_max:
                self._parts.popitem(last=False)
        return part

    def evict(self, object_name: str) -> None:
        """Evict an object that is replaced or removed."""
        with self._lock:
            for key in [each for each in self._parts if each[0] == object_name]:
                del self._parts[key]


VERSION: Final = 1


class UploadNote(NamedTuple):
    """The content of the file `uploaded/<name>`: JSON."""

    object_name: str
    sha256: str
    header: FileHeader

    def pack(self) -> bytes:
        header = {**self.header._asdict(), "kind": self.header.kind.name.lower()}
        fields = {"version": VERSION, "object": self.object_name, "sha256": self.sha256, "header": header}
        return json.dumps(fields, indent=1).encode()

    @classmethod
    def unpack(cls, stored: bytes) -> UploadNote:
        """Parse a note. Raises ValueError, KeyError, TypeError for anything else."""
        fields = json.loads(stored)
        header = {**fields["header"], "kind": Kind[fields["header"]["kind"].upper()]}
        return cls(fields["object"], fields["sha256"], FileHeader(**header))


class RemoteReader:
    """Reads the bytes of one object."""

    def __init__(self, objects: ObjectStore, name: str) -> None:
        self._objects = objects
        self._name = name

    @property
    def path(self) -> Path:
        return Path(self._objects.address, self._name)

    def read(self, position: int, size: int) -> bytes:
        content = self._objects.read(self._name, position, size)
        if len(content) != size:
            raise ObjectStoreError(
                f"{self._objects.address}/{self._name}: {len(content)} bytes at {position} instead of {size}"
            )
        return content


def upload(objects: ObjectStore, name: str, content: memoryview) -> str:
    """Store an object, read it back, and return its SHA-256. Raises ObjectStoreError, also if the bytes differ."""
    wanted = sha256(content).hexdigest()
    objects.put(name, content)
    stored = sha256()
    for chunk in objects.chunks(name):
        stored.update(chunk)
    if stored.hexdigest() != wanted:
        raise ObjectStoreError(f"{objects.address}/{name}: the uploaded file differs from what was sent")
    return wanted


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
        with self._named(name):
            return self._disk.read_range(self._folder / name, position, size)

    def chunks(self, name: str) -> Iterator[bytes]:
        with self._named(name), closing(self._disk.open_segment(self._folder / name, writable=False)) as file:
            view = file.view()
            for begin in range(0, len(view), CHUNK_SIZE):
                file.fetch(begin, min(CHUNK_SIZE, len(view) - begin))
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
