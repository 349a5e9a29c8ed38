"""Parses and formats times as people write them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Final

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


def moment(milliseconds: int) -> datetime | None:
    """Return the time in UTC of ms since 1970; None if no calendar reaches it, since records hold any 64 bits."""
    try:
        return _EPOCH + timedelta(milliseconds=milliseconds)
    except OverflowError:
        return None


def time_text(milliseconds: int) -> str:
    """Format a time as UTC to the second; as the bare number if no calendar reaches it."""
    found = moment(milliseconds)
    return str(milliseconds) if found is None else found.replace(tzinfo=None).isoformat(timespec="seconds") + "Z"


def date_ms(text: str) -> int | None:
    """Parse a date in ISO 8601 to ms since 1970, as local time if it names no zone; None if it is invalid."""
    try:
        return int(datetime.fromisoformat(text).timestamp() * 1000)
    except (ValueError, OverflowError, OSError):
        return None


def time_ms(text: str) -> int | None:
    """Parse a time given as ms since 1970 or as a date to ms since 1970; None if it is invalid."""
    return int(text) if text.isascii() and text.isdecimal() else date_ms(text)
