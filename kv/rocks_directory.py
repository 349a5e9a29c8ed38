"""The files of a RocksDB directory, as far as safe opening needs them, and the file descriptors of this process.

No RocksDB calls are made here. Of file descriptors it is known how many the process may have, and whether some are free
now.
"""

from __future__ import annotations

import os
import re
import resource
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from quarry_mq.kv.errors import EngineCorrupt, EngineMissing

CURRENT: Final = "CURRENT"
"""The file that names the live manifest. A directory without it is no database to RocksDB, whatever else lies there."""

_FINISHED: Final = re.compile(r"[0-9]+\.(sst|ldb)|OPTIONS-[0-9]+|MANIFEST-(?!000001$)[0-9]+")
"""Files that exist only once a database was made completely: creation writes MANIFEST-000001 first, then CURRENT."""

_WRITE_AHEAD_LOG: Final = re.compile(r"[0-9]+\.log", re.ASCII)

TEXT_LOG: Final = "LOG"
_DROPPED: Final = re.compile(r"\.log: dropping [0-9]+ bytes; ")

_PART: Final = re.compile(r"[0-9]+\.(sst|ldb|blob|log)|OPTIONS-[0-9]+|MANIFEST-[0-9]+|CURRENT|IDENTITY")
"""Files that reading a database needs, without its lock, its text logs and rocksdict's side file."""

_SCRATCH: Final = re.compile(r"LOCK|LOG(\.old\.[0-9]+)?|rocksdict-config\.json")
_TABLE: Final = re.compile(r"[0-9]+\.(sst|ldb|blob)")


def is_scratch(name: str) -> bool:
    """Return whether each opening makes this file of a database again: locks, text logs, rocksdict's side file."""
    return _SCRATCH.fullmatch(name) is not None


def is_write_ahead_log(name: str) -> bool:
    return _WRITE_AHEAD_LOG.fullmatch(name) is not None


def is_table(name: str) -> bool:
    """Return whether the file is never changed once it exists, only removed."""
    return _TABLE.fullmatch(name) is not None


def holds_database(directory: Path) -> bool:
    """Return whether a database can be opened here; False where a new one may be made.

    Raises EngineCorrupt when files of a database are there but CURRENT is not: asked to create if missing, RocksDB
    would start an empty database over them.
    """
    if (directory / CURRENT).is_file():
        return True
    if not directory.is_dir():
        return False
    for entry in sorted(directory.iterdir()):
        if _FINISHED.fullmatch(entry.name) or (is_write_ahead_log(entry.name) and entry.stat().st_size > 0):
            missing = f"{directory / CURRENT}: missing, though {entry.name} of a database is there"
            raise EngineCorrupt(missing, directory)
    return False


def require_database(directory: Path) -> None:
    """Raise EngineMissing or EngineCorrupt if no database can be opened here."""
    if not holds_database(directory):
        raise EngineMissing(f"{directory}: no database here")


def unread_changes(directory: Path) -> list[str]:
    """Return what the opening that has just succeeded left out of write-ahead logs, in RocksDB's words.

    RocksDB treats the place where it cannot read on as the log's end, and says so only in its own text log.
    """
    lines = (directory / TEXT_LOG).read_text(errors="replace").splitlines()
    return [line.partition("] ")[2].partition("] ")[2] for line in lines if _DROPPED.search(line)]


def reading_view(directory: Path) -> TemporaryDirectory[str]:
    """Return a temporary directory of links to the database's files.

    Even an open for reading makes LOCK and LOG files, and rocksdict its `rocksdict-config.json`; through the view they
    land in the temporary directory, so a foreign store stays as it is, also on a read-only file system. The caller
    removes the directory with `cleanup()`.
    """
    view = TemporaryDirectory(prefix="quarry-read-")
    for entry in directory.resolve().iterdir():
        if _PART.fullmatch(entry.name):
            Path(view.name, entry.name).symlink_to(entry)
    return view


SHARE: Final = 16
"""The divisor of the descriptor limit: each kind of files that is kept open gets at most this part of
all descriptors.
"""

SHARE_MIN: Final = 32


def descriptor_limit() -> int:
    """Return how many files this process may have open."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return soft


def raise_descriptor_limit() -> int:
    """Raise the limit of open files of this process to its hard limit; return that."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return hard


def descriptor_share(most: int, limit: int | None = None) -> int:
    """Return how many descriptors one kind of files may keep: `most`, or fewer where the process may have few."""
    return min(most, max(SHARE_MIN, (descriptor_limit() if limit is None else limit) // SHARE))


def require_descriptors(count: int) -> None:
    """Raise OSError if this process cannot open `count` more files now: EMFILE, or ENFILE for the whole machine."""
    opened: list[int] = []
    try:
        while len(opened) < count:
            opened.append(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))
    finally:
        for number in opened:
            os.close(number)
