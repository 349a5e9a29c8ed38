"""Formats values for people in few columns. An unknown value is `unknown`, never 0."""

from __future__ import annotations

import math
from typing import Final

UNKNOWN: Final = "unknown"

_THOUSANDS: Final = ("", " k", " M", " G", " T")
_BINARY: Final = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")
_SPANS: Final = ((86_400, "d", 3_600, "h"), (3_600, "h", 60, "min"), (60, "min", 1, "s"))


def count_text(value: int | None) -> str:
    """Format a count, in full up to 9,999,999: `12,345`, then `12.3 M`."""
    if value is None:
        return UNKNOWN
    return f"{value:,}" if abs(value) < 10_000_000 else _short(value)


def rate_text(value: float | None) -> str:
    """Format a rate per second: `0`, `0.4`, `12.5`, `1,234`, `12.3 M`."""
    if value is None or math.isnan(value):
        return UNKNOWN
    if value >= 10_000_000:
        return _short(value)
    if value >= 99.95:
        return f"{value:,.0f}"
    return "0" if value == 0 else "<0.1" if value < 0.05 else f"{value:.1f}"


def _short(value: float) -> str:
    step = min(len(_THOUSANDS) - 1, int(math.log10(abs(value))) // 3)
    return f"{value / 1000**step:.1f}{_THOUSANDS[step]}"


def bytes_text(value: int | None) -> str:
    """Format a size: `512 B`, `12.3 MiB`, `345 MiB`."""
    if value is None:
        return UNKNOWN
    size = float(value)
    for unit in _BINARY:
        if abs(size) < 1000 or unit == _BINARY[-1]:
            return f"{size:.0f} {unit}" if unit == "B" or abs(size) >= 99.95 else f"{size:.1f} {unit}"
        size /= 1024
    raise AssertionError(unit)


def span_text(seconds: float | None) -> str:
    """Format a duration: `35 µs`, `1.2 ms`, `3.4 s`, `2 min 5 s`, `3 h 12 min`, `4 d 1 h`. Infinity is `too long`."""
    if seconds is None:
        return UNKNOWN
    if math.isinf(seconds):
        return "too long"
    if seconds < 0.000_999_5:
        return f"{seconds * 1e6:.0f} µs" if seconds else "0 s"
    if seconds < 0.999_5:
        milliseconds = seconds * 1000
        return f"{milliseconds:.1f} ms" if milliseconds < 9.95 else f"{milliseconds:.0f} ms"
    if seconds < 59.95:
        return f"{seconds:.1f} s" if seconds < 9.95 else f"{seconds:.0f} s"
    whole = round(seconds)
    for size, unit, small, small_unit in _SPANS:
        if whole >= size:
            rest = whole % size // small
            return f"{whole // size} {unit}" + (f" {rest} {small_unit}" if rest else "")
    return f"{whole} s"


def span_ms_text(milliseconds: int | None) -> str:
    return span_text(None if milliseconds is None else milliseconds / 1000)


def latency_text(seconds: float | None, *, bound_s: float | None = None) -> str:
    """Format a percentile: `-` if no run was timed, `> 4.2 s` above the last bound."""
    if seconds is None:
        return "-"
    if math.isinf(seconds):
        return UNKNOWN if bound_s is None else f"> {span_text(bound_s)}"
    return span_text(seconds)


def least_text(text: str, *, is_whole: bool) -> str:
    """Add `at least` to a value that covers only a part of the whole."""
    return text if is_whole or text == UNKNOWN else f"at least {text}"


def percent_text(share: float | None) -> str:
    return UNKNOWN if share is None else f"{share * 100:.0f} %"


def bar(share: float | None, width: int, *, plain: bool = False) -> str:
    """Return a bar of `width` columns, filled to a share."""
    full, empty = ("#", "-") if plain else ("█", "░")
    if share is None:
        return "?" * width
    filled = min(width, max(0, math.floor(share * width + 0.5)))
    return full * filled + empty * (width - filled)


def cut(text: str, width: int, *, plain: bool = False) -> str:
    """Cut a text to at most `width` columns; a mark at its end tells that it was cut."""
    if len(text) <= width:
        return text
    mark = "~" if plain else "…"
    return text[: max(0, width - 1)] + mark if width > 0 else ""
