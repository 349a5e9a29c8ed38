"""Reads the error and the hint that a command prints on standard error."""

from __future__ import annotations

HINT = "hint: "


def complaint(stderr: str) -> str:
    """What went wrong, alone."""
    return "".join(line for line in stderr.splitlines(keepends=True) if not line.startswith(HINT))


def hint_in(stderr: str) -> str:
    """The one hint, which is the last line."""
    *others, last = stderr.splitlines()
    assert last.startswith(HINT), stderr
    assert not any(line.startswith(HINT) for line in others), stderr
    return last.removeprefix(HINT)
