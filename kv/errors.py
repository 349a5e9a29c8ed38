"""What can go wrong below a `KeyValueEngine`.

KvError
├── EngineClosed    used after close(): a bug of the caller
├── EngineLocked    another process (or an unclosed engine of this one) holds the database
├── EngineMissing   no database where one must exist
├── EngineFull      the disk has no room for a write; a later one may succeed
└── EngineCorrupt   the engine found damage; its message names the file where known
"""


class KvError(Exception):
    """The engine could not do what was asked; the message is the engine's own."""


class EngineClosed(KvError):
    """The engine, or a family, batch or snapshot of it, was used after `close()`."""


class EngineLocked(KvError):
    """The database directory is held by another process."""


class EngineMissing(KvError):
    """The directory holds no database, and creating one was not asked for."""


class EngineFull(KvError):
    """The disk has no room. Nothing of the write counts.

    RocksDB looks for room every five seconds and takes writes again when the largest memtable would fit.
    """


class EngineCorrupt(KvError):
    """A checksum or structure check failed. Reported, never skipped."""
