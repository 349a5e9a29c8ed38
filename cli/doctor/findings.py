"""Defines the results of a check."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from enum import Enum
from typing import NamedTuple


class Verdict(Enum):
    """The verdict of a check. The value is its name in JSON."""

    FINE = "fine"
    UNKNOWN = "unknown"
    """The check could not be made, so the result is neither good nor bad."""
    WARNING = "warning"
    FAULT = "fault"


class Finding(NamedTuple):
    """Describe one line of output: what was checked, what was seen, and for a warning or a fault what to do.

    `kind` and `command` are those of a concern of the broker; its command is the advice.
    """

    check: str
    verdict: Verdict
    seen: str
    advice: str = ""
    kind: str | None = None
    command: str | None = None


Check = Callable[[], Iterator[Finding]]


def fine(check: str, seen: str) -> Finding:
    return Finding(check, Verdict.FINE, seen)


def unknown(check: str, seen: str) -> Finding:
    return Finding(check, Verdict.UNKNOWN, seen)


def warning(check: str, seen: str, advice: str) -> Finding:
    return Finding(check, Verdict.WARNING, seen, advice)


def fault(check: str, seen: str, advice: str) -> Finding:
    return Finding(check, Verdict.FAULT, seen, advice)
