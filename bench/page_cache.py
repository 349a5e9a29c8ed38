"""Fills the page cache, so that memory is as on a machine that has run for a while: full of pages of files.

A virtual machine gives unused memory back to its host, and gets it again page by page when it is written to: 2 µs for a
record of 1 KiB, as much as half of all other work that a store does for it. On a machine that was idle, a benchmark
that writes gigabytes would measure that after the first two.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from quarry_mq.kv.options import MIB

LEFT_FREE: Final = 512 * MIB
"""Bytes that stay free: with less, the kernel would begin to reclaim pages."""

_MEMORY: Final = Path("/proc/meminfo")


@contextmanager
def full_page_cache(directory: Path, *, kept_free_on_disk: int) -> Iterator[int]:
    """Read a file of zeros as large as the free memory, and keep it while the block runs; gives its size in bytes.

    The file leaves `kept_free_on_disk` bytes of the disk free, and is empty if there are not more.
    """
    room = shutil.disk_usage(directory).free - kept_free_on_disk
    size = max(0, min(_free_memory() - LEFT_FREE, room))
    path = directory / "page-cache"
    try:
        with path.open("w+b", buffering=0) as file:
            if size:
                os.posix_fallocate(file.fileno(), 0, size)  # nothing is written to the device for it
            buffer = bytearray(MIB)
            while file.readinto(buffer):
                pass
            yield size
    finally:
        path.unlink(missing_ok=True)


def _free_memory() -> int:
    for line in _MEMORY.read_text().splitlines():
        name, _, value = line.partition(":")
        if name == "MemFree":
            return int(value.split()[0]) * 1024
    raise RuntimeError(f"{_MEMORY} does not tell how much is free")
