"""The module writes down how many changes of `quarry/` are durable, and compares that when the database is opened.

RocksDB treats a place in its write-ahead log that it cannot read as the torn end, and a missing log file as one that
never was: one flipped bit, and topics, committed offsets and deliveries of hours are lost without a message. Every
change has a number, so the number of the last one shows a loss.

    quarry/DURABLE      decimal number of a change that survived, and a line feed
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from quarry_mq.kv import KeyValueEngine
from quarry_mq.store.errors import StoreDamaged
from quarry_mq.store.fs import Disk

FILE_NAME: Final = "DURABLE"


class DurableState:
    """The object reads and writes the file `DURABLE` of one open database."""

    def __init__(self, disk: Disk, directory: Path, engine: KeyValueEngine) -> None:
        self._disk = disk
        self._path = directory / FILE_NAME
        self._engine = engine

    @property
    def changes(self) -> int:
        """Return the number of the last change, which is durable once a later synchronous write has returned."""
        return self._engine.sequence()

    def check(self) -> None:
        """Raise StoreDamaged when changes are missing."""
        try:
            text = self._disk.read(self._path)
        except FileNotFoundError:
            return
        if not text.strip().isdigit():
            raise StoreDamaged(self._path, "does not contain a number; remove the file to go on without the check")
        durable, found = int(text), self.changes
        if found < durable:
            raise StoreDamaged(
                self._path,
                f"the database ends with change {found}, but {durable} were durable: its write-ahead log or manifest "
                "is damaged; restore the directory, or remove this file to go on without these changes",
            )

    def save(self, changes: int) -> None:
        """Write down that this many changes are durable. Raises OSError."""
        self._disk.replace_atomically(self._path, b"%d\n" % changes)
