"""Prints text of commands, curves of values, and times.

Names, bodies and answers come from strangers, and must not control the terminal. Values over time are one line of text,
a curve of bars. Times are formatted as people write them. All functions for curves are pure.
"""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Final

import typer


def one_line(value: str) -> str:
    """Return the text unchanged if it is printable, else escaped."""
    return value if value.isprintable() else repr(value)


_STEERING: Final = re.compile(
    "["
    "\x00-\x08\x0b-\x1f\x7f-\x9f"  # control characters, but for tabulators and ends of lines
    "\xad\u0600-\u0605\u061c\u06dd\u070f\u0890\u0891\u08e2\u180e\u200b-\u200f\u202a-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb"
    "\U000110bd\U000110cd\U00013430-\U0001343f\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0001\U000e0020-\U000e007f"
    "\u2028\u2029"  # ends of lines and paragraphs
    "\ud800-\udfff"
    "]"
)
"""Matches what a terminal obeys or does not show: control and format characters, line separators, surrogates."""


def harmless(text: str) -> str:
    """Escape characters that would control a terminal as JSON does: lines stay lines, and JSON stays the same JSON."""
    return _STEERING.sub(_escaped, text)


def say(text: str | bytes = "", *, err: bool = False, nl: bool = True, before: str = "") -> None:
    """Print to standard output or standard error. A terminal gets escaped text, a pipe every byte as it is.

    `before` is printed before the text; it is our own text and may have colours.
    """
    if is_terminal(err=err):
        text = harmless(text.decode("utf-8", "backslashreplace") if isinstance(text, bytes) else text)
    if before:
        typer.echo(before, err=err, nl=False)  # without its colours in a pipe
    if isinstance(text, str) and not text.isascii():
        # half a character (of a file's name), or an output that takes ASCII only: typer would print question marks
        encoding = (sys.stderr if err else sys.stdout).encoding or "utf-8"
        text = text.encode(encoding, "backslashreplace").decode(encoding)
    typer.echo(text, err=err, nl=nl, color=True)  # else typer removes colours, which are the sender's here


def word(text: str, *, err: bool = False) -> str:
    """Return a stranger's text for use within a line: on a terminal it cannot begin another line."""
    return one_line(text) if is_terminal(err=err) else text


def is_terminal(*, err: bool = False) -> bool:
    """Return whether the output is a terminal."""
    stream = sys.stderr if err else sys.stdout
    return stream is not None and stream.isatty()


def _escaped(found: re.Match[str]) -> str:
    """Return the JSON escape of a character; one beyond the first 65,536 has two parts."""
    units = found[0].encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[at : at + 2].hex()}" for at in range(0, len(units), 2))


HOUR_MS: Final = 3_600_000
BLOCKS: Final = "▁▂▃▄▅▆▇█"
ASCII_BLOCKS: Final = "_.-=+*%#"
"""Bars for terminals that do not support UTF-8."""


def cells(
    at_ms: Sequence[int], values: Sequence[float], *, end_ms: int, span_ms: int, width: int
) -> list[float | None]:
    """Return the highest values in `width` equal parts of (end - span, end]; None for a part without a known sample."""
    found: list[float | None] = [None] * width
    for moment_ms, value in zip(at_ms, values, strict=False):
        age_ms = end_ms - moment_ms
        if math.isnan(value) or not 0 <= age_ms < span_ms:
            continue
        cell = width - 1 - age_ms * width // span_ms
        found[cell] = max(value, found[cell] or 0.0)
    return found


def levels(values: Sequence[float | None], steps: int) -> list[int | None]:
    """Return each value's height, 0 … steps - 1. Only zero has height 0, and the highest value has the top height."""
    top = max((value for value in values if value is not None), default=0.0)
    if top <= 0:
        return [None if value is None else 0 for value in values]
    return [None if value is None else max(value > 0, round(value / top * (steps - 1))) for value in values]


def sparkline(values: Sequence[float | None], *, plain: bool = False) -> str:
    """Return a column for each value; `·` (`?` in plain text) for an unknown one."""
    blocks, unknown = (ASCII_BLOCKS, "?") if plain else (BLOCKS, "·")
    return "".join(unknown if level is None else blocks[level] for level in levels(values, len(blocks)))


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
