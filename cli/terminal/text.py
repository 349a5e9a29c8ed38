"""Prints text of commands. Names, bodies and answers come from strangers, and must not control the terminal."""

from __future__ import annotations

import re
import sys
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
