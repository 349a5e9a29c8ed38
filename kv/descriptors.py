"""The module handles file descriptors of this process: how many it may have, and whether some are free now."""

from __future__ import annotations

import os
import resource
from typing import Final

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
