"""Checks of request fields that no table makes. Each raises Invalid that names the field."""

from __future__ import annotations

from typing import Final

from quarry_mq.store.errors import Invalid

NAME_MAX: Final = 255
"""Characters of a name: as many as the longest name of a topic has."""

ASKED_BY_MAX: Final = 128
NOBODY: Final = "unknown"

_SHOWN_MAX: Final = 60


def given(field: str, text: str) -> str:
    """Require a name, or a part of one."""
    if not text:
        raise Invalid(f"{field}: it must be given")
    return printable(field, text)


def printable(field: str, text: str, size_max: int = NAME_MAX) -> str:
    """Check a text that may be empty, and is shown or stored as it is."""
    if len(text) > size_max:
        raise Invalid(f"{field}: {len(text)} characters, at most {size_max} are allowed")
    if not text.isprintable():
        raise Invalid(f"{field}: {text[:_SHOWN_MAX]!r} holds characters that cannot be printed")
    return text


def asked_by(text: str) -> str:
    """Return the requester's name in the form that is stored."""
    return printable("asked_by", text, ASKED_BY_MAX) or NOBODY


def not_negative(field: str, number: int) -> int:
    if number < 0:
        raise Invalid(f"{field}: {number} is negative")
    return number
