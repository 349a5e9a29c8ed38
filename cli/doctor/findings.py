"""What a check says."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from enum import Enum
from typing import NamedTuple


class Verdict(Enum):
    """The value is its name in JSON."""

    FINE = "fine"
    UNKNOWN = "unknown"
    """It could not be looked at. Neither good nor bad."""
    WARNING = "warning"
    FAULT = "fault"


class Finding(NamedTuple):
    """One line: what was looked at, what was seen, and for a warning or a fault what to do."""

    check: str
    verdict: Verdict
    seen: str
    advice: str = ""


Check = Callable[[], Iterator[Finding]]


def fine(check: str, seen: str) -> Finding:
    return Finding(check, Verdict.FINE, seen)


def unknown(check: str, seen: str) -> Finding:
    return Finding(check, Verdict.UNKNOWN, seen)


def warning(check: str, seen: str, advice: str) -> Finding:
    return Finding(check, Verdict.WARNING, seen, advice)


def fault(check: str, seen: str, advice: str) -> Finding:
    return Finding(check, Verdict.FAULT, seen, advice)
