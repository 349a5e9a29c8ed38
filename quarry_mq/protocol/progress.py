"""The module describes the progress of a long piece of work, for a caller that shows it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Progress:
    """The progress says how far a long piece of work is, in bytes of commit log. `detail` adds a few words."""

    phase: str
    done_bytes: int
    total_bytes: int
    detail: str = ""

    @property
    def percent(self) -> int:
        return 100 if self.total_bytes <= 0 else min(100, 100 * self.done_bytes // self.total_bytes)


ReportProgress = Callable[[Progress], None]
