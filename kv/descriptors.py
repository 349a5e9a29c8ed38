"""File descriptors of this process: how many it may have, and whether some are left now."""

from __future__ import annotations

import os
import resource
from typing import Final

SHARE: Final = 16
"""Each kind of files that is kept open has this part of all descriptors at most."""

SHARE_MIN: Final = 32


def descriptor_limit() -> int:
    """How many files this process may have open."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return soft


def raise_descriptor_limit() -> int:
    """Allow this process as many open files as it may allow itself; returns how many."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return hard


def descriptor_share(most: int, limit: int | None = None) -> int:
    """How many of the descriptors one kind of files may keep: `most`, or less where the process may have few."""
    return min(most, max(SHARE_MIN, (descriptor_limit() if limit is None else limit) // SHARE))


def require_descriptors(count: int) -> None:
    """Raises OSError when this process cannot open so many files now: EMFILE, or ENFILE for the whole machine."""
    opened: list[int] = []
    try:
        while len(opened) < count:
            opened.append(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))
    finally:
        for number in opened:
            os.close(number)
