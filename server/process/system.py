"""Read what the operating system reports of this process."""

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
    """Return the CPU seconds of all threads since the start."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def resident_bytes() -> int | None:
    """Return the process's resident memory; None if the system does not report it."""
    with suppress(OSError, ValueError, IndexError):
        return int(_STATM.read_bytes().split()[1]) * _PAGE_SIZE
    return None


def own_bytes() -> int | None:
    """Return the memory in use without mapped files, which come and go; None if the system does not report it."""
    with suppress(OSError, ValueError, IndexError):
        resident, shared = _STATM.read_bytes().split()[1:3]
        return (int(resident) - int(shared)) * _PAGE_SIZE
    return None


def open_files() -> int | None:
    """Return the number of open files, in time linear in it; None if the system does not report it."""
    with suppress(OSError):
        return sum(1 for _ in _FILES.iterdir()) - 1  # the one that this call has opened
    return None


def open_files_if_many(many: int) -> int:
    """Return the number of open files; 0 if the size of the kernel's table shows that they are fewer than `many`."""
    with suppress(OSError, ValueError, IndexError, StopIteration):
        table = next(line for line in _STATUS.read_text().splitlines() if line.startswith("FDSize:"))
        if int(table.split()[1]) < many:
            return 0
    return open_files() or 0
