"""The errors of a `KeyValueEngine` form a tree.

KvError
├── EngineClosed    used after close(): a bug of the caller
├── EngineLocked    another process (or an unclosed engine of this one) holds the database
├── EngineMissing   no database where one must exist
├── EngineFull      the disk has no space for a write; a later one may succeed
│   └── EngineStarved   no file can be opened for it: all descriptors are in use
└── EngineCorrupt   the engine found damage; its message names the file where known
"""

from __future__ import annotations

from pathlib import Path


class KvError(Exception):
    """The engine could not do what was asked; the message is the engine's own."""


class EngineClosed(KvError):
    """The engine, or a family, batch or snapshot of it, was used after `close()`."""


class EngineLocked(KvError):
    """The database directory is held by another process."""


class EngineMissing(KvError):
    """The directory holds no database, and creating one was not asked for."""


class EngineFull(KvError):
    """The disk has no free space. Nothing was written.

    RocksDB checks for free space every five seconds and accepts writes again when the largest memtable would fit.
    """

    shortage = "the disk is full"


class EngineStarved(EngineFull):
    """No file can be opened: this process, or the machine, has all its descriptors in use.

    This is checked before RocksDB is called: RocksDB recovers from a full disk, but once it could not open a file to
    write, it refuses all writes until it is opened again.
    """

    shortage = "too many files are open"


class EngineCorrupt(KvError):
    """A checksum or structure check failed. Damage is reported, never skipped.

    `directory` is that of the damaged database; None if the error comes from a call that does not know it.
    """

    def __init__(self, message: str, directory: Path | None = None) -> None:
        super().__init__(message)
        self.directory = directory
