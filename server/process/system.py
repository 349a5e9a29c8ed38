"""What the operating system says of this process."""

from __future__ import annotations

import resource
from contextlib import suppress
from pathlib import Path
from typing import Final

_STATM: Final = Path("/proc/self/statm")
_STATUS: Final = Path("/proc/self/status")
_FILES: Final = Path("/proc/self/fd")
_PAGE_SIZE: Final = resource.getpagesize()


def cpu_seconds() -> float:
    """That all threads have worked since the start."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def resident_bytes() -> int | None:
    """None where the system does not tell."""
    with suppress(OSError, ValueError, IndexError):
        return int(_STATM.read_bytes().split()[1]) * _PAGE_SIZE
    return None


def own_bytes() -> int | None:
    """Memory in use that is no file's: mapped segments come and go. None where the system does not tell."""
    with suppress(OSError, ValueError, IndexError):
        resident, shared = _STATM.read_bytes().split()[1:3]
        return (int(resident) - int(shared)) * _PAGE_SIZE
    return None


def open_files() -> int | None:
    """None where the system does not tell. One step for each of them."""
    with suppress(OSError):
        return sum(1 for _ in _FILES.iterdir()) - 1  # the one that this look has opened
    return None


def open_files_if_many(many: int) -> int:
    """How many are open; 0 where they are surely fewer than `many`, which the size of the kernel's table tells."""
    with suppress(OSError, ValueError, IndexError, StopIteration):
        table = next(line for line in _STATUS.read_text().splitlines() if line.startswith("FDSize:"))
        if int(table.split()[1]) < many:
            return 0
    return open_files() or 0
