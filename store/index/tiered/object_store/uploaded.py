"""The local note of a file in the object store, and reading the file there."""

from __future__ import annotations

import json
from hashlib import sha256
from pathlib import Path
from typing import Final, NamedTuple

from quarry_mq.store.index.tiered.layout import FileHeader, Kind
from quarry_mq.store.index.tiered.object_store.protocol import ObjectStore, ObjectStoreError

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
