"""How many changes of `quarry/` must be there: written down beside the database, compared when it is opened.

RocksDB takes the end of its write-ahead log for torn wherever it cannot read on, and a log file that is missing for
one that never was: one flipped bit, and topics, positions and deliveries of hours are gone without a word. Every
change has a number, so the number of the last one tells.

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
    """The file of one open database."""

    def __init__(self, disk: Disk, directory: Path, engine: KeyValueEngine) -> None:
        self._disk = disk
        self._path = directory / FILE_NAME
        self._engine = engine

    @property
    def changes(self) -> int:
        """The number of the last change: durable once a synchronous write that follows has returned."""
        return self._engine.sequence()

    def check(self) -> None:
        """Raises StoreDamaged when changes are missing."""
        try:
            text = self._disk.read(self._path)
        except FileNotFoundError:
            return
        if not text.strip().isdigit():
            raise StoreDamaged(self._path, "does not hold a number; remove it to go on without what it guards against")
        durable, found = int(text), self.changes
        if found < durable:
            raise StoreDamaged(
                self._path,
                f"the database ends with change {found}, {durable} were durable: its write-ahead log or manifest is "
                "damaged; restore the directory, or remove this file to go on without these changes",
            )

    def save(self, changes: int) -> None:
        """Tell that this many are durable. Raises OSError."""
        self._disk.replace_atomically(self._path, b"%d\n" % changes)
