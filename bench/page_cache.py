"""Memory as on a machine that has run for a while: full of pages of files, which give way to others.

A virtual machine gives back to its host what it does not use, and gets it again page by page when it is written to: 2
µs for a record of 1 KiB, as much as half of all else that a store does for it. Who writes gigabytes to a machine that
was idle measures that after the first two.
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
"""Less, and the kernel would begin to look for pages to reclaim by itself."""

_MEMORY: Final = Path("/proc/meminfo")


@contextmanager
def full_page_cache(directory: Path, *, kept_free_on_disk: int) -> Iterator[int]:
    """Read a file of zeros as large as the free memory, and keep it for as long as this lasts; gives its size in bytes.

    It takes no more of the disk than leaves so much free there, and is empty where that is not enough.
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
