"""`tests.faults.disk.FaultyDisk` with whole-file operations: the power goes in the middle of a copy, too."""

from __future__ import annotations

import errno
import os
import zlib
from pathlib import Path

from tests.faults.disk import FaultyDisk, FaultyFile, PowerCut


class FaultyCopyingDisk(FaultyDisk):
    """Implements `store.fs.CopyingDisk`."""

    def copy_file(self, source: Path, target: Path, *, length: int, size: int) -> int:
        data = self.read(source)
        if len(data) < length:
            raise OSError(errno.EIO, os.strerror(errno.EIO), str(source))
        self._require_new(target)
        content = data[:length].ljust(size, b"\0")
        cut = self.starts("create", target)
        self.files[target] = FaultyFile(b"" if cut else content)
        self._unsynced.add(target)
        if cut:
            self.files[target].live = bytearray(content[: size // 2])
            self.files[target].durable = bytearray(len(self.files[target].live))
            raise PowerCut
        return zlib.crc32(content)

    def link_file(self, source: Path, target: Path) -> None:
        file = self._file(source)
        self._require_new(target)
        if self.starts("create", target):
            raise PowerCut
        self.files[target] = file
        self._unsynced.add(target)

    def is_plain_file(self, path: Path) -> bool:
        return path in self.files

    def is_link(self, path: Path) -> bool:
        return False

    def is_same_file(self, path: Path, other: Path) -> bool:
        self._check_power()
        return path in self.files and self.files[path] is self.files.get(other)

    def file_size(self, path: Path) -> int:
        return len(self._file(path).live)

    def checksum(self, path: Path) -> int:
        return zlib.crc32(self._file(path).live)

    def rename(self, source: Path, target: Path) -> None:
        self._require_new(target)
        if self.starts("replace", target):
            raise PowerCut
        self.files = {_moved(path, source, target): file for path, file in self.files.items()}
        self.directories = {_moved(path, source, target) for path in self.directories}
        unsynced = {_moved(path, source, target) for path in self._unsynced}
        # what lies in a moved directory is no more durable than before
        self._unsynced = {path for path in unsynced if path.parent not in (source.parent, target.parent)}

    def remove_tree(self, path: Path) -> None:
        for file in sorted(each for each in self.files if each.is_relative_to(path)):
            self.remove(file)
        self.directories = {each for each in self.directories if not each.is_relative_to(path)}

    def after(self, seed: int) -> FaultyCopyingDisk:
        """The disk after a power loss. Names that are durable stay, all those of a file that has two."""
        lost = self.power_loss(seed)
        survivor = FaultyCopyingDisk(capacity=self.capacity)
        survivor.directories = lost.directories
        one_of: dict[int, FaultyFile] = {}
        for path, file in self.files.items():
            if path in lost.files:
                survivor.files[path] = one_of.setdefault(id(file), lost.files[path])
        return survivor

    def _require_new(self, target: Path) -> None:
        self._check_power()
        self._check_parent(target)
        if target in self.files or target in self.directories:
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(target))


def _moved(path: Path, source: Path, target: Path) -> Path:
    return target / path.relative_to(source) if path.is_relative_to(source) else path
