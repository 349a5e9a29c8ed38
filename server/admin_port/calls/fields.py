"""Checks of what requests say, where no table behind them makes them. Each raises Invalid that names the field."""

from __future__ import annotations

from typing import Final

from quarry_mq.store.errors import Invalid

NAME_MAX: Final = 255
"""Characters: what the longest name of a topic has."""

ASKED_BY_MAX: Final = 128
NOBODY: Final = "unknown"

_SHOWN_MAX: Final = 60


def given(field: str, text: str) -> str:
    """A name of something, or a part of one."""
    if not text:
        raise Invalid(f"{field}: it must be given")
    return printable(field, text)


def printable(field: str, text: str, size_max: int = NAME_MAX) -> str:
    """A text that may be empty, and is shown or kept as it is."""
    if len(text) > size_max:
        raise Invalid(f"{field}: {len(text)} characters, at most {size_max} are allowed")
    if not text.isprintable():
        raise Invalid(f"{field}: {text[:_SHOWN_MAX]!r} holds characters that cannot be printed")
    return text


def asked_by(text: str) -> str:
    """Who asks, as it is kept."""
    return printable("asked_by", text, ASKED_BY_MAX) or NOBODY


def not_negative(field: str, number: int) -> int:
    if number < 0:
        raise Invalid(f"{field}: {number} is negative")
    return number
