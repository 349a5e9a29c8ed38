"""Times as people write them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Final

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


def moment(milliseconds: int) -> datetime | None:
    """The time in UTC of ms since 1970; None where no calendar reaches, since records hold any 64 bits."""
    try:
        return _EPOCH + timedelta(milliseconds=milliseconds)
    except OverflowError:
        return None


def time_text(milliseconds: int) -> str:
    """UTC to the second; the bare number where no calendar reaches."""
    found = moment(milliseconds)
    return str(milliseconds) if found is None else found.replace(tzinfo=None).isoformat(timespec="seconds") + "Z"


def date_ms(text: str) -> int | None:
    """The ms since 1970 of a date in ISO 8601, local time where it names no zone; None for what is none."""
    try:
        return int(datetime.fromisoformat(text).timestamp() * 1000)
    except (ValueError, OverflowError, OSError):
        return None


def time_ms(text: str) -> int | None:
    """The same of ms since 1970, too."""
    return int(text) if text.isascii() and text.isdecimal() else date_ms(text)
