"""Formats numbers, times and names for people."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Final

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_UNITS: Final = ("B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB")


def count_text(count: int) -> str:
    return f"{count:,}"


def size_text(size: float) -> str:
    """Format bytes with three digits, in the unit that leaves fewer than 1024."""
    for unit in _UNITS[:-1]:
        if size < 1023.5:
            return f"{short_text(size)} {unit}"
        size /= 1024
    return f"{short_text(size)} {_UNITS[-1]}"


def short_text(number: float) -> str:
    """Format a number with three digits; with two if it is below one, and as a whole number if it is large."""
    if number >= 99.95 or number == int(number):
        return f"{number:,.0f}"
    if number < 0.995:
        return f"{number:.2g}"
    return f"{number:.1f}" if number >= 9.995 else f"{number:.2f}"


def time_text(time_ms: int) -> str:
    """Format a time as UTC to the second; as the bare number if no calendar reaches it."""
    moment = _moment(time_ms)
    return str(time_ms) if moment is None else f"{moment:%Y-%m-%d %H:%M:%S}Z"


def minute_text(time_ms: int, *, with_day: bool) -> str:
    """Format a time as hour and minute in UTC, with or without the day."""
    moment = _moment(time_ms)
    if moment is None:
        return str(time_ms)
    return f"{moment:%m-%d %H:%M}" if with_day else f"{moment:%H:%M}"


def duration_text(duration_ms: int) -> str:
    """Format a duration of whole minutes in the largest unit that divides it."""
    minutes = duration_ms // 60_000
    for size, word in ((24 * 60, "day"), (60, "hour")):
        if minutes % size == 0:
            return _counted(minutes // size, word)
    return _counted(minutes, "minute")


def _counted(count: int, word: str) -> str:
    return f"{count} {word}" if count == 1 else f"{count} {word}s"


def _moment(time_ms: int) -> datetime | None:
    try:
        return _EPOCH + timedelta(milliseconds=time_ms)
    except OverflowError:
        return None
