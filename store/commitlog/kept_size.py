"""The size of a log's segments, written down beside the log: the files alone do not tell whether one was cut.

quarry/SEGMENT_SIZE      decimal number of bytes, and a line feed
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from store.disk.protocol import Disk
from store.errors import StoreDamaged

FILE_NAME: Final = "SEGMENT_SIZE"
DIGITS_MAX: Final = 20


class KeptSize:
    """The file in the folder `quarry/` of one store. Without it, the size is taken from the segments."""

    def __init__(self, disk: Disk, directory: Path) -> None:
        self._disk = disk
        self._path: Final = directory / FILE_NAME

    def read(self) -> int | None:
        """The size that was written down, None where none was. Raises StoreDamaged."""
        try:
            text = self._disk.read(self._path)
        except FileNotFoundError:
            return None
        if not text.strip().isdigit() or len(text) > DIGITS_MAX:
            raise StoreDamaged(self._path, "does not hold a size; remove it to take the size from the segments")
        return int(text)

    def keep(self, segment_size: int) -> None:
        """Write the size down, unless that was done. Raises OSError."""
        if self.read() != segment_size:
            self._disk.replace_atomically(self._path, b"%d\n" % segment_size)
