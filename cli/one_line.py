"""Text of strangers between other text."""

from __future__ import annotations


def one_line(value: str) -> str:
    """As it is, unless it would do something to a terminal."""
    return value if value.isprintable() else repr(value)
