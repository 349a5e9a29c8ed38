"""Formats counts, rates, sizes and lengths of time as people read them, and the labels of values.

The names of JSON fields end with their unit, such as `lagSeconds`. For people the unit stands with the value: "lag" and
"3 min 5 s".
"""

from __future__ import annotations

import math
import re
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


_BYTES_EXACT_MAX: Final = 10_000
_SIZES: Final = frozenset({"size", "bytes", "disk total", "disk free", "log size", "body length"})
"""Labels of values in bytes whose names do not say so."""
_PLACES: Final = frozenset(
    {"id", "queue", "offset", "begin", "end", "segment", "number", "phase", "from", "to", "code", "starts"}
)
"""Last words of labels whose numbers are places or names, which are copied into commands: no commas."""
_SECONDS: Final = {"ms": 0.001, "s": 1.0, "seconds": 1.0, "minutes": 60.0, "hours": 3_600.0}
_MEASURES: Final = frozenset({"bytes", "percent", *_SECONDS})
"""Last words of names that are the unit of the value."""
_TIMES_OF_DAY: Final = frozenset({"deleteHours"})
"""Names whose last word is no unit: hours of the day are no length of time."""
_RATE: Final = " per second"
_LABELS: Final = {
    "queueId": "queue",
    "queueOf": "topic",
    "isThere": "kept",
    "phyOffset": "physical offset",
    "forcePercent": "expiry forced at",
    "refusePercent": "sends refused at",
    "deleteHours": "expiry at hours",
    "dueOf": "counted by due time",
}
"""Labels of fields whose names would be read otherwise by people."""


def label(name: str) -> str:
    """Return the words for a field without its unit: `lastStoredAt` is "last stored at", `lagSeconds` is "lag"."""
    if name in _LABELS:
        return _LABELS[name]
    words = _words(name)
    if words.endswith(_RATE):
        return words.removesuffix(_RATE) + "/s"
    return (words.rpartition(" ")[0] if has_measure(name) else words).removeprefix("is ")


def has_measure(name: str) -> bool:
    """Return whether the name of a field ends with the unit of its value."""
    first, _, last = _words(name).rpartition(" ")
    return bool(first) and last in _MEASURES and name not in _TIMES_OF_DAY


def number_text(name: str, value: float) -> str:
    """Format the number of a field by the unit in its name. Offsets and other places have no commas."""
    words = _words(name)
    last = words.rpartition(" ")[2]
    if words.endswith(_RATE):
        return rate_text(value)
    if words in _SIZES or (has_measure(name) and last == "bytes"):
        return exact_bytes_text(value)
    if has_measure(name):
        return f"{value:,g} %" if last == "percent" else _length_text(value * _SECONDS[last])
    if isinstance(value, int):
        return str(value) if last in _PLACES else f"{value:,}"
    return f"{value:,g}" if abs(value) < 1_000_000 else f"{value:,.0f}"


def _length_text(seconds: float) -> str:
    is_whole = seconds == int(seconds) and seconds < 60
    return f"{seconds:.0f} s" if is_whole else span_text(seconds)


def exact_bytes_text(value: float) -> str:
    """Format a size; a small one exactly, because records have such sizes."""
    return f"{value:,.0f} B" if value < _BYTES_EXACT_MAX else bytes_text(int(value))


def _words(name: str) -> str:
    """Return the words of a field's name. Anything else, such as the name of a database, stays as it is."""
    if not name.isidentifier() or name[0].isupper():
        return name
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", " ", name).replace("_", " ").lower()
