"""Prints results of commands: JSON lines for programs, aligned text for people."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Final

from quarry_mq.cli.terminal.quantities import has_measure, label, number_text
from quarry_mq.cli.terminal.text import one_line, say

_ENCODER: Final = json.JSONEncoder(ensure_ascii=False, sort_keys=True, separators=(",", ":"))
BUFFERED_MAX: Final = 500
"""Rows that are looked at, at most, before the first line of a table is printed."""
WIDTH_MAX: Final = 64
"""Columns of the terminal that a column of a table takes, at most; a longer value moves the rest of its line."""


def speaks_utf8() -> bool:
    """Return whether standard output takes more than ASCII."""
    return (sys.stdout.encoding or "").lower().replace("-", "") == "utf8"


def json_line(fields: Mapping[str, object]) -> str:
    return _ENCODER.encode(fields)


def print_object(fields: Mapping[str, object], *, as_json: bool) -> None:
    """Print one object with all its fields."""
    if as_json:
        say(json_line(fields))
        return
    for line in object_lines(fields):
        say(line)


def object_lines(fields: Mapping[str, object]) -> Iterator[str]:
    """Yield a line for each field, with the values below each other."""
    labels = [label(name) for name in fields]
    width = max(map(len, labels), default=0)
    for shown, (name, value) in zip(labels, fields.items(), strict=True):
        yield f"{shown:<{width}}  {_text(name, value)}".rstrip()


def print_rows(
    rows: Iterable[Mapping[str, object]],
    columns: Sequence[str],
    *,
    as_json: bool,
    kind: str = "rows",
    buffered_max: int = BUFFERED_MAX,
) -> None:
    """Print many objects, one line each. People get a table of the given columns, programs get all fields.

    Without any, people read "no" and the `kind`.

    A column is as wide as the widest of the first `buffered_max` values: a million rows are not kept in memory.
    """
    if as_json:
        for row in rows:
            say(json_line(row))
        return
    coming = iter(rows)
    buffered: list[Mapping[str, object]] = []
    try:
        buffered += islice(coming, buffered_max)
    except BaseException:
        if buffered:
            _print_first(buffered, columns)  # what came before an error is shown
        raise
    if not buffered:
        say(f"no {kind}")
        return
    widths = _print_first(buffered, columns)
    for row in coming:
        say(_line([_text(column, row[column]) for column in columns], widths))


def _print_first(rows: Sequence[Mapping[str, object]], columns: Sequence[str]) -> list[int]:
    """Print the heading and the rows, and return the widths of the columns. Numbers have a negative width."""
    table = [[_text(column, row[column]) for column in columns] for row in rows]
    heading = [label(column).upper() for column in columns]
    widths = []
    for number, column in enumerate(columns):
        width = max(len(heading[number]), *(min(WIDTH_MAX, len(line[number])) for line in table))
        is_number = all(_is_number(row[column]) for row in rows) and any(row[column] is not None for row in rows)
        widths.append(-width if is_number else width)
    for line in (heading, *table):
        say(_line(line, widths))
    return widths


def _is_number(value: object) -> bool:
    return value is None or (isinstance(value, int | float) and not isinstance(value, bool))


def _line(cells: Sequence[str], widths: Sequence[int]) -> str:
    padded = [
        f"{cell:<{width}}" if width > 0 else f"{cell:>{-width}}" for cell, width in zip(cells, widths, strict=True)
    ]
    return "  ".join(padded).rstrip()


def _text(name: str, value: object) -> str:
    match value:
        case None:
            return "-"
        case str():
            return one_line(value)
        case bool():
            return "yes" if value else "no"
        case int() | float():
            return number_text(name, value)
        case Mapping():
            return " ".join(_pair(str(each), inner) for each, inner in value.items()) or "-"
        case list() | tuple():
            return ", ".join(_inner(name, each) for each in value) or "-"
        case _:
            return str(value)


def _pair(name: str, value: object) -> str:
    return f"{label(name) if has_measure(name) else one_line(name)}={_inner(name, value)}"


def _inner(name: str, value: object) -> str:
    """Return a value within another one. A number without a unit is written as a program would write it."""
    is_bare = isinstance(value, int | float) and not isinstance(value, bool) and not has_measure(name)
    return str(value) if is_bare else _text(name, value)
