"""Times as people write them."""

from __future__ import annotations

from datetime import datetime


def date_ms(text: str) -> int | None:
    """The ms since 1970 of a date in ISO 8601, local time where it names no zone; None for what is none."""
    try:
        return int(datetime.fromisoformat(text).timestamp() * 1000)
    except (ValueError, OverflowError, OSError):
        return None


def time_ms(text: str) -> int | None:
    """The same of ms since 1970, too."""
    return int(text) if text.isascii() and text.isdecimal() else date_ms(text)
